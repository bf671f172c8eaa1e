#!/usr/bin/env python3
"""How fast several processes of one machine are, against one process with all its cores, and against PyTorch's DDP and
FSDP2 and DeepSpeed's ZeRO over gloo: `make bench-ranks`.

    ranks.py --build build --work build/bench --out ranks.csv [--peer-python PYTHON] [--cases REGEX] [--rounds 2]

The workload is steps.py's w1-full-bf16 (4 x 512 tokens a step, in all processes together), and runs in rounds as there:
each program after the other, since the speed of a shared machine changes from minute to minute. Memory is that of all
processes together: `rss_mib` adds up their resident maxima, `pss_mib` is the largest sum that was seen of what they
hold at one time, with pages that several share counted once."""
import argparse
import csv
import datetime
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time

from steps import WARM_UP, Bench, busy_seconds
from workloads import WORKLOADS

WORKLOAD = "w1-full-bf16"
ROWS = WORKLOADS[WORKLOAD]["rows"]
TOKENS = ROWS * WORKLOADS[WORKLOAD]["length"]
BASE = "plait"
# name: program, processes, what it is told
CASES = {
    BASE: ("plait", 1, []),
    "plait-ddp": ("plait", 2, ["--parallel.zero", "0"]),
    "plait-zero1": ("plait", 2, ["--parallel.zero", "1"]),
    "plait-zero2": ("plait", 2, ["--parallel.zero", "2"]),
    "plait-zero3": ("plait", 2, ["--parallel.zero", "3"]),
    "torch-ddp": ("peer", 2, ["ddp"]),
    "torch-fsdp2": ("peer", 2, ["fsdp2"]),
    "deepspeed-zero2": ("peer", 2, ["zero2"]),
    "deepspeed-zero3": ("peer", 2, ["zero3"]),
}
COLUMNS = ["case", "processes", "threads", "steps", "step_s_min", "step_s_med", "tokens_per_s", "of_one_process", "rss_mib", "pss_mib",
           "first_step_s", "loss", "others_cpu", "machine", "versions", "commit", "date"]
LOOK_EVERY = 0.1  # seconds
PSS_EVERY = 1.5  # the kernel walks through all pages for it


def descendants(pids):
    """These processes and all below them."""
    found = list(pids)
    for pid in found:  # grows
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as children:
                    found += [int(child) for child in children.read().split()]
        except OSError:
            continue  # it has ended
    return found


def kib(path, key):
    try:
        with open(path, encoding="ascii") as lines:
            return int(re.search(rf"^{key}:\s*(\d+)", lines.read(), re.M).group(1))
    except (OSError, AttributeError):
        return 0  # it has ended


class Memory:
    """Of all processes below some, as often as look() is called."""

    def __init__(self):
        self.highest, self.pss, self.looked = {}, 0, 0

    def look(self, pids):
        running = descendants(pids)
        for pid in running:
            self.highest[pid] = max(self.highest.get(pid, 0), kib(f"/proc/{pid}/status", "VmHWM"))
        if time.time() - self.looked > PSS_EVERY:
            self.looked = time.time()
            self.pss = max(self.pss, sum(kib(f"/proc/{pid}/smaps_rollup", "Pss") for pid in running))


class RanksBench(Bench):
    def run_all(self, commands, lines_path, environments):
        """As Bench.run, of several processes that work together."""
        if os.path.exists(lines_path):
            os.remove(lines_path)
        memory, first, log = Memory(), None, self.path("log")
        begin, before, own = time.time(), busy_seconds(), os.times()
        with open(log, "w", encoding="utf-8") as errors:
            processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | environment)
                         for command, environment in zip(commands, environments)]
            while any(p.poll() is None for p in processes):
                if any(p.returncode for p in processes):
                    for p in processes:
                        p.kill()
                if first is None and os.path.exists(lines_path) and os.path.getsize(lines_path) > 0:
                    first = time.time() - begin
                memory.look([p.pid for p in processes if p.returncode is None])
                time.sleep(LOOK_EVERY)
        if any(p.returncode for p in processes):
            with open(log, encoding="utf-8") as errors:
                sys.exit(f"{' '.join(commands[0])}\n{errors.read()}")
        wall, now = time.time() - begin, os.times()
        mine = sum(now[:4]) - sum(own[:4])  # this process's and that of its children, with theirs
        with open(lines_path, encoding="utf-8") as lines:
            return ([json.loads(line) for line in lines], sum(memory.highest.values()) / 1024, memory.pss / 1024, first,
                    (busy_seconds() - before - mine) / wall)

    def run_plait_ranks(self, w, ranks, more):
        output = self.path("out")
        shutil.rmtree(output, ignore_errors=True)
        command = [self.plait, "train", "--model", self.folder(w), "--data", self.data(w), "--data.shuffle", "false",
                   "--data.sequence_length", str(w["length"]), "--train.micro_batch", str(ROWS // ranks), "--train.steps",
                   str(self.args.steps + WARM_UP), "--optimizer.lr", "2e-5", "--precision", w["precision"], "--output", output,
                   "--checkpoint.every", "0", "--method", "full", *more, *(["--ranks", str(ranks)] if ranks > 1 else [])]
        return self.run_all([command], os.path.join(output, "metrics.jsonl"), [{}])

    def run_peer_ranks(self, w, ranks, more):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_ranks.py")
        out = self.path("peer.jsonl")
        command = [self.args.peer_python, script, *more, WORKLOAD, self.folder(w), self.data(w), str(self.args.steps + WARM_UP), out]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                  "OMP_NUM_THREADS": str(max(1, os.cpu_count() // ranks)), "GLOO_SOCKET_IFNAME": "lo"}
        if self.args.preload:
            common["LD_PRELOAD"] = self.args.preload
        lines, *rest = self.run_all([command] * ranks, out, [common | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)])
        self.versions["peer"] = lines.pop()["versions"]
        return lines, *rest

    def has_deepspeed(self):
        found = subprocess.run([self.args.peer_python, "-c", "import deepspeed"], capture_output=True)
        if found.returncode != 0:
            print("DeepSpeed cannot be imported by the peer's Python, so its rows are left out", flush=True)
        return found.returncode == 0

    def cases(self):
        chosen = {name: case for name, case in CASES.items()
                  if (self.args.peer_python or case[0] == "plait") and (name == BASE or re.search(self.args.cases, name))}
        if any(name.startswith("deepspeed") for name in chosen) and not self.has_deepspeed():
            chosen = {name: case for name, case in chosen.items() if not name.startswith("deepspeed")}
        return chosen

    def rows(self):
        """Rounds of all cases, and a CSV row for each."""
        w, cases = WORKLOADS[WORKLOAD], self.cases()
        runs, versions = {name: [] for name in cases}, {}
        for _ in range(self.args.rounds):
            for name, (program, ranks, more) in cases.items():
                run = self.run_plait_ranks if program == "plait" else self.run_peer_ranks
                runs[name].append(run(w, ranks, more))
                versions[name] = self.versions[program]
                times = [line["step_s"] for line in runs[name][-1][0][WARM_UP:]]
                print(f"  {name:16} {statistics.median(times):.3f} s a step", flush=True)
        times = {name: [line["step_s"] for run in found for line in run[0][WARM_UP:]] for name, found in runs.items()}
        speed = {name: TOKENS / statistics.median(found) for name, found in times.items()}
        for name, (_, ranks, _) in cases.items():
            lines, rss, pss, first, others = zip(*runs[name])
            yield {"case": name, "processes": ranks, "threads": max(1, os.cpu_count() // ranks), "steps": len(times[name]),
                   "step_s_min": f"{min(times[name]):.4f}", "step_s_med": f"{statistics.median(times[name]):.4f}",
                   "tokens_per_s": f"{speed[name]:.0f}", "of_one_process": f"{speed[name] / speed[BASE]:.3f}",
                   "rss_mib": f"{max(rss):.0f}", "pss_mib": f"{max(pss):.0f}", "first_step_s": f"{statistics.median(first):.2f}",
                   "loss": f"{lines[-1][-1]['loss']:.5f}", "others_cpu": f"{statistics.median(others):.2f}", "machine": self.machine,
                   "versions": versions[name], "commit": self.commit, "date": datetime.date.today().isoformat()}


def show(row):
    print(f"{row['case']:16} {row['processes']} x {row['threads']} {float(row['step_s_med']):8.3f} s a step (best "
          f"{float(row['step_s_min']):.3f}) {row['tokens_per_s']:>6} tokens/s, {100 * float(row['of_one_process']):.0f} % of one "
          f"process  {row['rss_mib']:>6} MiB ({row['pss_mib']} with shared pages once)  others {row['others_cpu']}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--work", default="build/bench")
    parser.add_argument("--out", default="build/bench/ranks.csv")
    parser.add_argument("--peer-python")
    parser.add_argument("--preload", help="a library for the peers, as libtcmalloc_minimal.so.4")
    parser.add_argument("--cases", default=".")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    bench = RanksBench(args)
    new = not os.path.exists(args.out)
    with open(args.out, "a", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS)
        if new:
            writer.writeheader()
        for row in bench.rows():
            writer.writerow(row)
            show(row)


if __name__ == "__main__":
    main()
