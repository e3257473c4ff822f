"""Checks of float8: it needs torchao and a chip with fp8, and reaches the target of the small scale."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
import unittest
from dataclasses import replace
from unittest import mock

import checking
import torch
from common.language import causal

from tests.suites import trials


def check_a_training_in_float8_reaches_the_target() -> None:
    if importlib.util.find_spec("torchao") is None:
        raise unittest.SkipTest("torchao is not installed: pip install torchao==0.18.0")
    target = tomllib.loads((checking.SUITE / "suite.toml").read_text())["scales"]["small"]["target"]
    steps = checking.context().config.max_steps

    def trained(steps: int, **settings: object) -> trials.Trained:
        settings = {"eval_steps": steps, "eval_samples": None, **settings}
        return trials.train(checking.SUITE, checking.SCRATCH, scale="small", max_steps=steps, **settings)

    whole = trained(steps, float8=True)
    assert whole.metrics["log_perplexity"] < target
    assert trained(3, float8=True, learning_rate=0.0).metrics["log_perplexity"] > 2 * target
    plain = trained(1, float8=False).losses[0]
    assert 0 < abs(whole.losses[0] - plain) < 0.02 * plain, "float8 is not used, or too coarse"


def check_a_missing_torchao_is_named_with_the_fix() -> None:
    with mock.patch.dict(sys.modules, {"torchao": None, "torchao.float8": None}):
        checking.raises(
            ValueError, lambda: causal.use_float8(checking.context(), []), "torchao==0.18.0", "requirements.txt",
            "float8 = False",
        )  # fmt: skip


def check_a_chip_without_fp8_is_refused() -> None:
    ctx = replace(checking.context(), device=torch.device("cuda"), peaks={"peak_tflops.bf16": 1e12})
    checking.raises(ValueError, lambda: causal.use_float8(ctx, []), "no peak_tflops with fp8", "float8 = False")
