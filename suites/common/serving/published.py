"""Decoders in Hugging Face's format: config.json and safetensors with the published names, as engines read them.

    python -m common.serving.published SUITE_DIR PLAN CHECKPOINT FOLDER

writes a checkpoint of a training; ``flagperf export --format=huggingface`` starts it in the training's environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.language.decoder import Decoder
from common.language.experts import LIMIT
from common.language.mixture import MixtureDecoder
from common.training.program import steps_of
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch.states import model_weights
from flagperf_driver.training.checkpoint import CheckpointError

_NAMES = {
    "embedding": "model.embed_tokens", "blocks": "model.layers", "norm": "model.norm", "head": "lm_head",
    "attention_norm": "input_layernorm", "attention": "self_attn", "feed_forward": "mlp", "mixture": "mlp",
    "q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj", "gate": "gate_proj", "up": "up_proj",
    "down": "down_proj", "gate_up": "gate_up_proj", "gate_up_bias": "gate_up_proj_bias", "down_bias": "down_proj_bias",
}  # fmt: skip
"""The names that published weights have for the parts of our decoders."""


def published_name(name: str) -> str:
    """Return the published name of a parameter of a decoder."""
    return ".".join(_NAMES.get(part, part) for part in name.replace(".norm.", ".post_attention_layernorm.").split("."))


def write(model: Decoder, folder: Path) -> None:
    """Write the model's weights, in the type of its products, and the config that describes them."""
    kept = torch.bfloat16 if model.shape.precision == "bf16" else torch.float32
    weights = {
        published_name(name): value.detach().cpu().to(kept).contiguous()
        for name, value in model.state_dict().items()
        if not (model.shape.tied_embeddings and name.startswith("head."))
    }
    write_config(model, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_config(model: Decoder, folder: Path) -> None:
    """Write only what describes the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(model), indent=1), encoding="utf-8")


def config_of(model: Decoder) -> dict[str, Any]:
    """Return the content of config.json."""
    shape = model.shape
    config = {
        "vocab_size": shape.vocab_size, "hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers, "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_size, "rms_norm_eps": shape.norm_epsilon,
        "hidden_act": "silu", "tie_word_embeddings": shape.tied_embeddings, "rope_theta": shape.rope_theta,
        "max_position_embeddings": round(shape.rope_old_context * shape.rope_factor),
        "torch_dtype": "bfloat16" if shape.precision == "bf16" else "float32",
    }  # fmt: skip
    rope = {"factor": shape.rope_factor, "original_max_position_embeddings": shape.rope_old_context}
    if not isinstance(model, MixtureDecoder):
        turns = {"low_freq_factor": shape.rope_low, "high_freq_factor": shape.rope_high}
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", **config,
            "rope_scaling": {"rope_type": "llama3", **rope, **turns},
        }  # fmt: skip
    mixture = model.shape
    turns = {"beta_slow": mixture.rope_low, "beta_fast": mixture.rope_high}
    seen = ["full_attention" if block.attention.window is None else "sliding_attention" for block in model.blocks]
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", **config, "attention_bias": True,
        "sliding_window": mixture.attention_window, "layer_types": seen, "swiglu_limit": LIMIT,
        "num_local_experts": mixture.num_experts, "num_experts_per_tok": mixture.experts_per_token,
        "rope_scaling": {"rope_type": "yarn", **rope, **turns, "truncate": False},
    }  # fmt: skip


def load(model: Decoder, weights: Mapping[str, Tensor]) -> None:
    """Give a model the weights of a checkpoint; raise an error if they are those of another model."""
    head = {"head.weight": weights["embedding.weight"]} if model.shape.tied_embeddings else {}
    model.load_state_dict({**weights, **head}, strict=True, assign=True)


def read(model: Decoder, folder: Path) -> None:
    """Give a model the weights of a folder with their published names; raise ValueError if it has others."""
    weights = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    names = {name: published_name(name) for name in model.state_dict() if published_name(name) in weights}
    if model.shape.tied_embeddings:
        names["head.weight"] = names["embedding.weight"]
    missing = model.state_dict().keys() - names.keys()
    if missing:
        raise ValueError(f"{folder}: no weights {published_name(min(missing))} in *.safetensors; expected those served")
    model.load_state_dict({name: weights[published] for name, published in names.items()})


def main(suite: Path, plan: Path, checkpoint: Path, folder: Path) -> None:
    config = {key: value["value"] for key, value in json.loads(plan.read_text(encoding="utf-8"))["values"].items()}
    # The model is not divided here, whatever the training's ranks did.
    ctx = Context(config=Config({**config, "parallel": "ddp"}), suite_dir=suite)
    model = steps_of(suite).create_model(ctx)
    if not isinstance(model, Decoder):
        raise CheckpointError(f"its model is a {type(model).__name__}; expected a decoder of Llama or of gpt-oss")
    load(model, model_weights(checkpoint))
    write(model, folder)


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except CheckpointError as error:
        sys.exit(str(error))
