#!/usr/bin/env python3
"""Writes bf16.tsv: how far transformers' own bf16 is from the exact values of the same bf16 weights, for the models of
models/, logits, loss and every gradient. Each number is the largest of several draws, in which every weight moves by up to
one rounding of bf16: they differ by chance alone. Needs torch and transformers; run it in this folder."""
import copy
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

DRAWS = 32
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()


class Float64(TorchFunctionMode):
    """Where a model asks for float32 (norms, rotary, softmax, loss), it gets float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        up = lambda a: torch.float64 if a is torch.float32 else a
        return func(*map(up, args), **{k: up(v) for k, v in (kwargs or {}).items()})


def inputs(e, dtype):
    given = dict(input_ids=e["input_ids"], labels=e["labels"])
    if "document" in e:
        doc, n = e["document"], e["document"].shape[1]
        allowed = (doc[:, :, None] == doc[:, None, :]) & torch.ones(n, n, dtype=torch.bool).tril()
        given["position_ids"] = e["position_ids"]
        given["attention_mask"] = torch.zeros(len(doc), 1, n, n, dtype=dtype).masked_fill(
            ~allowed[:, None], torch.finfo(dtype).min)
    return given


def run(case, e, state, dtype):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(case), dtype=dtype, attn_implementation="eager")
    model = model.eval()
    model.config.use_cache = False
    model.load_state_dict({k: v.to(dtype) for k, v in state.items()})
    r = model(**inputs(e, dtype))
    r.loss.backward()
    named = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in model.named_parameters()}
    out = {k: v.double() for k, v in revert_weight_conversion(model, named).items()}
    return {"logits": r.logits.detach().double(), "loss": r.loss.detach().double().reshape(1), **out}


def draw(case, weights, seed):
    g = torch.Generator().manual_seed(seed)
    e, state = load_file(case / "expected.safetensors"), {}
    for k, w in weights.items():
        moved = w * (1 + (torch.rand(w.shape, generator=g) - 0.5) * 2**-7) if seed else w
        state[k] = moved.to(torch.bfloat16)
    half = run(case, e, state, torch.bfloat16)
    torch.set_default_dtype(torch.float64)
    with Float64():
        exact = run(case, e, state, torch.float64)
    torch.set_default_dtype(torch.float32)
    return {k: ((half[k] - v).norm().item(), (half[k] - v).abs().max().item()) for k, v in exact.items()}


def main():
    rows = []
    for case in sorted(p for p in Path("models").iterdir() if (p / "expected.safetensors").exists()):
        config = AutoConfig.from_pretrained(case)
        if hasattr(config, "num_experts_per_tok"):
            continue
        model = AutoModelForCausalLM.from_pretrained(case, dtype=torch.float32)
        weights = copy.deepcopy(model.state_dict())
        draws = [draw(case, weights, seed) for seed in range(DRAWS)]
        for name in draws[0]:
            norm, element = (max(d[name][i] for d in draws) for i in range(2))
            rows.append(f"{case.name}\t{name}\t{norm:.3e}\t{element:.3e}")
        print(case.name, flush=True)
    Path("bf16.tsv").write_text("\n".join(["model\ttensor\tnorm\telement", *rows]) + "\n")


main()
