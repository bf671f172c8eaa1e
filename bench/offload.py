#!/usr/bin/env python3
"""What offload to disk costs a step, and how much of the disk's time is hidden behind computing: `make bench-more`.

w1-full-bf16 by two processes of ZeRO-3, with what lies on disk told by the case. They must reach the same loss to the last digit. The first
process's waits are told; what it moved while it did not wait was hidden. Memory is the plan's, of each process."""
import statistics

from common import WARM_UP, Bench, Failed, Table, arguments, chosen, each
from workloads import WORKLOADS

WORKLOAD = "w1-full-bf16"
RANKS = 2
CASES = {
    "memory": [],
    "optimizer": ["--memory.offload.optimizer", "disk"],
    "params": ["--memory.offload.params", "disk"],
    "both": ["--memory.offload.optimizer", "disk", "--memory.offload.params", "disk"],
}
COLUMNS = ["case", "steps", "step_s_min", "step_s_med", "peak_mib", "read_mib", "written_mib", "waited_s", "waited_share", "loss"]


def measure(bench, name):
    w = WORKLOADS[WORKLOAD]
    shared = ["--ranks", str(RANKS), "--train.micro_batch", str(w["rows"] // RANKS), "--parallel.zero", "3"]
    lines = bench.train(w, bench.args.steps + WARM_UP, shared + CASES[name]).lines
    counted = lines[WARM_UP:]
    moved = [line.get("disk_bytes", {"read": 0, "written": 0}) for line in counted]
    waited = [line.get("disk_waited_s", 0) for line in counted]
    return {"case": name, "steps": len(counted), "step_s_min": f"{min(line['step_s'] for line in counted):.3f}",
            "step_s_med": f"{statistics.median(line['step_s'] for line in counted):.3f}",
            "peak_mib": f"{max(line['peak_bytes'] for line in lines) / 2**20:.0f}",
            "read_mib": f"{statistics.mean(bytes['read'] for bytes in moved) / 2**20:.0f}",
            "written_mib": f"{statistics.mean(bytes['written'] for bytes in moved) / 2**20:.0f}",
            "waited_s": f"{statistics.mean(waited):.3f}",
            "waited_share": f"{sum(waited) / sum(line['step_s'] for line in counted):.4f}",
            "loss": repr(lines[-1]["loss"])} | bench.origin()


def main():
    args = arguments(__doc__, "offload.csv", steps=(4, "steps of a run that count"))
    bench, table, losses = Bench(args), Table(args.out, ["case"], COLUMNS), {}

    def one(name):
        row = measure(bench, name)
        losses[name] = row["loss"]
        if len(set(losses.values())) > 1:
            raise Failed(f"the losses of the last step differ: {losses}")
        table.put(row)
        print(f"{name:9} {row['step_s_med']} s a step (best {row['step_s_min']}), {row['peak_mib']} MiB each; reads {row['read_mib']} and writes "
              f"{row['written_mib']} MiB, and waits {row['waited_s']} s for it ({100 * float(row['waited_share']):.1f} %); loss {row['loss']}", flush=True)

    each(chosen(list(CASES), args), one)


if __name__ == "__main__":
    main()
