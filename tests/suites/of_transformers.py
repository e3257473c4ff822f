"""transformers' model of one of our decoders, as it loads what we write, and what both compute."""

from __future__ import annotations

import importlib
import tempfile
import unittest
from pathlib import Path
from typing import Any

import torch.nn.functional as F  # noqa: N812 - its usual name
from common.serving import published as writer


def published(ours: Any) -> Any:
    """Return the model that transformers loads from the files of ours."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise unittest.SkipTest("no transformers") from None
    with tempfile.TemporaryDirectory() as folder:
        writer.write(ours, Path(folder))
        return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def outputs(ours: Any, theirs: Any, tokens: Any, targets: Any) -> tuple[tuple[Any, Any], list[tuple[Any, Any]]]:
    """Return the logits of both and the gradients of both, by parameter."""
    ours.zero_grad()
    theirs.zero_grad()
    logits, expected = ours(tokens), theirs(tokens).logits
    ours(tokens, targets).backward()
    F.cross_entropy(expected.flatten(0, 1), targets.flatten()).backward()
    gradients = {name: value.grad for name, value in theirs.named_parameters()}
    by_name = [(value.grad, gradients[writer.published_name(name)]) for name, value in ours.named_parameters()]
    return (logits.detach(), expected.detach()), by_name
