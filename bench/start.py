#!/usr/bin/env python3
"""How long it takes from the start of the process to the begin of the first step, and how long steps wait for data:
`make bench-start`.

A LoRA adapter of a real model is trained on the first 1,000 examples of a file, with no tokens in the cache (cold) and
with those of the run before (warm). What a step waits for data is the profile's phase of that name, as a share of its time."""
import os
import re
import shutil
import statistics
import subprocess
import time

from common import WARM_UP, Bench, Failed, Table, arguments, chosen, each
from phases import profile

EXAMPLES = 1000
CASES = ("cold", "warm")
COLUMNS = ["case", "examples", "runs", "first_step_begins_s", "model_s", "data_s", "rest_s", "step_s", "data_share_of_step"]
TOLD = r"^the first step begins after (\S+) s \(model (\S+), data (\S+), memory and weights (\S+)\)$"


class StartBench(Bench):
    def examples(self):
        path = self.path("examples.jsonl")
        with open(self.args.data, encoding="utf-8") as lines, open(path, "w", encoding="utf-8") as out:
            out.writelines(line for line, _ in zip(lines, range(EXAMPLES)))
        return path

    def start(self, cache):
        """Returns the seconds until it says that the first step begins, and all that it said."""
        output = self.path("out")
        shutil.rmtree(output, ignore_errors=True)
        command = [self.plait, "train", "--model", self.args.model, "--data", self.examples(), "--data.cache", cache, "--method", "lora",
                   "--precision", "bf16", "--lora.r", "16", "--lora.targets", "all-linear", "--train.steps", str(self.args.steps + WARM_UP),
                   "--checkpoint.every", "0", "--output", output, "--log.profile", "true", "--log.every", "1"]
        begin, begins, said = time.time(), None, []
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                said.append(line)
                if begins is None and re.match(TOLD, line):
                    begins = time.time() - begin
        if process.returncode != 0 or begins is None:
            raise Failed(f"{' '.join(command)}\n{''.join(said)}")
        return begins, "".join(said)

    def measure(self, name):
        cache, begins, parts, steps = self.path("cache"), [], [], []
        if name == "warm":
            self.start(cache)
        for _ in range(self.args.rounds):
            if name == "cold":
                shutil.rmtree(cache, ignore_errors=True)
            seconds, said = self.start(cache)
            begins.append(seconds)
            parts.append([float(part) for part in re.search(TOLD, said, re.M).groups()])
            step, _, of_phase = profile(said)
            steps.append((step, of_phase["data"] / step))
        _, model, data, rest = (statistics.median(part) for part in zip(*parts))
        return {"case": name, "examples": EXAMPLES, "runs": len(begins), "first_step_begins_s": f"{statistics.median(begins):.3f}",
                "model_s": f"{model:.2f}", "data_s": f"{data:.2f}", "rest_s": f"{rest:.2f}",
                "step_s": f"{statistics.median(step for step, _ in steps):.3f}",
                "data_share_of_step": f"{statistics.median(share for _, share in steps):.4f}"} | self.origin()


def main():
    args = arguments(__doc__, "start.csv", rounds=(3, "runs of each"), steps=(4, "steps of a run that count"),
                     model=("", "folder of a model with a tokenizer"), data=("", "a file of examples"))
    if not os.path.isdir(args.model) or not os.path.isfile(args.data):
        raise SystemExit("start.py needs --model FOLDER and --data FILE that are there")
    bench, table = StartBench(args), Table(args.out, ["case"], COLUMNS)

    def one(name):
        row = bench.measure(name)
        table.put(row)
        print(f"{name}: the first step begins after {row['first_step_begins_s']} s (model {row['model_s']}, data {row['data_s']}, rest "
              f"{row['rest_s']}); a step takes {row['step_s']} s and waits {100 * float(row['data_share_of_step']):.2f} % of it for data", flush=True)

    each(chosen(CASES, args), one)


if __name__ == "__main__":
    main()
