"""Makes arch.json: what transformers makes of many config.json files.

    python make_arch.py MODELS_FOLDER > arch.json        (transformers 5, torch)

For each: the fields, and of the model that transformers builds from them (on the meta device, so sizes do not matter)
the tensors of everything outside the layers and of the first and the last layer, the number of parameters, and layer
by layer the window, the scale of the scores and whether a rotary embedding applies.
"""
import glob
import json
import logging
import os
import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

logging.disable(logging.WARNING)
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "phi", "phi3", "opt",
            "smollm3", "olmo2", "granite"]
SMALL = {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 6, "intermediate_size": 80,
         "pad_token_id": None}
GPT2 = {"model_type": "gpt2", "vocab_size": 96, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 40}
OPT = {"model_type": "opt", "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
       "ffn_dim": 80, "max_position_embeddings": 40}
TYPES = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]


def small(model_type, **fields):
    return {"model_type": model_type, **SMALL, "num_key_value_heads": 3, **fields}


def variants():
    for family in FAMILIES:
        yield f"{family}, all defaults", {"model_type": family}
        yield f"{family}, tied", {**DEFAULT_SMALL(family), "tie_word_embeddings": True}
        yield f"{family}, not tied", {**DEFAULT_SMALL(family), "tie_word_embeddings": False}
    for act in ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "gelu_python",
                "gelu_accurate", "gelu_python_tanh"):
        yield f"act {act}", small("llama", hidden_act=act)
    yield "llama, kv null", small("llama", num_key_value_heads=None)
    yield "llama, biases", small("llama", attention_bias=True, mlp_bias=True, head_dim=10)
    yield "llama, tokens", small("llama", eos_token_id=[5, 7, 9], bos_token_id=None, pad_token_id=11)
    yield "llama, pad from the end", small("llama", pad_token_id=-1)
    yield "llama, eos null", small("llama", eos_token_id=None, initializer_range=0.5, rms_norm_eps=1e-3)
    yield "mistral, window null", small("mistral", sliding_window=None, head_dim=None)
    yield "mistral, window 7", small("mistral", sliding_window=7, head_dim=12)
    for q in ("qwen2", "qwen3"):
        yield f"{q}, window from layer 2", small(q, use_sliding_window=True, sliding_window=9, max_window_layers=2)
        yield f"{q}, window from layer 28", small(q, use_sliding_window=True, sliding_window=9)
        yield f"{q}, window in all", small(q, use_sliding_window=True, max_window_layers=0)
        yield f"{q}, window not used", small(q, use_sliding_window=False, sliding_window=9, max_window_layers=2)
        yield f"{q}, window null", small(q, use_sliding_window=True, sliding_window=None, max_window_layers=0)
        yield f"{q}, layer_types", small(q, use_sliding_window=True, sliding_window=9, max_window_layers=4, layer_types=TYPES)
        yield f"{q}, kv null", small(q, num_key_value_heads=None)
    yield "qwen2, head_dim", small("qwen2", head_dim=10)
    yield "qwen3, biases", small("qwen3", attention_bias=True, head_dim=10)
    yield "gemma, gelu means tanh", small("gemma", hidden_act="gelu", head_dim=10)
    yield "gemma, silu", small("gemma", hidden_act="silu", attention_bias=True)
    yield "gemma2, caps null", small("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    yield "gemma2, layer_types", small("gemma2", layer_types=TYPES, sliding_window=5, query_pre_attn_scalar=100, attention_bias=True)
    yield "gemma3, pattern", small("gemma3_text", sliding_window_pattern=2, sliding_window=5)
    yield "gemma3, pattern 1", small("gemma3_text", sliding_window_pattern=1)
    yield "gemma3, layer_types and pattern", small("gemma3_text", sliding_window_pattern=2, layer_types=TYPES)
    yield "gemma3, all full", small("gemma3_text", sliding_window=None, layer_types=["full_attention"] * 5)
    yield "gemma3, old rope", small("gemma3_text", rope_theta=5e5, rope_local_base_freq=2e4,
                                    rope_scaling={"rope_type": "linear", "factor": 8.0})
    yield "gemma3, one rope given", small("gemma3_text", rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 3e5}})
    yield "gemma3, ropes null", small("gemma3_text", rope_parameters={"full_attention": None, "sliding_attention": None})
    yield "gemma3, sliding scaled", small("gemma3_text", rope_parameters={
        "full_attention": {"rope_type": "llama3", "rope_theta": 3e5, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 64},
        "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}})
    yield "gemma3, cap", small("gemma3_text", final_logit_softcapping=10.0, query_pre_attn_scalar=64)
    yield "gpt2, n_inner", {**GPT2, "n_inner": 100}
    yield "gpt2, n_inner null", {**GPT2, "n_inner": None}
    yield "gpt2, usual names", {"model_type": "gpt2", "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3,
                                "num_attention_heads": 6, "max_position_embeddings": 40}
    yield "gpt2, unscaled", {**GPT2, "scale_attn_weights": False}
    yield "gpt2, by layer", {**GPT2, "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}
    yield "gpt2, unscaled by layer", {**GPT2, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}
    yield "gpt2, relu", {**GPT2, "activation_function": "relu", "layer_norm_epsilon": 1e-3, "pad_token_id": 3}
    neox = small("gpt_neox")
    del neox["num_key_value_heads"]
    yield "gpt_neox, rotary_pct", {**neox, "rotary_pct": 0.5, "rotary_emb_base": 500, "attention_bias": False}
    yield "gpt_neox, sequential", {**neox, "use_parallel_residual": False, "rotary_pct": 1.0, "layer_norm_eps": 1e-3}
    yield "gpt_neox, linear", {**neox, "rotary_pct": 0.25, "rope_scaling": {"type": "linear", "factor": 2.0}}
    yield "gpt_neox, saved by 4", {**neox, "rotary_pct": 0.5, "partial_rotary_factor": 0.5, "rotary_emb_base": 10000, "rope_theta": 10000}
    yield "phi, partial", small("phi", partial_rotary_factor=0.25, rope_theta=5000.0)
    yield "phi, kv null", small("phi", num_key_value_heads=None, hidden_act="gelu")
    yield "phi, linear", small("phi", rope_scaling={"type": "linear", "factor": 2.0})
    yield "phi3, partial", small("phi3", partial_rotary_factor=0.5, sliding_window=11, hidden_size=96)
    yield "phi3, partial longrope", small("phi3", partial_rotary_factor=0.75, hidden_size=96, max_position_embeddings=64,
        original_max_position_embeddings=16, rope_scaling={"type": "longrope", "short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
                                                           "long_factor": [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]})
    yield "opt, after", {**OPT, "do_layer_norm_before": False}
    yield "opt, projected", {**OPT, "word_embed_proj_dim": 16}
    yield "opt, projected, not tied", {**OPT, "word_embed_proj_dim": 16, "tie_word_embeddings": False}
    yield "opt-350m", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16}
    yield "opt, no bias", {**OPT, "enable_bias": False}
    yield "opt, not affine", {**OPT, "layer_norm_elementwise_affine": False}
    yield "opt, no final norm", {**OPT, "_remove_final_layer_norm": True, "init_std": 0.1, "pad_token_id": None}
    yield "opt, gelu", {**OPT, "activation_function": "gelu", "word_embed_proj_dim": None}
    yield "smollm3, interval", small("smollm3", no_rope_layer_interval=2)
    yield "smollm3, none rotary", small("smollm3", no_rope_layer_interval=1)
    yield "smollm3, list", small("smollm3", no_rope_layers=[1, 0, 0, 1, 1, 1])
    yield "smollm3, window", small("smollm3", no_rope_layers=[1, 0, 0, 1, 1], use_sliding_window=True, sliding_window=6)
    yield "smollm3, layer_types", small("smollm3", layer_types=TYPES, use_sliding_window=True, sliding_window=6)
    yield "smollm3, biases", small("smollm3", attention_bias=True, mlp_bias=True, head_dim=10)
    yield "olmo2, biases", small("olmo2", attention_bias=True, head_dim=10)
    yield "granite, multipliers", small("granite", embedding_multiplier=12.0, logits_scaling=8, residual_multiplier=0.22,
                                        attention_multiplier=0.0078125, attention_bias=True, mlp_bias=True)


def DEFAULT_SMALL(family):
    if family == "gpt2":
        return dict(GPT2)
    if family == "opt":
        return dict(OPT)
    fields = small(family)
    if family == "gpt_neox":
        del fields["num_key_value_heads"]
    return fields


def files(folder):
    for path in sorted(glob.glob(os.path.join(folder, "*", "config.json"))):
        fields = json.load(open(path))
        if fields["model_type"] in FAMILIES:
            yield os.path.basename(os.path.dirname(path)), fields


def frequencies(rotary, prefix=""):
    return [float(f"{x:.7g}") for x in getattr(rotary, prefix + "inv_freq").tolist()]


def ropes(model, config):
    """On the CPU, since the meta device holds no values."""
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is None:
        return []
    rotary = type(rotary)(config)
    if config.model_type == "gemma3_text":
        kinds = ["full_attention", "sliding_attention"]
        return [frequencies(rotary, k + "_") if k in config.layer_types else None for k in kinds]
    return [frequencies(rotary)]


def layer(model, config, block, index):
    attention = next(getattr(block, n) for n in ("self_attn", "attention", "attn") if hasattr(block, n))
    window = getattr(attention, "sliding_window", None)
    if config.model_type in ("mistral", "phi3"):
        window = config.sliding_window
    rope = 0 if hasattr(model.base_model, "rotary_emb") and getattr(attention, "use_rope", True) else -1
    if config.model_type == "gemma3_text" and config.layer_types[index] == "sliding_attention":
        rope = 1
    return [window or 0, attention.scaling, rope]


def resolve(name, fields):
    config = CONFIG_MAPPING[fields["model_type"]].from_dict(json.loads(json.dumps(fields)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    base = model.base_model
    decoder = getattr(base, "decoder", base)
    blocks = decoder.h if hasattr(decoder, "h") else decoder.layers
    prefix = next(n for n, m in model.named_modules() if m is blocks)
    last = len(blocks) - 1
    tensors = {}
    for key, value in model.state_dict().items():
        inside = key.startswith(prefix + ".")
        if inside and int(key[len(prefix) + 1:].split(".")[0]) not in (0, last):
            continue
        if config.tie_word_embeddings and key == "lm_head.weight":
            continue
        if config.model_type == "gpt_neox":
            key = key.replace("lm_head.", "embed_out.")
        tensors[key] = list(value.shape)
    acts = [m for n, m in blocks[0].named_modules() if n.split(".")[-1] in ("act", "act_fn", "activation_fn")]
    norms = [m for m in blocks[0].modules() if "Norm" in type(m).__name__]
    embedding = model.get_input_embeddings()
    eos = config.eos_token_id
    std = getattr(config, "initializer_range", None) or getattr(config, "init_std", 0.02)
    return {
        "name": name, "config": fields, "tensors": tensors, "parameters": sum(p.numel() for p in model.parameters()),
        "layers": [layer(model, config, b, i) for i, b in enumerate(blocks)], "ropes": ropes(model, config),
        "act": [float(acts[0](torch.tensor(x))) for x in (-1.5, 0.7)],
        "eps": getattr(norms[0], "variance_epsilon", getattr(norms[0], "eps", None)),
        "tied": bool(config.tie_word_embeddings), "padding": -1 if embedding.padding_idx is None else embedding.padding_idx,
        "embed_scale": getattr(embedding, "scalar_embed_scale", getattr(config, "embedding_multiplier", 1.0)),
        "residual_scale": getattr(config, "residual_multiplier", 1.0),
        "logit_scale": 1 / getattr(config, "logits_scaling", 1.0),
        "attention_softcap": getattr(config, "attn_logit_softcapping", None) or 0.0 if config.model_type == "gemma2" else 0.0,
        "logit_softcap": getattr(config, "final_logit_softcapping", None) or 0.0,
        "bos": -1 if config.bos_token_id is None else config.bos_token_id,
        "eos": eos if isinstance(eos, list) else [] if eos is None else [eos], "positions": config.max_position_embeddings,
        "init_std": std,
    }


print("[")
cases = list(files(sys.argv[1])) + list(variants())
print(",\n".join(json.dumps(resolve(*c), separators=(",", ":")) for c in cases))
print("]")
