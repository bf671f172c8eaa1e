#!/usr/bin/env python3
"""How fast several processes of one machine are, against one process with all its cores, and against PyTorch's DDP and
FSDP2 and DeepSpeed's ZeRO over gloo: `make bench-ranks`.

The workload is steps.py's w1-full-bf16 (4 x 512 tokens a step, in all processes together), and runs in rounds as there:
each program after the other, since the speed of a shared machine changes from minute to minute. Memory is the largest sum
that was seen of what all processes, starters included, hold at one time, with pages that several share counted once."""
import os
import re
import socket
import statistics
import subprocess
import time

from common import HERE, WARM_UP, Bench, Table, arguments, each
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
COLUMNS = ["case", "processes", "threads", "steps", "step_s_min", "step_s_med", "tokens_per_s", "of_one_process", "together_mib",
           "first_step_s", "loss", "others_cpu"]


PSS_EVERY = 1.5  # seconds; the kernel walks through all pages for it


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


def pss_kib(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            return int(re.search(r"^Pss:\s*(\d+)", lines.read(), re.M).group(1))
    except (OSError, AttributeError):
        return 0  # it has ended


class Together:
    """The most that some processes and all below them held at one time, pages that several share counted once."""

    def __init__(self):
        self.kib, self.looked = 0, 0

    def look(self, pids):
        if time.time() - self.looked > PSS_EVERY:
            self.looked = time.time()
            self.kib = max(self.kib, sum(pss_kib(pid) for pid in descendants(pids)))


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class RanksBench(Bench):
    def __init__(self, args):
        super().__init__(args)
        self.runs, self.versions, self.table = {}, {}, Table(args.out, ["case"], COLUMNS)

    def plait_ranks(self, w, ranks, more):
        shared = ["--train.micro_batch", str(ROWS // ranks), "--ranks", str(ranks)] if ranks > 1 else []
        memory = Together()
        run = self.train(w, self.args.steps + WARM_UP, shared + more, watch=memory.look)
        return run._replace(peak_mib=memory.kib / 1024), self.compiler

    def peer_ranks(self, w, ranks, more):
        out = self.path("peer.jsonl")
        command = [self.args.peer_python, os.path.join(HERE, "peer_ranks.py"), *more, WORKLOAD, self.folder(w), self.data(w),
                   str(self.args.steps + WARM_UP), out]
        common = self.peer_environment() | {
            "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": str(max(1, os.cpu_count() // ranks)), "GLOO_SOCKET_IFNAME": "lo"}
        memory = Together()
        run = self.run([command] * ranks, out, [common | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)], memory.look)
        return run._replace(peak_mib=memory.kib / 1024), run.lines.pop()["versions"]

    def has_deepspeed(self):
        found = subprocess.run([self.args.peer_python, "-c", "import deepspeed"], capture_output=True)
        if found.returncode != 0:
            print("DeepSpeed cannot be imported by the peer's Python, so its rows are left out", flush=True)
        return found.returncode == 0

    def cases(self):
        """One process is what the others are set beside, so it is always there, and first."""
        chosen = [name for name, case in CASES.items() if name == BASE
                  or (re.search(self.args.cases, name) and (case[0] == "plait" or self.args.peer_python))]
        deepspeed = any(name.startswith("deepspeed") for name in chosen) and self.has_deepspeed()
        return [name for name in chosen if deepspeed or not name.startswith("deepspeed")]

    def measure(self, name):
        program, ranks, more = CASES[name]
        run, self.versions[name] = (self.plait_ranks if program == "plait" else self.peer_ranks)(WORKLOADS[WORKLOAD], ranks, more)
        self.runs.setdefault(name, []).append(run)
        for case in self.runs if name == BASE else [name]:
            self.table.put(self.row(case))
        show(self.row(name))

    def times(self, name):
        return [line["step_s"] for run in self.runs[name] for line in run.lines[WARM_UP:]]

    def row(self, name):
        """Of all its runs so far."""
        runs, times, ranks = self.runs[name], self.times(name), CASES[name][1]
        median = statistics.median(times)
        share = f"{statistics.median(self.times(BASE)) / median:.3f}" if BASE in self.runs else ""
        return {"case": name, "processes": ranks, "threads": max(1, os.cpu_count() // ranks), "steps": len(times),
                "step_s_min": f"{min(times):.4f}", "step_s_med": f"{median:.4f}", "tokens_per_s": f"{TOKENS / median:.0f}",
                "of_one_process": share, "together_mib": f"{max(run.peak_mib for run in runs):.0f}",
                "first_step_s": f"{statistics.median(run.first_s for run in runs):.2f}", "loss": f"{runs[-1].lines[-1]['loss']:.5f}",
                "others_cpu": f"{statistics.median(run.others_cpu for run in runs):.2f}"} | self.origin(self.versions[name])


def show(row):
    share = f", {100 * float(row['of_one_process']):.0f} % of one process" if row["of_one_process"] else ""
    print(f"{row['case']:16} {row['processes']} x {row['threads']} {float(row['step_s_med']):8.3f} s a step (best "
          f"{float(row['step_s_min']):.3f}) {row['tokens_per_s']:>6} tokens/s{share}  {row['together_mib']:>6} MiB together  "
          f"others {row['others_cpu']}", flush=True)


def main():
    args = arguments(__doc__, "ranks.csv", rounds=(2, "rounds"), steps=(4, "steps of a run that count"))
    bench = RanksBench(args)
    each(bench.cases() * args.rounds, bench.measure)


if __name__ == "__main__":
    main()
