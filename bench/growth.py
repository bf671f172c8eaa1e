#!/usr/bin/env python3
"""How speed and memory grow with the length of a sequence: `make bench-growth`.

Memory is planned, for one sequence of 1024 to 8192 tokens, with and without recomputation: more of it for each thousand
tokens must not be more at the end than at the beginning. Speed is measured for one sequence of 4096 tokens beside eight of
512, in turn; a token of the longer one costs more FLOPs in attention, so FLOP/s are compared as well, which sets those aside."""
import json
import statistics
import subprocess

from common import WARM_UP, Bench, Failed, Table, arguments, chosen, each
from workloads import WORKLOADS

LONG, SHORT = "w4-lora-bf16-4096", "w4-lora-bf16-8x512"
LENGTHS = (1024, 2048, 4096, 8192)
CASES = ("memory", "memory-recompute", "speed")
COLUMNS = ["case", "rows", "length", "planned_mib", "mib_per_1024_more", "step_s_med", "tokens_per_s", "gflop_per_s"]
LINEAR = 1.02  # a token more may cost so much of what it cost before; the parts of stacks are rounded up


def plan(bench, w):
    command = [bench.plait, "plan", *bench.train_arguments(w), "--train.steps", "1", "--json", "true"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory(bench, name):
    before = None
    for length in LENGTHS:
        w = WORKLOADS[LONG] | {"rows": 1, "length": length, "recompute": name.endswith("recompute")}
        mib = plan(bench, w)["peak_bytes"] / 2**20
        row = {"case": name, "rows": 1, "length": length, "planned_mib": f"{mib:.1f}"} | bench.origin()
        if before:
            more = (mib - before[1]) / ((length - before[0]) / 1024)
            row["mib_per_1024_more"] = f"{more:.1f}"
            if before[2] and more > LINEAR * before[2]:
                raise Failed(f"{name}: {more:.1f} MiB for 1024 tokens more at {length}, and {before[2]:.1f} before: not linear")
        before = (length, mib, before and more)
        yield row


def speed(bench):
    times, plans = {SHORT: [], LONG: []}, {name: plan(bench, WORKLOADS[name]) for name in (SHORT, LONG)}
    for _ in range(bench.args.rounds):
        for name in times:
            run = bench.train(WORKLOADS[name], bench.args.steps + WARM_UP)
            times[name] += [line["step_s"] for line in run.lines[WARM_UP:]]
    for name, found in times.items():
        w, median = WORKLOADS[name], statistics.median(found)
        yield {"case": "speed", "rows": w["rows"], "length": w["length"], "planned_mib": f"{plans[name]['peak_bytes'] / 2**20:.1f}",
               "step_s_med": f"{median:.3f}", "tokens_per_s": f"{w['rows'] * w['length'] / median:.0f}",
               "gflop_per_s": f"{plans[name]['step_flops'] / median / 1e9:.0f}"} | bench.origin()


def main():
    args = arguments(__doc__, "growth.csv", rounds=(2, "rounds"), steps=(3, "steps of a run that count"))
    bench, table = Bench(args), Table(args.out, ["case", "rows", "length"], COLUMNS)

    def one(name):
        for row in speed(bench) if name == "speed" else memory(bench, name):
            table.put(row)
            print(", ".join(f"{field} {row[field]}" for field in COLUMNS if row.get(field)), flush=True)

    each(chosen(CASES, args), one)


if __name__ == "__main__":
    main()
