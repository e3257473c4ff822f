"""Decoders as engines read them: config.json and safetensors with the published names."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from common.language.decoder import Decoder

_NAMES = {
    "embedding": "embed_tokens", "blocks": "layers", "attention_norm": "input_layernorm", "attention": "self_attn",
    "feed_forward": "mlp", "q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj", "gate": "gate_proj",
    "up": "up_proj", "down": "down_proj",
}  # fmt: skip
"""The names that published weights have for the parts of our decoder."""


def write(model: Decoder, folder: Path) -> None:
    """Write the weights as safetensors with their published names, and the config that describes them."""
    shape = model.shape
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers, "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_size, "rms_norm_eps": shape.norm_epsilon,
        "tie_word_embeddings": shape.tied_embeddings,
        "max_position_embeddings": round(shape.rope_old_context * shape.rope_factor),
        "torch_dtype": "bfloat16" if shape.precision == "bf16" else "float32",
        "rope_theta": shape.rope_theta, "rope_scaling": {
            "rope_type": "llama3", "factor": shape.rope_factor, "low_freq_factor": shape.rope_low,
            "high_freq_factor": shape.rope_high, "original_max_position_embeddings": shape.rope_old_context,
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {published_name(name): value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def published_name(name: str) -> str:
    if name.startswith("head."):
        return name.replace("head", "lm_head")
    if name.startswith("norm."):
        return f"model.{name}"
    renamed = name.replace(".norm.", ".post_attention_layernorm.").split(".")
    return ".".join(["model", *(_NAMES.get(part, part) for part in renamed)])
