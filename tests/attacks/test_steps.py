"""Vendors whose steps compute less than the suite's: each of these real trainings must fail for its own reason."""

from pathlib import Path

import pytest

from tests.attacks import failed, trained

pytestmark = pytest.mark.slow

AVERAGES = """
import torch
from torch import distributed
from flagperf_driver.pytorch import steps


def model_to_ddp(ctx, model):
    return model


def create_optimizer(ctx, model):
    def average(*_):
        average.steps += 1
        for parameter in model.parameters() if average.steps % 5 == 0 else ():
            distributed.all_reduce(parameter.data)
            parameter.data /= ctx.world_size

    average.steps = 0
    optimizer = steps.create_optimizer(ctx, model)
    optimizer.register_step_post_hook(average)
    return optimizer
"""


def test_ranks_that_average_their_weights_every_fifth_step_fail(repo: Path, torch_python: str, tmp_path: Path) -> None:
    finished = trained(repo, tmp_path, AVERAGES, nodes="1x2")
    assert finished.code == 1, finished.out
    assert any("the weights differ between ranks 0, 1" in sentence for _, sentence in failed(finished))


LOW = """
import torch


def convert_model(ctx, model):
    model = model.to(memory_format=torch.channels_last)
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    return model
"""


def test_a_lower_precision_than_the_suites_fails(repo: Path, torch_python: str, tmp_path: Path) -> None:
    """tests/driver/pytorch/test_vendor_step_checks.py tests all other ways to compute less."""
    finished = trained(repo, tmp_path, LOW)
    assert finished.code == 1, finished.out
    sentences = [sentence for _, sentence in failed(finished)]
    assert any("with the same weights, batch and random state the vendor's steps give" in text for text in sentences)
    assert any("The vendor's convert_model may only change how" in text for text in sentences), sentences
