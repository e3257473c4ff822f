"""transformers' model with the weights of one of our decoders, and what both compute."""

from __future__ import annotations

import importlib
import unittest
from typing import Any

import torch.nn.functional as F  # noqa: N812 - its usual name

NAMES = {
    "embedding": "model.embed_tokens", "blocks": "model.layers", "attention_norm": "input_layernorm",
    "attention": "self_attn", "feed_forward": "mlp", "mixture": "mlp", "head": "lm_head", "q": "q_proj", "k": "k_proj",
    "v": "v_proj", "out": "o_proj", "gate": "gate_proj", "up": "up_proj", "down": "down_proj",
    "gate_up": "gate_up_proj", "gate_up_bias": "gate_up_proj_bias", "down_bias": "down_proj_bias",
}  # fmt: skip


def published_name(name: str) -> str:
    if name == "norm.weight":
        return "model.norm.weight"
    return ".".join(NAMES.get(part, part) for part in name.replace(".norm.", ".post_attention_layernorm.").split("."))


def published(kind: str, ours: Any, **settings: Any) -> Any:
    """Return transformers' model of this kind, such as Llama, with the sizes and weights of ours."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise unittest.SkipTest("no transformers") from None
    shape = ours.shape
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=shape.vocab_size, hidden_size=shape.hidden_size, intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers, num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads, rms_norm_eps=shape.norm_epsilon,
        tie_word_embeddings=shape.tied_embeddings, **settings,
    )  # fmt: skip
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config)
    theirs.load_state_dict({published_name(name): value for name, value in ours.state_dict().items()}, strict=True)
    return theirs


def outputs(ours: Any, theirs: Any, tokens: Any, targets: Any) -> tuple[tuple[Any, Any], list[tuple[Any, Any]]]:
    """Return the logits of both and the gradients of both, by parameter."""
    ours.zero_grad()
    theirs.zero_grad()
    logits, expected = ours(tokens), theirs(tokens).logits
    ours(tokens, targets).backward()
    F.cross_entropy(expected.flatten(0, 1), targets.flatten()).backward()
    gradients = {name: value.grad for name, value in theirs.named_parameters()}
    by_name = [(value.grad, gradients[published_name(name)]) for name, value in ours.named_parameters()]
    return (logits.detach(), expected.detach()), by_name
