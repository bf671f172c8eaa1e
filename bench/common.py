"""What the benchmarks share: the machine, the workloads' models and data, processes that are watched, and CSV files."""
import argparse
import collections
import csv
import datetime
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import time

from workloads import MODELS, lengths

WARM_UP = 2  # steps
HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 400  # seconds that a program may take

Run = collections.namedtuple("Run", "lines peak_mib first_s others_cpu")


class Failed(Exception):
    """A program that failed; its text is the program's last words."""


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


def held_back(w):
    """The environment in which oneDNN, and plait with it, use no more of the processor than the workload says."""
    return {"ONEDNN_MAX_CPU_ISA": w["isa"]} if w and w.get("isa") else {}


def busy_seconds():
    """Of all processors, since the machine started: what is neither idle nor waiting."""
    with open("/proc/stat", encoding="utf-8") as lines:
        v = [int(x) for x in lines.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """Of this process and of its children that have ended, with theirs."""
    return sum(os.times()[:4])


def json_lines(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class Bench:
    def __init__(self, args):
        self.args = args
        os.makedirs(args.work, exist_ok=True)
        self.plait = os.path.join(args.build, "plait")
        self.commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        with open(os.path.join(args.build, "CMakeCache.txt"), encoding="utf-8") as lines:
            compiler = re.search(r"CMAKE_C_COMPILER:\w+=(.*)", lines.read()).group(1)
        self.compiler = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
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

    def train_arguments(self, w):
        """What tells plait to train a workload on its model and data; not how long, and into which folder."""
        arguments = ["--model", self.folder(w), "--data", self.data(w), "--data.shuffle", "false", "--data.sequence_length",
                     str(max(lengths(w, 128))), "--train.micro_batch", str(w["rows"]), "--optimizer.lr", "2e-5", "--precision",
                     w["precision"], "--checkpoint.every", "0", "--method", "full" if w["method"] == "full" else "lora"]
        if w["method"] != "full":
            targets = "all-linear" if w["targets"] == "all" else "q_proj,v_proj"
            arguments += ["--lora.r", str(w["rank"]), "--lora.alpha", str(w["rank"]), "--lora.targets", targets,
                          "--lora.dora", str(w["method"] == "dora").lower()]
        return arguments + (["--memory.recompute", "full"] if w["recompute"] else [])

    def train(self, w, steps, more=(), environment=None, watch=None):
        """A run of plait, into a new folder."""
        output = self.path("out")
        shutil.rmtree(output, ignore_errors=True)
        command = [self.plait, "train", *self.train_arguments(w), "--train.steps", str(steps), "--output", output, *more]
        return self.run([command], os.path.join(output, "metrics.jsonl"), [held_back(w) | (environment or {})], watch)

    def peer_environment(self, preload=True):
        offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return offline | ({"LD_PRELOAD": self.args.preload} if preload and self.args.preload else {})

    def run(self, commands, lines_path, environments, watch=None):
        """Runs programs, one or several that work together, the first of which writes lines of JSON, one a step. Peak memory
        is the largest resident maximum of one of them. Meanwhile watch(ids of those that run) is called over and over.
        Without lines_path it is what they print that is waited for, and there are no lines."""
        first, peak_kib, log = None, 0, self.path("log")
        awaited = lines_path or log
        if os.path.exists(awaited):
            os.remove(awaited)
        begin, busy, own = time.time(), busy_seconds(), own_seconds()
        with open(log, "w", encoding="utf-8") as out:
            running = [subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | environment)
                       for command, environment in zip(commands, environments)]
        failed = None
        while running:
            for process in list(running):
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    running.remove(process)
                    peak_kib = max(peak_kib, usage.ru_maxrss)
                    failed = failed or (process.returncode and f"ended with status {process.returncode}")
            if time.time() - begin > LIMIT:
                failed = failed or f"did not end within {LIMIT} s"
            if failed:
                for process in running:
                    process.kill()
            if first is None and os.path.exists(awaited) and os.path.getsize(awaited) > 0:
                first = time.time() - begin
            if watch:
                watch([process.pid for process in running])
            time.sleep(0.005)
        if failed or first is None:
            with open(log, encoding="utf-8", errors="replace") as text:
                raise Failed(f"{' '.join(commands[0])}\n{failed or 'wrote no line'}\n{text.read()[-4000:]}")
        wall = time.time() - begin
        others = (busy_seconds() - busy - (own_seconds() - own)) / wall
        return Run(json_lines(lines_path) if lines_path else [], peak_kib / 1024, first, others)

    def log_text(self):
        """What the last run said."""
        with open(self.path("log"), encoding="utf-8") as lines:
            return lines.read()

    def origin(self, versions=None, w=None):
        """The columns that say where and of what a row was measured."""
        held = f", held to {w['isa']}" if held_back(w) else ""
        return {"machine": self.machine + held, "versions": versions or self.compiler, "commit": self.commit,
                "date": datetime.date.today().isoformat()}


ORIGIN = ["machine", "versions", "commit", "date"]


class Table:
    """A CSV file that is whole after each row. A row takes the place of an earlier one with the same key."""

    def __init__(self, path, keys, columns):
        self.path, self.keys, self.columns, self.rows = path, keys, columns + ORIGIN, {}
        if os.path.exists(path):
            with open(path, newline="", encoding="utf-8") as lines:
                for row in csv.DictReader(lines):
                    self.put_aside(row)

    def put_aside(self, row):
        self.rows[tuple(str(row.get(key)) for key in self.keys)] = row

    def put(self, row):
        self.put_aside(row)
        with open(self.path + ".new", "w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, self.columns, extrasaction="ignore", restval="")
            writer.writeheader()
            writer.writerows(self.rows.values())
        os.replace(self.path + ".new", self.path)


def arguments(doc, out, **defaults):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="where plait was built")
    parser.add_argument("--work", default="build/bench", help="folder for models, data and logs")
    parser.add_argument("--out", help=f"the CSV file [WORK/{out}]")
    parser.add_argument("--peer-python", help="a Python with the peers; without it plait runs alone")
    parser.add_argument("--preload", help="a library for the peers, as libtcmalloc_minimal.so.4")
    parser.add_argument("--cases", default=".", help="a regular expression that finds some by name")
    for name, (value, text) in defaults.items():
        parser.add_argument("--" + name, type=type(value), default=value, help=f"{text} [{value}]")
    args = parser.parse_args()
    args.out = args.out or os.path.join(args.work, out)
    return args


def chosen(names, args):
    found = [name for name in names if re.search(args.cases, name)]
    if not found:
        sys.exit(f"no case is named like '{args.cases}'; there are {', '.join(names)}")
    return found


def each(names, measure):
    """measure(name) for each. What fails is told, and the others go on; the exit status says it."""
    failed = []
    for name in names:
        try:
            measure(name)
        except (Failed, subprocess.CalledProcessError) as error:
            failed.append(name)
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
