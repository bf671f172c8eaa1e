#!/usr/bin/env python3
"""Text by transformers' generate: greedy, bf16, sdpa, with a cache that grows or one of fixed size.

    peer_generate.py MODEL_FOLDER BATCH PROMPT NEW dynamic|static OUT.jsonl

Writes a line of JSON when the first token is there, and one with the best speeds of some repeats: of reading the
prompt, and of writing the new tokens after the first."""
import json
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM

REPEATS = 3
ENOUGH = 20  # seconds, after which no further repeat begins


def main():
    folder, batch, prompt, new, cache, out = sys.argv[1:7]
    batch, prompt, new = int(batch), int(prompt), int(new)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    ids = torch.randint(0, model.config.vocab_size, (batch, prompt), generator=torch.Generator().manual_seed(1))
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    if cache == "static":
        settings["cache_implementation"] = "static"

    def seconds(tokens):
        begin = time.perf_counter()
        written = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, **settings)
        assert written.shape == (batch, prompt + tokens)
        return time.perf_counter() - begin

    with torch.inference_mode(), open(out, "w", encoding="utf-8") as lines:
        seconds(1)
        print(json.dumps({"first": True}), file=lines, flush=True)
        seconds(new)
        read, wrote = [], []
        begin = time.perf_counter()
        while len(read) < REPEATS and (not read or time.perf_counter() - begin < ENOUGH):
            read.append(seconds(1))
            wrote.append(seconds(new) - read[-1])
        print(json.dumps({"prompt_tokens_per_s": batch * prompt / min(read), "new_tokens_per_s": batch * (new - 1) / min(wrote),
                          "versions": f"torch {torch.__version__}, transformers {transformers.__version__}"}), file=lines)


if __name__ == "__main__":
    main()
