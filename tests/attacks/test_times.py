"""Vendors that cheat with times, logs and precision: each of these real trainings must fail for its own reason."""

import json
from pathlib import Path

import pytest

from tests.attacks import HONEST, failed, trained
from tests.plugin.conftest import ignore_other_load
from tests.test_trainings import Finished

pytestmark = pytest.mark.slow
alone = pytest.mark.alone  # nothing else may take its core

SLOW_CLOCK = """
import time
from flagperf_driver.training import timeline


def _slowed(read):
    begin = read()
    return lambda: begin + (read() - begin) // 3 if isinstance(begin, int) else begin + (read() - begin) / 3


for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"):
    setattr(time, name, _slowed(getattr(time, name)))
timeline.HostMarks.mark = staticmethod(time.perf_counter)
"""
FAST_EVENTS = """
from flagperf_driver.training import timeline


class Marks(timeline.HostMarks):
    name = "device events"

    def seconds(self, marks):
        return [gap / 3 for gap in super().seconds(marks)]


def events(device):
    return Marks()
"""
LATE = """
import torch


def convert_model(ctx, model):
    size = ctx.config.image_size
    pixels = torch.randn(ctx.config.train_batch_size, 3, size, size)

    def train(mode=True):
        for _ in range(0 if mode else 15):
            model(pixels).mean().backward()
        model.zero_grad()
        return type(model).train(model, mode)

    model.train = train
    return model
"""
EARLY = """
import torch
from common.images import steps

spent = torch.randn(512, 512)


def prepare_batch(ctx, batch):
    for _ in range(40):
        spent @ spent
    return steps.prepare_batch(ctx, batch)
"""
LOW = """
import torch


def convert_model(ctx, model):
    model = model.to(memory_format=torch.channels_last)
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    return model
"""


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow nothing for ranks that wait for a core."""
    ignore_other_load(monkeypatch)


def pairs(verdicts: set[tuple[str, str]]) -> set[str]:
    return {sentence.rpartition("(pair ")[2].rstrip(")") for _, sentence in verdicts}


def consistent(finished: Finished) -> set[str]:
    """Return the pairs of figures for whose contradictions alone a run failed."""
    assert finished.code == 1, finished.out
    found = failed(finished)
    # A time that is wrong may also give a gain.
    assert {name for name, _ in found} - {"vendor_factor"} == {"consistent"}, found
    return pairs(found)


@alone
def test_an_honest_vendor_passes(repo: Path, torch_python: str, tmp_path: Path) -> None:
    honest = trained(repo, tmp_path, EARLY + HONEST)
    assert honest.code == 0, honest.out
    assert failed(honest) == set()
    assert honest.directory is not None
    (outcome,) = honest.directory.glob("*/round1/outcome.json")
    # All pairs except those of several ranks and of energy: one rank, no sampled devices.
    assert json.loads(outcome.read_text())["compared"] >= 15


def test_a_slowed_clock_fails_by_the_agents_times(repo: Path, torch_python: str, tmp_path: Path) -> None:
    finished = trained(repo, tmp_path, SLOW_CLOCK + HONEST)
    found = consistent(finished)
    assert {"train_time_seen", "record_times"} <= found
    assert "train_time" not in found, "the ranks' own clocks agree with each other"
    assert "`raw_train_time`" in finished.out


def test_a_hook_that_reports_a_third_of_the_time_fails_by_clock(repo: Path, torch_python: str, tmp_path: Path) -> None:
    assert "device_clock" in consistent(trained(repo, tmp_path, HONEST, device=FAST_EVENTS))


def test_training_in_the_evaluation_fails_by_its_forward_pass(repo: Path, torch_python: str, tmp_path: Path) -> None:
    finished = trained(repo, tmp_path, LATE)
    assert finished.code == 1, finished.out
    assert "evaluation" in pairs(failed(finished))


def test_a_lower_precision_than_the_suites_fails(repo: Path, torch_python: str, tmp_path: Path) -> None:
    """tests/driver/pytorch/test_replayed.py tests all other ways to compute less."""
    finished = trained(repo, tmp_path, LOW)
    assert finished.code == 1, finished.out
    assert {name for name, _ in failed(finished)} == {"repeated"}
