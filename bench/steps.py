#!/usr/bin/env python3
"""How long training steps take, against the floor that their matrix products set, and against PyTorch: `make bench`
and `make bench-peers`.

    steps.py --build build --work build/bench --out steps.csv [--peer-python PYTHON] [--cases REGEX] [--rounds 3]

Each workload runs in rounds; a round is the floor, plait and, with --peer-python, the peer, one after another, since the
speed of a shared machine changes from minute to minute. Each run is a process of its own: its steps without the first
two, the time from its start to the end of its first step, and its largest resident memory go into one row of CSV."""
import argparse
import csv
import datetime
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import time

from workloads import MODELS, WORKLOADS, lengths

WARM_UP = 2
COLUMNS = ["case", "program", "steps", "step_s_min", "step_s_med", "tokens_per_s", "floor_share", "floor_s", "gflop",
           "peak_mib", "planned_mib", "first_step_s", "loss", "others_cpu", "machine", "threads", "versions", "commit", "date"]


def machine():
    model = platform.processor() or "?"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        text = lines.read()
        found = re.search(r"model name\s*: (.*)", text)
        model = found.group(1) if found else model
        flags = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if re.search(rf"\b{f}\b", text)]
    with open("/proc/meminfo", encoding="utf-8") as lines:
        gib = int(re.search(r"MemTotal:\s*(\d+)", lines.read()).group(1)) / 2**20
    return f"{model}, {os.cpu_count()} CPUs, {gib:.0f} GiB, {'+'.join(flags)}"


def busy_seconds():
    """Of all processors, since the machine started: what is neither idle nor waiting."""
    with open("/proc/stat", encoding="utf-8") as lines:
        v = [int(x) for x in lines.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


class Bench:
    def __init__(self, args):
        self.args = args
        self.plait = os.path.join(args.build, "plait")
        self.commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        with open(os.path.join(args.build, "CMakeCache.txt"), encoding="utf-8") as lines:
            compiler = re.search(r"CMAKE_C_COMPILER:\w+=(.*)", lines.read()).group(1)
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
        self.versions = {"plait": version, "floor": "oneDNN"}
        self.machine = machine()

    def path(self, *names):
        return os.path.join(self.args.work, *names)

    def config(self, w):
        path = self.path(w["model"] + ".json")
        if not os.path.exists(path):
            with open(path, "w", encoding="utf-8") as out:
                json.dump(MODELS[w["model"]], out)
        return path

    def data(self, w):
        """Random tokens, all of them trained."""
        path = self.path(f"{w['model']}-{w['length']}.jsonl")
        if not os.path.exists(path):
            draw = random.Random(1)
            vocab = MODELS[w["model"]]["vocab_size"]
            with open(path, "w", encoding="utf-8") as out:
                for n in lengths(w, 128 if w["length"] <= 1024 else 4):
                    out.write(json.dumps({"input_ids": [draw.randrange(vocab) for _ in range(n)]}) + "\n")
        return path

    def folder(self, w):
        """A model of random weights, written by plait as any result is."""
        path = self.path(w["model"])
        if not os.path.exists(os.path.join(path, "config.json")):
            command = [self.plait, "train", "--from-scratch", self.config(w), "--data", self.data(w | {"length": 64}),
                       "--data.sequence_length", "64", "--output", path, "--train.steps", "1", "--train.micro_batch", "1",
                       "--optimizer.lr", "0", "--precision", "bf16", "--checkpoint.every", "0"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return path

    def run(self, command, lines_path, output_path=os.devnull, environment=None):
        """Runs a trainer that writes its lines to lines_path. Returns their objects, its peak
        MiB, the seconds to its first line, and how many processors others kept busy."""
        log = self.path("log")
        begin, before = time.time(), busy_seconds()
        with open(log, "w", encoding="utf-8") as errors, open(output_path, "w", encoding="utf-8") as output:
            process = subprocess.Popen(command, stdout=output, stderr=errors, env=os.environ | (environment or {}))
            first = None
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if first is None and os.path.exists(lines_path) and os.path.getsize(lines_path) > 0:
                    first = time.time() - begin
                if pid:
                    break
                time.sleep(0.005)
        if status != 0:
            with open(log, encoding="utf-8") as errors:
                sys.exit(f"{' '.join(command)}\n{errors.read()}")
        wall = time.time() - begin
        others = (busy_seconds() - before - usage.ru_utime - usage.ru_stime) / wall
        with open(lines_path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines], usage.ru_maxrss / 1024, first, others

    def run_plait(self, name, w):
        output = self.path("out")
        shutil.rmtree(output, ignore_errors=True)
        # Full fine-tuning starts from f32 weights as the peers do; a frozen base stays in the file's mapping.
        command = [self.plait, "train", "--model", self.folder(w), "--data", self.data(w), "--data.shuffle", "false",
                   "--data.sequence_length", str(max(lengths(w, 128))), "--train.micro_batch", str(w["rows"]), "--train.steps",
                   str(self.args.steps + WARM_UP), "--optimizer.lr", "2e-5", "--precision", w["precision"], "--output",
                   output, "--checkpoint.every", "0", "--method", "full" if w["method"] == "full" else "lora"]
        if w["method"] != "full":
            targets = "all-linear" if w["targets"] == "all" else "q_proj,v_proj"
            command += ["--lora.r", str(w["rank"]), "--lora.alpha", str(w["rank"]), "--lora.targets", targets,
                        "--lora.dora", str(w["method"] == "dora").lower()]
        if w["recompute"]:
            command += ["--memory.recompute", "full"]
        return self.run(command, os.path.join(output, "metrics.jsonl"))

    def run_peer(self, name, w):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer.py")
        out = self.path("peer.jsonl")
        command = [self.args.peer_python, script, name, self.folder(w), self.data(w), str(self.args.steps + WARM_UP)]
        environment = {"LD_PRELOAD": self.args.preload} if self.args.preload else {}
        lines, peak, first, others = self.run(command, out, out, environment)
        self.versions["peer"] = lines.pop()["versions"]
        return lines, peak, first, others

    def run_floor(self, name, w):
        command = [os.path.join(self.args.build, "bench_floor"), self.config(w), w["method"], w["precision"], str(w["rows"]),
                   str(round(statistics.mean(lengths(w, 128)))), str(w["rank"]), w["targets"], str(w["recompute"]).lower(), str(self.args.passes)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def rows(self, name, w):
        """Rounds of the three, and a CSV row for each program."""
        programs = {"plait": self.run_plait}
        if self.args.peer_python:
            programs["peer"] = self.run_peer
        times, peaks, firsts, losses, loads = ({p: [] for p in programs} for _ in range(5))
        floors, planned = [], 0
        for _ in range(self.args.rounds):
            floors.append(self.run_floor(name, w))
            for program, run in programs.items():
                lines, peak, first, others = run(name, w)
                times[program] += [line["step_s"] for line in lines[WARM_UP:]]
                peaks[program].append(peak)
                firsts[program].append(first)
                loads[program].append(others)
                losses[program].append(lines[-1]["loss"])
                planned = max(planned, lines[-1].get("peak_bytes", 0))
        floor = statistics.median(f["floor_med_s"] for f in floors)
        used = lengths(w, w["rows"] * (self.args.steps + WARM_UP))[w["rows"] * WARM_UP:]
        tokens = sum(used) / self.args.steps
        for program in programs:
            median = statistics.median(times[program])
            yield {"case": name, "program": program, "steps": len(times[program]), "step_s_min": f"{min(times[program]):.4f}",
                   "step_s_med": f"{median:.4f}", "tokens_per_s": f"{tokens / statistics.mean(times[program]):.0f}",
                   "floor_share": f"{floor / median:.3f}", "floor_s": f"{floor:.4f}", "gflop": f"{floors[0]['gflop']:.0f}",
                   "peak_mib": f"{max(peaks[program]):.0f}", "planned_mib": f"{planned / 2**20:.0f}" if program == "plait" else "",
                   "first_step_s": f"{statistics.median(firsts[program]):.2f}", "loss": f"{losses[program][-1]:.5f}",
                   "others_cpu": f"{statistics.median(loads[program]):.2f}", "machine": self.machine,
                   "threads": os.environ.get("OMP_NUM_THREADS", os.cpu_count()), "versions": self.versions[program],
                   "commit": self.commit, "date": datetime.date.today().isoformat()}


def show(row):
    share = f"{100 * float(row['floor_share']):.0f} % of the floor's speed"
    print(f"{row['case']:24} {row['program']:6} {float(row['step_s_med']):8.3f} s a step (best {float(row['step_s_min']):.3f})"
          f" {int(row['tokens_per_s']):6} tokens/s  {share}  {row['peak_mib']:>5} MiB  first step after {row['first_step_s']} s",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--work", default="build/bench")
    parser.add_argument("--out", default="build/bench/steps.csv")
    parser.add_argument("--peer-python")
    parser.add_argument("--preload", help="a library for the peer, as libtcmalloc_minimal.so.4")
    parser.add_argument("--cases", default=".")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--passes", type=int, default=3)
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    bench = Bench(args)
    new = not os.path.exists(args.out)
    with open(args.out, "a", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS)
        if new:
            writer.writeheader()
        for name, w in WORKLOADS.items():
            if re.search(args.cases, name):
                for row in bench.rows(name, w):
                    writer.writerow(row)
                    out.flush()
                    show(row)


if __name__ == "__main__":
    main()
