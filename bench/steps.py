#!/usr/bin/env python3
"""How long training steps take, against the floor that their matrix products set, and against PyTorch: `make bench`
and `make bench-peers`.

Each workload runs in rounds; a round is the floor, plait and, with --peer-python, its peers, one after another, since the
speed of a shared machine changes from minute to minute. Each run is a process of its own: its steps without the first
two, the time from its start to the end of its first step, and its largest resident memory go into one row of CSV. Only
tokens of the data count, never padding."""
import json
import os
import statistics
import subprocess

from common import HERE, WARM_UP, Bench, Failed, Table, arguments, chosen, each, held_back
from workloads import WORKLOADS, lengths

COLUMNS = ["case", "program", "steps", "step_s_min", "step_s_med", "tokens_per_s", "floor_share", "floor_s", "gflop",
           "peak_mib", "planned_mib", "first_step_s", "loss", "others_cpu", "threads"]
FEWEST_STEPS = 2
REAL = "smollm2-135m"  # whose weights --model gives


class StepsBench(Bench):
    compiled = set()  # workloads that torch.compile has met

    def folder(self, w):
        return self.args.model or super().folder(w)

    def floor(self, w, more=None):
        command = [os.path.join(self.args.build, "bench_floor"), self.config(w), w["method"], w["precision"], str(w["rows"]),
                   str(round(statistics.mean(lengths(w, 128)))), str(w["rank"]), w["targets"], str(w["recompute"]).lower(), str(self.args.passes)]
        environment = os.environ | held_back(w) | (more or {})
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)

    def peer(self, program, name, w, steps):
        """Returns its run and its versions. The Trainer runs as its users run it, without another allocator. What is compiled
        runs once before it counts, so that neither time nor memory are the compiler's."""
        lines = self.path("peer.jsonl")
        environment = self.peer_environment(preload=program != "trainer") | {"TORCHINDUCTOR_CACHE_DIR": self.path("inductor")}

        def run(steps):
            command = [self.args.peer_python, os.path.join(HERE, "peer.py"), name, self.folder(w), self.data(w), str(steps), lines, program]
            return self.run([command], lines, [environment])

        if program == "compiled" and name not in self.compiled:
            run(WARM_UP)
            self.compiled.add(name)
        found = run(steps)
        return found, found.lines.pop()["versions"]

    def measure(self, name, w):
        """Rounds of all programs, and a row for each."""
        runs, versions, floors, steps = {}, {"plait": self.compiler}, [], 0
        for _ in range(self.args.rounds):
            floors.append(self.floor(w))
            steps = steps or max(FEWEST_STEPS, min(self.args.steps, round(self.args.seconds / floors[0]["floor_s"])))
            runs.setdefault("plait", []).append(self.train(w, steps + WARM_UP))
            for program in w["peers"] if self.args.peer_python else ():
                run, versions[program] = self.peer(program, name, w, steps + WARM_UP)
                runs.setdefault(program, []).append(run)
        floor = statistics.median(f["floor_med_s"] for f in floors)
        used = lengths(w, w["rows"] * (steps + WARM_UP))
        for program, found in runs.items():
            lines = [line for run in found for line in run.lines]
            targets = sum(line["tokens"] for line in lines)
            if targets != len(found) * sum(n - 1 for n in used):
                raise Failed(f"{program} trained {targets} tokens, not {len(found) * sum(n - 1 for n in used)}")
            times = [line["step_s"] for run in found for line in run.lines[WARM_UP:]]
            tokens = sum(used[w["rows"] * WARM_UP:]) / steps
            median = statistics.median(times)
            yield {"case": name + ("-real" if self.args.model else ""), "program": program, "steps": len(times), "step_s_min": f"{min(times):.4f}",
                   "step_s_med": f"{median:.4f}", "tokens_per_s": f"{tokens / statistics.mean(times):.0f}",
                   "floor_share": f"{floor / median:.3f}", "floor_s": f"{floor:.4f}", "gflop": f"{floors[0]['gflop']:.0f}",
                   "peak_mib": f"{max(run.peak_mib for run in found):.0f}",
                   "planned_mib": f"{max(line['peak_bytes'] for line in lines) / 2**20:.0f}" if program == "plait" else "",
                   "first_step_s": f"{statistics.median(run.first_s for run in found):.2f}", "loss": f"{lines[-1]['loss']:.5f}",
                   "others_cpu": f"{statistics.median(run.others_cpu for run in found):.2f}",
                   "threads": os.environ.get("OMP_NUM_THREADS", os.cpu_count())} | self.origin(versions[program], w)


def show(row):
    share = f"{100 * float(row['floor_share']):.0f} % of the floor's speed"
    print(f"{row['case']:27} {row['program']:8} {float(row['step_s_med']):8.3f} s a step (best {float(row['step_s_min']):.3f})"
          f" {int(row['tokens_per_s']):6} tokens/s  {share}  {row['peak_mib']:>5} MiB  first step after {row['first_step_s']} s",
          flush=True)


def main():
    args = arguments(__doc__, "steps.csv", rounds=(2, "rounds"), steps=(5, "steps of a run that count, at most"),
                     seconds=(10.0, "seconds that those should take by the floor's time; 2 steps at least"),
                     passes=(3, "passes of the floor, at most"),
                     model=("", f"folder of a real {REAL}, for its cases alone; their rows end in -real"))
    bench, table = StepsBench(args), Table(args.out, ["case", "program"], COLUMNS)

    def measure(name):
        for row in bench.measure(name, WORKLOADS[name]):
            table.put(row)
            show(row)

    each([name for name in chosen(WORKLOADS, args) if not args.model or WORKLOADS[name]["model"] == REAL], measure)


if __name__ == "__main__":
    main()
