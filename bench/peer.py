#!/usr/bin/env python3
"""A workload of workloads.py by transformers and PEFT: by a loop of its own, as fast as they go (fused AdamW, sdpa, autocast
for bf16), the same with torch.compile, or by transformers' Trainer, as most people use them.

    peer.py WORKLOAD MODEL_FOLDER ROWS.jsonl STEPS OUT.jsonl peer|compiled|trainer

Writes a line of JSON for each step, as metrics.jsonl has them, and one at the end with the versions."""
import json
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM

from workloads import WORKLOADS

ADAMW = {"lr": 2e-5, "betas": (0.9, 0.999), "weight_decay": 0.01}


def model_for(w, folder):
    # Full fine-tuning keeps f32 masters, by autocast; an adapter's base is bf16 and its weights are f32.
    dtype = torch.bfloat16 if w["method"] != "full" and w["precision"] == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    if w["method"] != "full":
        from peft import LoraConfig, get_peft_model
        targets = "all-linear" if w["targets"] == "all" else ["q_proj", "v_proj"]
        model = get_peft_model(model, LoraConfig(r=w["rank"], lora_alpha=w["rank"], target_modules=targets,
                                                 use_dora=w["method"] == "dora", task_type="CAUSAL_LM"))
    if w["recompute"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if w["method"] != "full":
            model.enable_input_require_grads()
    return model.train()


def padded(rows):
    """A batch as transformers' collators make it: every row as long as the longest."""
    longest = max(len(row) for row in rows)
    if all(len(row) == longest for row in rows):
        ids = torch.tensor(rows)
        return {"input_ids": ids, "labels": ids}
    return {"input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows]),
            "labels": torch.tensor([row + [-100] * (longest - len(row)) for row in rows])}


def tell(path, **line):
    with open(path, "a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")


def loop(w, model, rows, steps, out):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True, **ADAMW)
    for step in range(steps):
        begin = time.perf_counter()
        batch = padded([rows[(step * w["rows"] + i) % len(rows)] for i in range(w["rows"])])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=w["precision"] == "bf16"):
            loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tell(out, step=step + 1, loss=loss.item(), grad_norm=norm.item(), step_s=time.perf_counter() - begin,
             tokens=(batch["labels"][:, 1:] >= 0).sum().item())


def by_trainer(w, model, rows, steps, out):
    class Teller(transformers.TrainerCallback):
        def on_train_begin(self, *_, **__):
            self.mark = time.perf_counter()

        def on_log(self, args, state, control, logs=None, **_):
            now = time.perf_counter()
            if "loss" in logs:
                tell(out, step=state.global_step, loss=logs["loss"], step_s=now - self.mark, tokens=w["rows"] * (w["length"] - 1))
            self.mark = now

    settings = transformers.TrainingArguments(
        output_dir=out + ".trainer", max_steps=steps, per_device_train_batch_size=w["rows"], bf16=w["precision"] == "bf16",
        use_cpu=True, optim="adamw_torch_fused", learning_rate=ADAMW["lr"], weight_decay=ADAMW["weight_decay"],
        lr_scheduler_type="constant", train_sampling_strategy="sequential", logging_steps=1, report_to=[], save_strategy="no")
    transformers.Trainer(model=model, args=settings, callbacks=[Teller()],
                         train_dataset=[{"input_ids": row, "labels": row} for row in rows]).train()


def main():
    name, folder, data, steps, out, how = sys.argv[1:7]
    w = WORKLOADS[name]
    with open(data, encoding="utf-8") as lines:
        rows = [json.loads(line)["input_ids"] for line in lines]
    model = model_for(w, folder)
    if how == "compiled":
        model.compile()
    (by_trainer if how == "trainer" else loop)(w, model, rows, int(steps), out)
    tell(out, versions=f"torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
