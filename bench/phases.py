#!/usr/bin/env python3
"""What a step's time goes into, as --log.profile tells it, and how busy each thread is: `make bench-phases`.

The phases of a step, added up, must be its time to 3 %. How busy the threads are is seen in a run of its own in which a
thread that waits sleeps (OMP_WAIT_POLICY=passive): the kernel counts how long each was on a processor or stood in line
for one, so what is missing to 100 % of the least busy one is what others did alone, or what was shared out unevenly."""
import os
import re
import statistics

from common import WARM_UP, Bench, Failed, Table, arguments, chosen, each
from workloads import WORKLOADS

CASES = ("w1-full-f32", "w1-full-bf16", "w1-lora-bf16", "w2-full-f32-256", "w3-lora-bf16")
PHASES = ("data", "zero gradients", "forward embedding", "forward blocks", "forward head, loss", "recompute", "backward head",
          "backward blocks", "backward embedding", "gradient norm", "checkpoint", "optimizer")
COLUMNS = ["case", "step_s", "phases_s", *PHASES, "most_busy_thread", "least_busy_thread", "threads"]
MISSING = 0.03


def profile(text):
    """Of the steps after those to warm up: the mean seconds of a step, of its phases together, and of each."""
    steps = [[float(x) for x in found] for found in re.findall(r"^step \d+: (\S+) s in phases, of (\S+) s$", text, re.M)][WARM_UP:]
    seconds = {name: [] for name in PHASES}
    for name, value in re.findall(r"^  (\S.*?) +(\d+\.\d+) s +\d+\.\d+ %$", text, re.M):
        seconds[name].append(float(value))
    of_phase = {name: sum(values[WARM_UP:]) / len(steps) for name, values in seconds.items()}
    return statistics.mean(whole for _, whole in steps), statistics.mean(phases for phases, _ in steps), of_phase


class Threads:
    """How long each thread of a process was on a processor, or in line for one, between two steps' ends."""

    def __init__(self, lines_path, first, last):
        self.path, self.first, self.last, self.begin, self.end = lines_path, first, last, None, None

    def look(self, pids):
        done = 0
        if os.path.exists(self.path):
            with open(self.path, "rb") as lines:
                done = lines.read().count(b"\n")
        if done < self.first or done > self.last or not pids or (done == self.last and self.end):
            return
        try:
            now = {}
            for task in os.listdir(f"/proc/{pids[0]}/task"):
                with open(f"/proc/{pids[0]}/task/{task}/schedstat", encoding="ascii") as stat:
                    now[task] = sum(int(ns) for ns in stat.read().split()[:2]) / 1e9
        except OSError:
            return  # it ends
        if done == self.last:
            self.end = now
        self.begin = self.begin or now

    def busy(self, seconds, threads):
        """Shares of the time of those that computed, the busiest first."""
        if not self.end:
            raise Failed("the threads of the run could not be watched")
        return sorted(((self.end[task] - self.begin.get(task, 0)) / seconds for task in self.end), reverse=True)[:threads]


def measure(bench, name):
    w, steps, threads = WORKLOADS[name], bench.args.steps + WARM_UP, int(os.environ.get("OMP_NUM_THREADS", os.cpu_count()))
    bench.train(w, steps, ["--log.profile", "true", "--log.every", "1"])
    step, phases, of_phase = profile(bench.log_text())
    if abs(phases / step - 1) > MISSING:
        raise Failed(f"the phases of a step take {phases:.3f} s, and the step {step:.3f} s")
    watch = Threads(bench.path("out", "metrics.jsonl"), WARM_UP, steps)
    lines = bench.train(w, steps, environment={"OMP_WAIT_POLICY": "passive"}, watch=watch.look).lines
    busy = watch.busy(sum(line["step_s"] for line in lines[WARM_UP:]), threads)
    return ({"case": name, "step_s": f"{step:.3f}", "phases_s": f"{phases:.3f}", "threads": threads,
             "most_busy_thread": f"{busy[0]:.3f}", "least_busy_thread": f"{busy[-1]:.3f}"}
            | {phase: f"{of_phase[phase]:.4f}" for phase in PHASES} | bench.origin())


def show(row):
    parts = sorted(((float(row[phase]), phase) for phase in PHASES), reverse=True)[:5]
    print(f"{row['case']:16} {row['step_s']} s a step, {row['phases_s']} in phases: "
          + ", ".join(f"{phase} {100 * s / float(row['phases_s']):.0f} %" for s, phase in parts)
          + f"; threads busy {100 * float(row['most_busy_thread']):.0f} and {100 * float(row['least_busy_thread']):.0f} %", flush=True)


def main():
    args = arguments(__doc__, "phases.csv", steps=(3, "steps of a run that count"))
    bench, table = Bench(args), Table(args.out, ["case"], COLUMNS)

    def one(name):
        row = measure(bench, name)
        table.put(row)
        show(row)

    each(chosen(CASES, args), one)


if __name__ == "__main__":
    main()
