#!/usr/bin/env python3
"""How fast text is written, beside transformers' generate and the memory's limit: `make bench-generate`.

Greedy, in bf16, a model of random weights with a tokenizer put beside it: 128 tokens of prompt, 64 new ones. The limit is
the time that the memory takes to give the weights once for each token (or batch of tokens), at the rate of bench_ops's
triad in the same round."""
import os
import re
import shutil
import statistics
import subprocess

from common import HERE, Bench, Failed, Table, arguments, chosen, each
from workloads import WORKLOADS

PROMPT, NEW = 128, 64
WORD = " the"  # one token
MODEL = WORKLOADS["w1-lora-bf16"]
CASES = {"batch-1": 1, "batch-8": 8}
COLUMNS = ["case", "program", "runs", "prompt_tokens_per_s", "new_tokens_per_s", "limit_share", "limit_tokens_per_s", "peak_mib",
           "first_token_s", "others_cpu", "threads"]
TOLD = r"^(\d+) tokens read in (\S+) s, (\d+) written at (\S+) a second$"


class GenerateBench(Bench):
    def written_folder(self):
        folder = self.path("writer")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder(MODEL), folder, ignore=lambda _, names: [n for n in names if n not in ("config.json", "model.safetensors")])
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(self.args.tokenizer, name), folder)
        return folder

    def limit(self, folder):
        """Passes over the weights a second."""
        command = [os.path.join(self.args.build, "bench_ops"), str(os.cpu_count()), "no operator"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rate = float(re.search(r"^triad,.*?,f32,\d+,,([\d.]+),", text, re.M).group(1)) * 1e9
        return rate / os.path.getsize(os.path.join(folder, "model.safetensors"))

    def own(self, folder, batch):
        command = [self.plait, "generate", "--model", folder, "--precision", "bf16", "--greedy", "true", "--max-tokens", str(NEW), "--batch",
                   str(batch)] + ["--prompt", WORD * PROMPT] * batch
        run = self.run([command], None, [{}])
        tokens, seconds, new, speed = re.search(TOLD, self.log_text(), re.M).groups()
        if (int(tokens), int(new)) != (batch * PROMPT, batch * NEW):
            raise Failed(f"{tokens} tokens were read and {new} written, not {batch} times {PROMPT} and {NEW}")
        return run, batch * PROMPT / float(seconds), float(speed), self.compiler

    def peer(self, folder, batch, static=False):
        out = self.path("peer.jsonl")
        command = [self.args.peer_python, os.path.join(HERE, "peer_generate.py"), folder, str(batch), str(PROMPT), str(NEW),
                   "static" if static else "dynamic", out]
        run = self.run([command], out, [self.peer_environment()])
        line = run.lines[-1]
        return run, line["prompt_tokens_per_s"], line["new_tokens_per_s"], line["versions"]

    def measure(self, name):
        batch, folder, found, limits = CASES[name], self.written_folder(), {}, []
        programs = {"plait": self.own}
        if self.args.peer_python:
            programs |= {"peer": self.peer, "peer-static": lambda *of: self.peer(*of, static=True)}
        for _ in range(self.args.rounds):
            limits.append(self.limit(folder) * batch)
            for program, measure in programs.items():
                found.setdefault(program, []).append(measure(folder, batch))
        limit = statistics.median(limits)
        for program, results in found.items():
            runs, prompt, new, versions = zip(*results)
            yield {"case": name, "program": program, "runs": len(runs), "prompt_tokens_per_s": f"{statistics.median(prompt):.0f}",
                   "new_tokens_per_s": f"{statistics.median(new):.1f}", "limit_share": f"{statistics.median(new) / limit:.3f}",
                   "limit_tokens_per_s": f"{limit:.1f}", "peak_mib": f"{max(run.peak_mib for run in runs):.0f}",
                   "first_token_s": f"{statistics.median(run.first_s for run in runs):.2f}",
                   "others_cpu": f"{statistics.median(run.others_cpu for run in runs):.2f}", "threads": os.cpu_count()} | self.origin(versions[0])


def main():
    args = arguments(__doc__, "generate.csv", rounds=(3, "rounds"), tokenizer=("", "folder with a tokenizer.json of 49,152 tokens"))
    if not os.path.isfile(os.path.join(args.tokenizer, "tokenizer.json")):
        raise SystemExit("generate.py needs --tokenizer FOLDER, which has a tokenizer.json")
    bench, table = GenerateBench(args), Table(args.out, ["case", "program"], COLUMNS)

    def one(name):
        for row in bench.measure(name):
            table.put(row)
            print(f"{name} {row['program']:12} {row['new_tokens_per_s']:>6} new tokens/s ({100 * float(row['limit_share']):.0f} % of the memory's "
                  f"limit), prompt {row['prompt_tokens_per_s']} tokens/s, {row['peak_mib']} MiB", flush=True)

    each(chosen(CASES, args), one)


if __name__ == "__main__":
    main()
