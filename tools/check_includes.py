#!/usr/bin/env python3
"""Checks the direction of includes: a folder of src/ includes only itself and those before it in ORDER."""
import pathlib
import re
import sys

ORDER = "base tensor device mem op comm disk model train data io infer plan api".split()
# The operators and the model know no communicator, but for the three files where a parameter may be split.
NO_COMM = {"op", "model"}
MAY_COMM = {"linear", "embedding", "head"}

src = pathlib.Path(__file__).resolve().parent.parent / "src"
faults = 0


def fault(path, line, text):
    global faults
    faults += 1
    print(f"{path.relative_to(src.parent)}:{line}: {text}", file=sys.stderr)


for path in sorted(src.rglob("*.[ch]")):
    folder = path.relative_to(src).parts[0]
    if folder not in ORDER:
        fault(path, 1, f"the folder {folder} has no place in the order: {' '.join(ORDER)}")
        continue
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not match or match[1] == "plait.h":
            continue
        included = match[1].split("/")[0]
        if not (src / match[1]).is_file():
            fault(path, number, f'"{match[1]}" is no file of src/; write the path from there')
        elif included not in ORDER:
            continue  # the folder itself is complained of above
        elif ORDER.index(included) > ORDER.index(folder):
            fault(path, number, f"{folder} may not include {included}, which comes after it")
        elif included == "comm" and folder in NO_COMM and path.stem not in MAY_COMM:
            fault(path, number, f"{folder} may not include comm, but for {', '.join(sorted(MAY_COMM))}")

sys.exit(1 if faults else 0)
