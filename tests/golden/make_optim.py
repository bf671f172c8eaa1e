"""Ten steps of torch.optim's AdamW and SGD in float64, from f32 inputs: writes optim/optim.safetensors and optim/cases.json.

Needs torch and safetensors; the tests need neither.  python make_optim.py
"""

import json
import pathlib

import torch
from safetensors.torch import save_file

STEPS, SIZE = 10, 77
CASES = {
    "adamw": dict(lr=0.01, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1),
    "adamw-defaults": dict(lr=0.001, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01),
    "adamw-large-eps": dict(lr=0.02, betas=[0.8, 0.99], eps=1e-2, weight_decay=0.0),
    "sgd": dict(lr=0.05),
    "sgd-l2": dict(lr=0.05, weight_decay=0.1),
    "sgd-momentum": dict(lr=0.05, momentum=0.9, weight_decay=0.01),
    "sgd-nesterov": dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
}


def run(name, settings, start, grads):
    """The parameter after each step, [steps, size], and the final states."""
    p = start.double().clone().requires_grad_()
    cls = torch.optim.AdamW if name.startswith("adamw") else torch.optim.SGD
    optimizer = cls([p], **settings)
    after = []
    for g in grads.double():
        p.grad = g.clone()
        optimizer.step()
        after.append(p.detach().clone())
    return torch.stack(after)


def main():
    here = pathlib.Path(__file__).parent / "optim"
    generator = torch.Generator().manual_seed(20)
    start = torch.randn(SIZE, generator=generator)
    grads = torch.randn(STEPS, SIZE, generator=generator) * torch.logspace(-3, 1, SIZE)
    tensors = {"start": start, "grads": grads}
    for name, settings in CASES.items():
        tensors[name] = run(name, settings, start, grads).float()
    save_file(tensors, here / "optim.safetensors")
    (here / "cases.json").write_text(json.dumps(CASES, indent=1) + "\n")


if __name__ == "__main__":
    main()
