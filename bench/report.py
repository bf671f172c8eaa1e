#!/usr/bin/env python3
"""Writes what the benchmarks measured into docs/performance.md, between two marks each, and into docs/performance.svg.

    report.py FOLDER docs/performance.md docs/performance.svg

FOLDER has the CSV files; a table whose file is not there is left as it is. Those of a processor without AMX end in
-avx512: what is measured on one machine says little beside another."""
import csv
import os
import re
import sys

from phases import PHASES

END = "<!-- end of table -->"
# What a row of several processes is set beside: that of the peer which shares out as much.
RANKS_PEERS = {"plait-ddp": ("torch-ddp",), "plait-zero2": ("deepspeed-zero2",), "plait-zero3": ("torch-fsdp2", "deepspeed-zero3")}
PEERS = {"peer": "PyTorch", "compiled": "torch.compile", "trainer": "transformers' Trainer"}
WRITERS = {"plait": "plait", "peer": "transformers, growing cache", "peer-static": "transformers, static cache"}
COLORS = {"plait": "#1f6f8b", "peer": "#c9c9c9"}
BAR, GAP, LEFT, WIDTH = 14, 16, 210, 330


def markdown(head, rows, *found):
    """A table, and below it where its rows were measured."""
    seen = {field: list(dict.fromkeys(row[field] for row in found if row[field])) for field in ("machine", "versions", "date")}
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines + ["", "; ".join(seen["machine"] + seen["versions"] + seen["date"]) + "."])


def percent(share):
    return f"{100 * float(share):.0f} %"


def ratio(own, other, field):
    return f"{float(own[field]) / float(other[field]):.2f}"


def by_case(rows):
    """{case: {program: row}}"""
    found = {}
    for row in rows:
        found.setdefault(row["case"], {})[row["program"]] = row
    return found


def steps(rows):
    lines = []
    for case, programs in by_case(rows).items():
        own = programs["plait"]
        mine = [case, f"{float(own['step_s_med']):.2f}, {own['tokens_per_s']}", percent(own["floor_share"]),
                f"{own['peak_mib']} ({own['planned_mib']})", f"{own['first_step_s']} s"]
        peers = [program for program in PEERS if program in programs]
        for program in peers:
            row = programs[program]
            lines.append(mine + [f"{PEERS[program]}: {float(row['step_s_med']):.2f}, {row['peak_mib']}, {row['first_step_s']} s",
                                 ratio(own, row, "tokens_per_s"), ratio(own, row, "peak_mib"), ratio(row, own, "first_step_s")])
        lines += [] if peers else [mine + [""] * 4]
    return markdown(["workload", "plait: s a step, tokens/s", "of the floor", "peak MiB (planned)", "first step after",
                     "peer: s a step, peak MiB, first step after", "tokens/s, plait over the peer", "memory, plait of the peer",
                     "first step, times sooner"], lines, *rows)


def ranks(rows):
    cases, lines = {row["case"]: row for row in rows}, []
    for case, row in cases.items():
        beside = [f"{peer}: {ratio(row, cases[peer], 'tokens_per_s')}, {ratio(row, cases[peer], 'together_mib')}"
                  for peer in RANKS_PEERS.get(case, ()) if peer in cases]
        lines.append([case, f"{row['processes']} x {row['threads']}", f"{float(row['step_s_med']):.2f}", row["tokens_per_s"],
                      percent(row["of_one_process"]), row["together_mib"], "; ".join(beside)])
    return markdown(["", "processes x threads", "s a step", "tokens/s", "of one process", "MiB together",
                     "tokens/s over the peer's, memory of the peer's"], lines, *rows)


def phases(rows):
    names = [field for field in rows[0] if field in PHASES and any(float(row[field]) > 0 for row in rows)]
    lines = [[name] + [f"{100 * float(row[name]) / float(row['phases_s']):.1f} %" for row in rows] for name in names]
    lines += [["a step, s"] + [row["step_s"] for row in rows], ["its phases together, s"] + [row["phases_s"] for row in rows],
              ["busiest thread at work"] + [percent(row["most_busy_thread"]) for row in rows],
              ["least busy thread at work"] + [percent(row["least_busy_thread"]) for row in rows]]
    return markdown(["", *(row["case"] for row in rows)], lines, *rows)


def threads(rows):
    return markdown(["workload", "threads", "s a step with one thread", "with all", "times as fast", "the floor alone"],
                    [[row["case"], row["threads"], row["step_s_1"], row["step_s"], row["speedup"], row["floor_speedup"]] for row in rows], *rows)


def growth(rows):
    planned = [row for row in rows if row["case"] != "speed"]
    lines = [[f"{row['rows']} x {row['length']}", "every block" if row["case"].endswith("recompute") else "none", row["planned_mib"],
              row["mib_per_1024_more"]] for row in planned]
    text = markdown(["sequences x tokens", "recomputed", "planned MiB", "MiB for 1024 tokens more"], lines, *planned)
    timed = [row for row in rows if row["case"] == "speed"]
    lines = [[f"{row['rows']} x {row['length']}", row["step_s_med"], row["tokens_per_s"], percent(float(row["tokens_per_s"]) / float(timed[0]["tokens_per_s"])),
              row["gflop_per_s"], percent(float(row["gflop_per_s"]) / float(timed[0]["gflop_per_s"]))] for row in timed]
    speed = markdown(["sequences x tokens", "s a step", "tokens/s", "of the first", "GFLOP/s", "of the first"], lines, *timed) if timed else ""
    return speed + "\n\n" + text if timed and planned else speed or text


def start(rows):
    lines = [[row["case"], row["first_step_begins_s"], row["model_s"], row["data_s"], row["rest_s"], row["step_s"],
              f"{100 * float(row['data_share_of_step']):.2f} %"] for row in rows]
    return markdown(["cache of tokens", "first step begins after, s", "model, s", "data, s", "memory and weights, s", "s a step",
                     "of which it waits for data"], lines, *rows)


def offload(rows):
    lines = [[row["case"], row["step_s_med"], row["step_s_min"], row["peak_mib"], f"{row['read_mib']}, {row['written_mib']}", row["waited_s"],
              f"{100 * float(row['waited_share']):.1f} %"] for row in rows]
    return markdown(["on disk", "s a step", "best", "MiB of a process", "MiB read, written a step", "s waited for them", "of the step"], lines, *rows)


def generate(rows):
    lines = [[row["case"], WRITERS[row["program"]], row["new_tokens_per_s"], percent(row["limit_share"]), row["prompt_tokens_per_s"],
              row["peak_mib"], f"{row['first_token_s']} s"] for row in rows]
    return markdown(["texts", "", "new tokens/s", "of the memory's limit", "tokens of the prompt/s", "peak MiB", "first token after"],
                    lines, *rows)


TABLES = {"offload": offload, "steps": steps, "ranks": ranks, "phases": phases, "threads": threads, "growth": growth, "start": start,
          "generate": generate, "steps-avx512": steps, "ranks-avx512": ranks}


def bars(out, x, title, found, field):
    top = max(float(row[field]) for programs in found.values() for row in programs.values())
    out.append(f'<text x="{x}" y="20" font-weight="bold">{title}</text>')
    y = 36
    for programs in found.values():
        for program in COLORS:
            if program in programs:
                value = float(programs[program][field])
                width = value / top * (WIDTH - 60)
                out.append(f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{COLORS[program]}"/>'
                           f'<text x="{x + width + 4:.1f}" y="{y + BAR - 4}">{value:.0f}</text>')
            y += BAR
        y += GAP


def svg(found):
    height = 36 + len(found) * (2 * BAR + GAP) + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + 2 * WIDTH}" height="{height}" '
           'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>']
    for i, case in enumerate(found):
        out.append(f'<text x="8" y="{36 + i * (2 * BAR + GAP) + BAR + 2}">{case}</text>')
    bars(out, LEFT, "tokens/s", found, "tokens_per_s")
    bars(out, LEFT + WIDTH, "peak MiB", found, "peak_mib")
    for i, (program, label) in enumerate((("plait", "plait"), ("peer", "PyTorch, transformers, PEFT"))):
        out.append(f'<rect x="{LEFT + i * 90}" y="{height - 18}" width="10" height="10" fill="{COLORS[program]}"/>'
                   f'<text x="{LEFT + i * 90 + 14}" y="{height - 9}">{label}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def read(folder, name):
    path = os.path.join(folder, name + ".csv")
    if not os.path.exists(path):
        return []
    with open(path, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def main():
    folder, page, image = sys.argv[1:4]
    with open(page, encoding="utf-8") as lines:
        text = lines.read()
    for name, table in TABLES.items():
        rows, mark = read(folder, name), f"<!-- table of {name}: bench/report.py -->"
        if not rows:
            continue
        if mark not in text:
            sys.exit(f"{page} has no line '{mark}'")
        text = re.sub(re.escape(mark) + ".*?" + END, lambda _: f"{mark}\n{table(rows)}\n{END}", text, flags=re.S)
    with open(page, "w", encoding="utf-8") as lines:
        lines.write(text)
    with open(image, "w", encoding="utf-8") as lines:
        lines.write(svg(by_case(read(folder, "steps"))))


if __name__ == "__main__":
    main()
