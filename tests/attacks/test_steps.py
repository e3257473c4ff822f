"""Vendors whose steps compute less than the suite's: each of these real trainings must fail for its own reason."""

from pathlib import Path

import pytest

from tests.attacks import HONEST, failed, trained

pytestmark = pytest.mark.slow

LOW = """
import torch


def convert_model(ctx, model):
    model = model.to(memory_format=torch.channels_last)
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    return model
"""


@pytest.mark.parametrize("adapter", [HONEST, LOW])
def test_only_a_lower_precision_than_the_suites_fails(
    repo: Path, torch_python: str, tmp_path: Path, adapter: str
) -> None:
    """tests/driver/pytorch/test_replayed.py tests all other ways to compute less."""
    finished = trained(repo, tmp_path, adapter)
    assert finished.code == (0 if adapter == HONEST else 1), finished.out
    assert {name for name, _ in failed(finished)} == (set() if adapter == HONEST else {"repeated"})
