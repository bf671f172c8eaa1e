#!/usr/bin/env python3
"""What a second thread brings, to plait and to the matrix products alone: `make bench-threads`.

In a round one thread and two take turns, first the floor of steps.py and then plait."""
import statistics

from common import WARM_UP, Table, arguments, chosen, each
from steps import StepsBench
from workloads import WORKLOADS

CASES = ("w1-full-f32", "w1-lora-bf16")
COLUMNS = ["case", "threads", "rounds", "step_s_1", "step_s", "speedup", "floor_s_1", "floor_s", "floor_speedup"]
THREADS = 2


def measure(bench, name):
    w, floors, times = WORKLOADS[name], {1: [], THREADS: []}, {1: [], THREADS: []}
    for _ in range(bench.args.rounds):
        for threads in floors:
            floors[threads].append(bench.floor(w, {"OMP_NUM_THREADS": str(threads)})["floor_med_s"])
        for threads in times:
            run = bench.train(w, bench.args.steps + WARM_UP, ["--threads", str(threads)])
            times[threads] += [line["step_s"] for line in run.lines[WARM_UP:]]
    floor, step = ({threads: statistics.median(found) for threads, found in of.items()} for of in (floors, times))
    return {"case": name, "threads": THREADS, "rounds": bench.args.rounds, "step_s_1": f"{step[1]:.3f}", "step_s": f"{step[THREADS]:.3f}",
            "speedup": f"{step[1] / step[THREADS]:.2f}", "floor_s_1": f"{floor[1]:.3f}", "floor_s": f"{floor[THREADS]:.3f}",
            "floor_speedup": f"{floor[1] / floor[THREADS]:.2f}"} | bench.origin()


def main():
    args = arguments(__doc__, "threads.csv", rounds=(1, "rounds"), steps=(2, "steps of a run that count"),
                     passes=(2, "passes of the floor, at most"))
    bench, table = StepsBench(args), Table(args.out, ["case", "threads"], COLUMNS)

    def one(name):
        row = measure(bench, name)
        table.put(row)
        print(f"{name:16} {THREADS} threads: {row['speedup']} times as fast as one ({row['step_s']} s a step), the products alone "
              f"{row['floor_speedup']} times", flush=True)

    each(chosen(CASES, args), one)


if __name__ == "__main__":
    main()
