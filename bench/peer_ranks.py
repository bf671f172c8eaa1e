#!/usr/bin/env python3
"""A workload of workloads.py, full fine-tuning, by several processes over gloo: PyTorch's DDP or FSDP2, DeepSpeed's ZeRO.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... peer_ranks.py ddp|fsdp2|zero1|zero2|zero3 WORKLOAD MODEL_FOLDER
        ROWS.jsonl STEPS OUT.jsonl

The first process writes a line of JSON for each step into OUT, and one at the end with the versions."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import transformers
from transformers import AutoModelForCausalLM

from workloads import WORKLOADS

ADAMW = {"lr": 2e-5, "betas": (0.9, 0.999), "weight_decay": 0.01}


class Torch:
    """f32 masters; bf16 by autocast (DDP), or as what is gathered of the parameters (FSDP2)."""

    def __init__(self, how, model, world, rows):
        self.autocast = how == "ddp"
        if how == "ddp":
            self.net = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
            sharded = {"mesh": init_device_mesh("cpu", (world,)),
                       "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
            for layer in model.model.layers:
                fully_shard(layer, **sharded)
            self.net = fully_shard(model, **sharded)
        self.parameters = list(self.net.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, fused=True, **ADAMW)
        self.versions = ""

    def step(self, ids):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            loss = self.net(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


class DeepSpeed:
    """bf16 with f32 masters, of which the engine knows."""

    def __init__(self, how, model, world, rows):
        import deepspeed
        self.net, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
            "train_batch_size": rows, "train_micro_batch_size_per_gpu": rows // world, "gradient_clipping": 1.0,
            "bf16": {"enabled": True}, "zero_optimization": {"stage": int(how[-1]), "overlap_comm": False},
            "optimizer": {"type": "AdamW", "params": ADAMW | {"torch_adam": True}}})
        self.versions = f"deepspeed {deepspeed.__version__}, "

    def step(self, ids):
        loss = self.net(input_ids=ids, labels=ids).loss
        self.net.backward(loss)
        self.net.step()
        return loss


def main():
    how, name, folder, data, steps, out = sys.argv[1:7]
    w = WORKLOADS[name]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if how.startswith("zero"):
        import deepspeed
        deepspeed.init_distributed(dist_backend="gloo")
    else:
        dist.init_process_group("gloo")
    with open(data, encoding="utf-8") as lines:
        rows = [json.loads(line)["input_ids"] for line in lines]
    dtype = torch.bfloat16 if how.startswith("zero") else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    trainer = (DeepSpeed if how.startswith("zero") else Torch)(how, model.train(), world, w["rows"])
    own = w["rows"] // world
    for step in range(int(steps)):
        dist.barrier()
        begin = time.perf_counter()
        first = step * w["rows"] + rank * own
        loss = trainer.step(torch.tensor([rows[(first + i) % len(rows)] for i in range(own)])).detach().float()
        dist.barrier()
        took = time.perf_counter() - begin
        dist.all_reduce(loss)
        if rank == 0:
            with open(out, "a", encoding="utf-8") as lines:
                lines.write(json.dumps({"step": step + 1, "loss": loss.item() / world, "step_s": took}) + "\n")
    if rank == 0:
        with open(out, "a", encoding="utf-8") as lines:
            lines.write(json.dumps({"versions": trainer.versions
                                    + f"torch {torch.__version__}, transformers {transformers.__version__}"}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
