"""Checks of trainings with products in float8, mxfp8 and nvfp4: they compute with rounded values."""

from __future__ import annotations

import importlib.util
import statistics
import tomllib
import unittest
from unittest import mock

import checking
import torch
from common.language import low_precision

from tests.suites import trials


def trained(precision: str, steps: int, **settings: object) -> trials.Trained:
    settings = {"eval_steps": steps, "eval_samples": None, **settings}
    return trials.train(
        checking.SUITE, checking.SCRATCH, scale="small", max_steps=steps, precision=precision, **settings
    )


def rounds(losses: list[float], plain: list[float]) -> bool:
    """Return whether the losses are those of nearly the same training with other roundings."""
    differences = [abs(one - other) / other for one, other in zip(losses, plain, strict=True)]
    return 1e-4 < statistics.mean(differences) < 2e-2


def check_a_training_in_float8_reaches_the_target() -> None:
    if importlib.util.find_spec("torchao") is None:
        raise unittest.SkipTest("torchao is not installed: pip install torchao==0.18.0")
    target = tomllib.loads((checking.SUITE / "suite.toml").read_text())["scales"]["small"]["target"]
    whole = trained("float8", checking.context().config.max_steps)
    assert whole.metrics["log_perplexity"] < target
    assert trained("float8", 3, learning_rate=0.0).metrics["log_perplexity"] > 2 * target
    assert rounds(whole.losses[:1], trained("bf16", 1).losses), "float8 is not used, or too coarse"


def check_a_training_in_mxfp8_or_nvfp4_computes_with_their_values() -> None:
    steps = 5
    plain = trained("bf16", steps).losses
    for name in ("mxfp8", "nvfp4"):
        assert rounds(trained(name, steps).losses, plain), name
    for values in (torch.clone, lambda one: one.sign() * one.abs().mean()):
        other = low_precision.Emulation(*[lambda one, values=values: values(one.float())] * 3)
        with mock.patch.dict(low_precision.EMULATED, nvfp4=other):
            assert not rounds(trained("nvfp4", steps).losses, plain)
