#!/usr/bin/env python3
"""Writes gpt2.json: a small byte-level BPE as vocab.json and merges.txt, with other files of a GPT2Tokenizer's folder, and
the ids that transformers gives for some texts. Needs transformers and tokenizers; run it in this folder."""
import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

TEXT = ("The quick brown fox jumps over the lazy dog. It's the dog's day, they're told, and the fox isn't amused. "
        "Größe und Füße, 1234 and 5678, naïve cafés; 世界 and 世界 again. ") * 4
TEXTS = ["Hello world", " The  quick\n\nfox's", "Größe 世界 👩‍🚀", "a<|endoftext|> b", "<pad> <x>y <new>z", "", "they're 12 34"]
END = "<|endoftext|>"

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
    vocab_size=340, special_tokens=[END, "<pad>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
model = json.loads(tokenizer.to_str())["model"]
vocab = model["vocab"]
merges = "#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in model["merges"])
n = len(vocab)

VARIANTS = {
    "bare": {"config.json": {"model_type": "gpt2"}},
    "class": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024}},
    "bos": {"tokenizer_config.json": {"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": True, "bos_token": END}},
    "opt": {"config.json": {"model_type": "opt"}, "special_tokens_map.json": {"bos_token": END, "pad_token": "<pad>"},
            "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "add_prefix_space": False,
                                      "errors": "replace", "unk_token": {"__type": "AddedToken", "content": "<pad>",
                                      "lstrip": False, "normalized": True, "rstrip": False, "single_word": False},
                                      "pad_token": "<pad>", "bos_token": END, "eos_token": END}},
    "prefix": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}},
    "added": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}, "added_tokens.json": {"<x>": n, "<new>": n + 1}},
    "map": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"},
            "special_tokens_map.json": {"pad_token": {"content": "<pad>", "lstrip": False, "normalized": False,
                                                      "rstrip": False, "single_word": False}}},
}

cases = []
for name, files in VARIANTS.items():
    with tempfile.TemporaryDirectory() as d:
        for file, content in {"vocab.json": vocab, **files}.items():
            (Path(d) / file).write_text(json.dumps(content, ensure_ascii=False))
        (Path(d) / "merges.txt").write_text(merges)
        if "config.json" not in files:
            (Path(d) / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
        hf = AutoTokenizer.from_pretrained(d)
        cases.append({"name": name, "files": files, "ids": [hf(t)["input_ids"] for t in TEXTS],
                      "plain": [hf(t, add_special_tokens=False)["input_ids"] for t in TEXTS]})
with open("gpt2.json", "w") as f:
    json.dump({"vocab": vocab, "merges": merges, "texts": TEXTS, "cases": cases}, f, ensure_ascii=False)
    f.write("\n")
