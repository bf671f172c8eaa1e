#!/usr/bin/env python3
"""plait against transformers and PEFT on a real model: `make interop`.

    interop.py --plait build/plait --model SmolLM2-135M --data gsm8k/train.jsonl --work build/interop [--steps 20]

Tokenizes questions and answers once and trains on the same rows with both, in f32: LoRA (r = 16, every linear layer)
and all weights. Compares the loss of every step to 1e-4 relative and the gradient norms to 1e-3, loads plait's adapter
in PEFT and its model folder in transformers, and compares their logits with those that the peer trained.
Exit status 0 when everything agrees.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler

MICRO_BATCH, ACCUMULATION, LENGTH = 2, 1, 256
LR = {"lora": 1e-3, "full": 2e-5}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
failures = []


def verdict(what, worst, bound):
    print(f"{'ok  ' if worst <= bound else 'FAIL'} {what}: {worst:.2e} (at most {bound:.0e})", flush=True)
    if not worst <= bound:
        failures.append(what)


def make_rows(args):
    """Rows as both sides read them: the answer is trained, and the end of text after it."""
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    rows = []
    with open(args.data, encoding="utf-8") as lines:
        for line in lines:
            example = json.loads(line)
            prompt = tokenizer(example["question"] + "\n", add_special_tokens=False).input_ids
            answer = tokenizer(example["answer"], add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
            ids, labels = prompt + answer, [-100] * len(prompt) + answer
            rows.append({"input_ids": ids[:LENGTH], "labels": labels[:LENGTH]})
            if len(rows) == args.steps * MICRO_BATCH * ACCUMULATION:
                break
    path = os.path.join(args.work, "rows.jsonl")
    with open(path, "w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")
    return path, rows


def run_plait(args, method, rows, adapter=None):
    output = os.path.join(args.work, "plait-" + method)
    shutil.rmtree(output, ignore_errors=True)
    command = [args.plait, "train", "--model", args.model, "--data", rows, "--output", output, "--method", method,
               "--train.steps", str(args.steps), "--train.micro_batch", str(MICRO_BATCH), "--train.accumulation",
               str(ACCUMULATION), "--data.sequence_length", str(LENGTH), "--data.shuffle", "false", "--optimizer.lr",
               str(LR[method]), "--optimizer.weight_decay", "0.01", "--optimizer.betas", "0.9,0.999", "--optimizer.eps", "1e-8",
               "--train.clip", "1.0", "--scheduler.name", "cosine", "--scheduler.warmup_steps", "2"]
    if adapter:
        command += ["--adapter", adapter]
    elif method == "lora":
        command += ["--lora.r", "16", "--lora.alpha", "32", "--lora.targets", "all-linear"]
    print("$", " ".join(command), flush=True)
    subprocess.run(command, check=True)
    with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as lines:
        return output, [json.loads(line) for line in lines]


def base_model(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")


def step_loss(model, rows):
    """The sum of the token losses over the step's targets, row by row, so that nothing is padded."""
    targets = sum(sum(label != -100 for label in row["labels"][1:]) for row in rows)
    total = 0.0
    for row in rows:
        logits = model(torch.tensor([row["input_ids"]])).logits[0, :-1].float()
        labels = torch.tensor(row["labels"][1:])
        loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / targets
        if loss.requires_grad:
            loss.backward()
        total += loss.item()
    return total


def train_peer(args, model, rows, lr):
    """AdamW as plait documents it: decay on tensors of two dimensions or more, clipping by torch."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.ndim >= 2], "weight_decay": 0.01},
              {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=(0.9, 0.999), eps=1e-8)
    scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=args.steps)
    metrics = []
    model.train()
    for step in range(args.steps):
        n = MICRO_BATCH * ACCUMULATION
        used = optimizer.param_groups[0]["lr"]
        loss = step_loss(model, rows[step * n:(step + 1) * n])
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0).item()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        metrics.append({"loss": loss, "grad_norm": norm, "lr": used})
        print(f"peer step {step + 1}: loss {loss:.7f} grad_norm {norm:.6f}", flush=True)
    model.eval()
    return metrics


def compare_metrics(method, ours, theirs):
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    for name, bound in (("loss", 1e-4), ("grad_norm", 1e-3), ("lr", 1e-9)):
        worst = max(abs(a[name] - b[name]) / max(abs(b[name]), 1e-12) for a, b in zip(ours, theirs))
        verdict(f"{method}: {name} of {len(ours)} steps, relative", worst, bound)


def logits_of(model, rows):
    with torch.no_grad():
        return [model(torch.tensor([row["input_ids"]])).logits[0] for row in rows[:2]]


def compare_logits(what, got, want, bound):
    worst = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(got, want))
    verdict(f"{what}: logits, of the largest", worst, bound)


def eval_plait(args, rows, *more):
    command = [args.plait, "eval", "--model", args.model, "--data", rows, "--data.sequence_length", str(LENGTH),
               "--json", "true", *more]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["loss"]


def check_lora(args, path, rows):
    output, ours = run_plait(args, "lora", path)
    # PEFT begins with the A that plait drew, as plait writes an adapter that was trained for no step at lr 0: take it
    # from a run of one step whose learning rate is 0.
    start = lora_start(args, path)
    model = PeftModel.from_pretrained(base_model(args.model), start, is_trainable=True)
    compare_metrics("lora", ours, train_peer(args, model, rows, LR["lora"]))
    loaded = PeftModel.from_pretrained(base_model(args.model), output).eval()
    want = logits_of(model, rows)
    # Adam divides small gradients by their own size, so rounding moves single weights by up to lr a step.
    compare_logits("lora: our adapter in PEFT against PEFT's own", logits_of(loaded, rows), want, 2e-3)
    with torch.no_grad():
        theirs = step_loss(loaded, rows)
    verdict("lora: plait eval --adapter against PEFT", abs(eval_plait(args, path, "--adapter", output) - theirs) / theirs, 1e-4)
    check_merged(args, output, loaded, rows)


def lora_start(args, path):
    output = os.path.join(args.work, "start")
    shutil.rmtree(output, ignore_errors=True)
    subprocess.run([args.plait, "train", "--model", args.model, "--data", path, "--output", output, "--method", "lora",
                    "--train.steps", "1", "--train.micro_batch", "1", "--train.accumulation", "1", "--data.sequence_length",
                    str(LENGTH), "--data.shuffle", "false", "--optimizer.lr", "0", "--lora.r", "16", "--lora.alpha", "32",
                    "--lora.targets", "all-linear"], check=True)
    return output


def merge(args, adapter, *more):
    output = os.path.join(args.work, "merged")
    shutil.rmtree(output, ignore_errors=True)
    subprocess.run([args.plait, "merge", "--model", args.model, "--adapter", adapter, "--output", output, *more], check=True)
    return output


def check_merged(args, adapter, loaded, rows):
    merged = base_model(merge(args, adapter, "--precision", "f32")).eval()
    compare_logits("lora: our merged folder in transformers", logits_of(merged, rows), logits_of(loaded, rows), 1e-4)
    check_merged_half(args, adapter, {name: w.data for name, w in merged.named_parameters()})


def check_merged_half(args, adapter, exact):
    """Without --precision the weights stay of the file's dtype. PEFT rounds the update B A to it and then its sum with
    the weight, we round the sum alone: so they differ by one rounding of the update and one of each sum, each of at most
    eps / 2 of what is rounded."""
    base = AutoModelForCausalLM.from_pretrained(args.model, dtype="auto")
    if base.dtype == torch.float32:
        return
    before = {name: w.data.clone().float() for name, w in base.named_parameters()}
    peer = PeftModel.from_pretrained(base, adapter).merge_and_unload()
    ours = AutoModelForCausalLM.from_pretrained(merge(args, adapter), dtype="auto")
    if ours.dtype != peer.dtype:
        verdict(f"lora: our merged folder is of {ours.dtype}, PEFT's of {peer.dtype}", float("inf"), 0)
        return
    theirs = {name: w.data.float() for name, w in peer.named_parameters()}
    half = torch.finfo(ours.dtype).eps / 2
    to_peer = to_exact = 0.0
    for name, w in ours.named_parameters():
        a, b, tiny = w.data.float(), theirs[name], 1e-30
        update = (exact[name] - before[name]).abs()
        to_peer = max(to_peer, ((a - b).abs() / (half * (a.abs() + b.abs() + update) + tiny)).max().item())
        to_exact = max(to_exact, ((a - exact[name]).abs() / (half * exact[name].abs() + tiny)).max().item())
    verdict(f"lora: our merge in {ours.dtype} against PEFT's, of the rounding", to_peer, 1)
    verdict(f"lora: our merge in {ours.dtype} against that in f32, of the rounding", to_exact, 1)


def check_full(args, path, rows):
    output, ours = run_plait(args, "full", path)
    model = base_model(args.model)
    compare_metrics("full", ours, train_peer(args, model, rows, LR["full"]))
    loaded = base_model(output).eval()
    compare_logits("full: our folder in transformers against torch's", logits_of(loaded, rows), logits_of(model, rows), 2e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plait", default="build/plait")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", default="build/interop")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", choices=["lora", "full"])
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    path, rows = make_rows(args)
    if args.only != "full":
        check_lora(args, path, rows)
    if args.only != "lora":
        check_full(args, path, rows)
    if failures:
        sys.exit("interop: these differ: " + "; ".join(failures))
    print("interop: everything agrees")


if __name__ == "__main__":
    main()
