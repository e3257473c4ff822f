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


PART = """
def calculate_loss(ctx, model, batch):
    return nn.functional.cross_entropy(model(batch.pixels[{part}]), batch.labels[{part}], label_smoothing=0.1)
"""
HEAD = "import torch\nfrom torch import nn\n"
LOW = (
    HEAD
    + """
def convert_model(ctx, model):
    model = model.to(memory_format=torch.channels_last)
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    return model
"""
)


@pytest.mark.parametrize(
    ("adapter", "step"),
    [
        (HEAD + PART.format(part=":32"), "calculate_loss"),
        (HEAD + PART.format(part="::2"), "calculate_loss"),
        (LOW, "convert_model"),
    ],
    ids=["half of the batch", "every second sample", "bf16 as fp32"],
)
def test_steps_that_compute_less_than_the_suites_fail(
    repo: Path, torch_python: str, tmp_path: Path, adapter: str, step: str
) -> None:
    finished = trained(repo, tmp_path, adapter)
    assert finished.code == 1, finished.out
    sentences = [sentence for _, sentence in failed(finished)]
    assert any("with the same weights, batch and random state the vendor's steps give" in text for text in sentences)
    assert any(f"The vendor's {step} may only change how" in text for text in sentences), sentences
