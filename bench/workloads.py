"""The workloads of `make bench`: models as config.json objects, and one row for each kind of run."""
import random

MODELS = {
    "smollm2-135m": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 49152, "hidden_size": 576,
        "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True,
        "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2},
    "gpt2-124m": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_positions": 1024,
        "n_embd": 768, "n_layer": 12, "n_head": 12, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151936, "hidden_size": 896,
        "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True,
        "use_sliding_window": False, "hidden_act": "silu"},
}

# rows: sequences of a step; length: tokens of each, or MIXED; targets: all (linear layers) or qv; peers: see peer.py.
MIXED = 0
LOOP, TRAINER = ("peer", "compiled"), ("peer", "compiled", "trainer")
FIELDS = ("model", "method", "precision", "rows", "length", "rank", "targets", "recompute", "peers")
WORKLOADS = {name: dict(zip(FIELDS, values)) for name, values in {
    "w1-full-f32": ("smollm2-135m", "full", "f32", 4, 512, 0, "all", False, LOOP),
    "w1-full-bf16": ("smollm2-135m", "full", "bf16", 4, 512, 0, "all", False, LOOP),
    "w1-full-bf16-recompute": ("smollm2-135m", "full", "bf16", 4, 512, 0, "all", True, LOOP),
    "w1-lora-bf16": ("smollm2-135m", "lora", "bf16", 4, 512, 16, "all", False, TRAINER),
    "w1-lora-bf16-recompute": ("smollm2-135m", "lora", "bf16", 4, 512, 16, "all", True, LOOP),
    "w1-dora-bf16": ("smollm2-135m", "dora", "bf16", 4, 512, 16, "all", False, LOOP),
    "w2-full-f32-64": ("gpt2-124m", "full", "f32", 4, 64, 0, "all", False, LOOP),
    "w2-full-f32-256": ("gpt2-124m", "full", "f32", 4, 256, 0, "all", False, LOOP),
    "w3-lora-bf16": ("qwen2.5-0.5b", "lora", "bf16", 1, 512, 8, "qv", False, LOOP),
    "mixed-lora-bf16": ("smollm2-135m", "lora", "bf16", 8, MIXED, 16, "all", False, LOOP),
    "w4-lora-bf16-8192": ("smollm2-135m", "lora", "bf16", 1, 8192, 16, "all", False, ()),
    "w4-lora-bf16-4096": ("smollm2-135m", "lora", "bf16", 1, 4096, 16, "all", False, ()),
    "w4-lora-bf16-8x512": ("smollm2-135m", "lora", "bf16", 8, 512, 16, "all", False, ()),
}.items()}
# As on processors without AMX: oneDNN and plait's own kernels are held back.
for name in ("w1-full-bf16", "w1-lora-bf16"):
    WORKLOADS[name + "-avx512"] = WORKLOADS[name] | {"isa": "AVX512_CORE_BF16", "peers": ()}


def lengths(w, count):
    """Of the first `count` rows. MIXED ones are as long as GSM8K's questions with their answers: 60 to 480, mostly 130 to 250."""
    draw = random.Random(2)
    return [w["length"] or min(480, max(60, round(draw.lognormvariate(5.2, 0.37)))) for _ in range(count)]
