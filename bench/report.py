#!/usr/bin/env python3
"""Writes what steps.py measured into docs/performance.md (between its two marks) and docs/performance.svg.

    report.py steps.csv docs/performance.md docs/performance.svg"""
import csv
import sys
from collections import OrderedDict

BEGIN, END = "<!-- table: bench/report.py -->", "<!-- end of table -->"
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
    found = cases(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as page:
        text = page.read()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    with open(sys.argv[2], "w", encoding="utf-8") as page:
        page.write(f"{before}{BEGIN}\n{table(found)}\n{END}{after}")
    with open(sys.argv[3], "w", encoding="utf-8") as image:
        image.write(svg(found))


if __name__ == "__main__":
    main()
