"""Vendors whose steps compute less than the suite's: each of these real trainings must fail for its own reason."""

from pathlib import Path

import pytest

from tests.attacks import failed, trained

pytestmark = pytest.mark.slow

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
