#!/usr/bin/env python3
"""Copies reference values from the folder of golden values into tests/golden, as far as the tests need them.

    python3 import.py GOLDEN_DIR models/llama [adapters/llama/dora ...]

Tensors of f64 other than scalars become f32 (the tests' tolerances are above its rounding); everything else is copied.
"""
import json
import os
import shutil
import struct
import sys
from array import array

HERE = os.path.dirname(os.path.abspath(__file__))


def read(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        return header, file.read()


def narrow(source, target):
    header, data = read(source)
    metadata = header.pop("__metadata__", None)
    out, chunks, at = ({"__metadata__": metadata} if metadata else {}), [], 0
    for name, info in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
        begin, end = info["data_offsets"]
        chunk, dtype = data[begin:end], info["dtype"]
        if dtype == "F64" and end - begin > 64:
            values = array("d")
            values.frombytes(chunk)
            chunk, dtype = array("f", values).tobytes(), "F32"
        out[name] = {"dtype": dtype, "shape": info["shape"], "data_offsets": [at, at + len(chunk)]}
        chunks.append(chunk)
        at += len(chunk)
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def main(root, cases):
    for case in cases:
        target = os.path.join(HERE, case)
        os.makedirs(target, exist_ok=True)
        for name in sorted(os.listdir(os.path.join(root, case))):
            source = os.path.join(root, case, name)
            if name == "expected.safetensors":
                narrow(source, os.path.join(target, name))
            elif os.path.isfile(source):
                shutil.copyfile(source, os.path.join(target, name))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
