"""Makes rope.json: the inverse frequencies that transformers computes for many parameters, in double precision.

    python make_rope.py > rope.json        (transformers 5, torch)

Each case has the config.json fragment, a length (largest position + 1; null: none) and what
modeling_rope_utils.ROPE_INIT_FUNCTIONS gives for it.
"""
import json

import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# The library asks for single precision by name.
torch.float = torch.float32 = torch.float64
torch.Tensor.float = lambda self: self.to(torch.float64)
torch.set_default_dtype(torch.float64)


def case(name, rope, head_dim=64, positions=2048, length=None, theta=10000.0, phi3=False, **extra):
    fields = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": head_dim,
              "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 16, "pad_token_id": None,
              "max_position_embeddings": positions, "rope_theta": theta, "rope_scaling": rope, **extra}
    fields["model_type"] = "phi3" if phi3 else "llama"
    config = (Phi3Config if phi3 else LlamaConfig).from_dict(json.loads(json.dumps(fields)))
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        inverse, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
        partial = config.rope_parameters.get("partial_rotary_factor", 1.0)
        assert partial == 1.0
    else:
        inverse, factor = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=length)
    return {"name": name, "config": fields, "length": length, "inverse": inverse.tolist(), "attention_factor": float(factor)}


def cases():
    yield case("default", None)
    yield case("default by name", {"rope_type": "default"}, head_dim=10, theta=500000.0)
    yield case("default, theta below 1", None, head_dim=8, theta=0.5)
    for spelling in ("rope_type", "type"):
        yield case(f"linear by {spelling}", {spelling: "linear", "factor": 4.0})
    yield case("linear, whole number below 1", {"rope_type": "linear", "factor": 0.5}, head_dim=12)
    for length in (None, 1, 100, 128, 129, 300, 1000):
        yield case(f"dynamic {length}", {"rope_type": "dynamic", "factor": 2.0}, positions=128, length=length)
    yield case("dynamic, factor 8, small head", {"rope_type": "dynamic", "factor": 8}, head_dim=4, positions=64, length=200)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}
    yield case("llama 3.1", llama3, head_dim=128, positions=131072, theta=500000.0)
    yield case("llama 3.2", {**llama3, "factor": 32.0}, positions=131072, theta=500000.0)
    yield case("llama3, small", {**llama3, "original_max_position_embeddings": 32, "high_freq_factor": 2.5}, head_dim=16,
               theta=500.0)
    yield case("llama3, original absent", {k: v for k, v in llama3.items() if not k.startswith("original")}, head_dim=32,
               positions=64)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    yield case("yarn", yarn, head_dim=128, positions=131072, theta=1000000.0)
    yield case("yarn, original absent", {"rope_type": "yarn", "factor": 4.0}, positions=4096)
    yield case("yarn, original beside", {"rope_type": "yarn", "factor": 4.0}, positions=4096,
               original_max_position_embeddings=1024)
    yield case("yarn, original in both", yarn, positions=4096, original_max_position_embeddings=1024)
    yield case("yarn, factor null", {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 512})
    yield case("yarn, betas", {**yarn, "beta_fast": 16, "beta_slow": 2.5})
    yield case("yarn, betas 0", {**yarn, "beta_fast": 0, "beta_slow": 0})
    yield case("yarn, betas alike", {**yarn, "beta_fast": 4, "beta_slow": 4, "truncate": False})
    yield case("yarn, not truncated", {**yarn, "truncate": False})
    yield case("yarn, truncate null", {**yarn, "truncate": None})
    yield case("yarn, attention_factor", {**yarn, "attention_factor": 1.25})
    yield case("yarn, attention_factor 0", {**yarn, "attention_factor": 0.0})
    yield case("yarn, mscale", {**yarn, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0})
    yield case("yarn, mscale differ", {**yarn, "factor": 40, "mscale": 0.707, "mscale_all_dim": 1.3})
    yield case("yarn, one mscale", {**yarn, "factor": 40, "mscale": 0.707})
    yield case("yarn, factor 1", {**yarn, "factor": 1.0})
    yield case("yarn, tiny", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4,
                              "beta_slow": 1}, head_dim=16, positions=128, theta=100.0)
    yield case("yarn, all beyond", {**yarn, "original_max_position_embeddings": 2}, head_dim=16, positions=8)
    short, long = [1 + i / 8 for i in range(8)], [1 + i * i / 4 for i in range(8)]
    lists = {"short_factor": short, "long_factor": long}
    for length in (None, 16, 17, 64):
        yield case(f"longrope {length}", {"type": "longrope", **lists}, 16, 64, length, phi3=True,
                   original_max_position_embeddings=16)
    yield case("longrope, su", {"type": "su", "original_max_position_embeddings": 16, **lists}, 16, 64, 20, phi3=True,
               original_max_position_embeddings=16)
    yield case("longrope, phi3's yarn", {"type": "yarn", **lists}, 16, 64, 20, phi3=True,
               original_max_position_embeddings=16)
    yield case("longrope, original absent", {"type": "longrope", **lists}, 16, 8192, 4097, phi3=True)
    yield case("longrope, original among", {"type": "longrope", "original_max_position_embeddings": 16, **lists}, 16, 8192,
               20, phi3=True)
    yield case("longrope, factor", {"rope_type": "longrope", "factor": 3.0, **lists}, 16, 64, 20, phi3=True,
               original_max_position_embeddings=16)
    yield case("longrope, attention_factor", {"rope_type": "longrope", "attention_factor": 1.5, **lists}, 16, 64, 20,
               phi3=True, original_max_position_embeddings=16)
    yield case("longrope, never longer", {"rope_type": "longrope", **lists}, 16, 16, 20, phi3=True,
               original_max_position_embeddings=16)
    yield case("longrope, partial", {"rope_type": "longrope", **lists}, 32, 64, 10, phi3=True,
               original_max_position_embeddings=16, partial_rotary_factor=0.5)
    yield case("longrope, llama", {"rope_type": "longrope", "original_max_position_embeddings": 16, **lists}, 16, 64, 20)


print("[")
print(",\n".join(json.dumps(c) for c in cases()))
print("]")
