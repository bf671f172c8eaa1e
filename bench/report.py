#!/usr/bin/env python3
"""Writes what steps.py and ranks.py measured into docs/performance.md (between two marks each) and docs/performance.svg.

    report.py steps.csv ranks.csv docs/performance.md docs/performance.svg"""
import csv
import sys
from collections import OrderedDict

STEPS, RANKS, END = "<!-- table: bench/report.py -->", "<!-- table of processes: bench/report.py -->", "<!-- end of table -->"
# What a row of several processes is set beside: that of the peer which shares out as much.
RANKS_PEERS = {"plait-ddp": ("torch-ddp",), "plait-zero2": ("deepspeed-zero2",), "plait-zero3": ("torch-fsdp2", "deepspeed-zero3")}
COLORS = {"plait": "#1f6f8b", "peer": "#c9c9c9"}
BAR, GAP, LEFT, WIDTH = 14, 16, 210, 330


def cases(path):
    """{case: {program: row}}; a later row of the same case and program counts."""
    found = OrderedDict()
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            found.setdefault(row["case"], {})[row["program"]] = row
    return found


def ratio(programs, field):
    if "peer" not in programs:
        return ""
    return f"{float(programs['plait'][field]) / float(programs['peer'][field]):.2f}"


def table(found):
    lines = ["| workload | plait: s a step, tokens/s | of the floor | peak MiB (planned) | first step after | PyTorch: s a step, peak MiB "
             "| tokens/s, plait over PyTorch | memory, plait of PyTorch |",
             "|---|---|---|---|---|---|---|---|"]
    for case, programs in found.items():
        own, peer = programs["plait"], programs.get("peer")
        theirs = f"{float(peer['step_s_med']):.2f}, {peer['peak_mib']}" if peer else "not measured"
        lines.append(f"| {case} | {float(own['step_s_med']):.2f}, {own['tokens_per_s']} | {100 * float(own['floor_share']):.0f} % "
                     f"| {own['peak_mib']} ({own['planned_mib']}) | {own['first_step_s']} s | {theirs} "
                     f"| {ratio(programs, 'tokens_per_s')} | {ratio(programs, 'peak_mib')} |")
    any_row = next(iter(found.values()))["plait"]
    lines += ["", f"{any_row['machine']}; {any_row['threads']} threads; {any_row['versions']}; "
              + next((p["peer"]["versions"] for p in found.values() if "peer" in p), "") + f"; {any_row['date']}."]
    return "\n".join(lines)


def ranks_table(path):
    with open(path, newline="", encoding="utf-8") as lines:
        rows = {row["case"]: row for row in csv.DictReader(lines)}  # a later row of the same case counts
    lines = ["| | processes x threads | s a step | tokens/s | of one process | MiB together | tokens/s over the peer's, memory of the peer's |",
             "|---|---|---|---|---|---|---|"]
    for case, row in rows.items():
        beside = [f"{peer}: {float(row['tokens_per_s']) / float(rows[peer]['tokens_per_s']):.2f}, "
                  f"{float(row['pss_mib']) / float(rows[peer]['pss_mib']):.2f}" for peer in RANKS_PEERS.get(case, ()) if peer in rows]
        lines.append(f"| {case} | {row['processes']} x {row['threads']} | {float(row['step_s_med']):.2f} | {row['tokens_per_s']} "
                     f"| {100 * float(row['of_one_process']):.0f} % | {row['pss_mib']} | {'; '.join(beside)} |")
    versions = dict.fromkeys(row["versions"] for row in rows.values())
    any_row = next(iter(rows.values()))
    lines += ["", f"{any_row['machine']}; {'; '.join(versions)}; {any_row['date']}."]
    return "\n".join(lines)


def replace_table(text, mark, new):
    before, rest = text.split(mark)
    after = rest.split(END, 1)[1]
    return f"{before}{mark}\n{new}\n{END}{after}"


def bars(out, x, title, found, field):
    top = max(float(row[field]) for programs in found.values() for row in programs.values())
    out.append(f'<text x="{x}" y="20" font-weight="bold">{title}</text>')
    y = 36
    for programs in found.values():
        for program in ("plait", "peer"):
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


def main():
    steps, ranks, page, image = sys.argv[1:5]
    found = cases(steps)
    with open(page, encoding="utf-8") as lines:
        text = lines.read()
    text = replace_table(text, STEPS, table(found))
    with open(page, "w", encoding="utf-8") as lines:
        lines.write(replace_table(text, RANKS, ranks_table(ranks)))
    with open(image, "w", encoding="utf-8") as lines:
        lines.write(svg(found))


if __name__ == "__main__":
    main()
