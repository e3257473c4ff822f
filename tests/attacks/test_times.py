"""Vendors that cheat with times and logs: each of these real trainings must fail for its own reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attacks import HONEST, failed, trained
from tests.test_trainings import Finished

pytestmark = [pytest.mark.slow, pytest.mark.alone]

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
COPY = """
import os, sys
from pathlib import Path
sys.stdout.write(Path({log!r}).read_text())
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def honest(repo: Path, torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The control: the same vendor replaces a step without cheating."""
    return trained(repo, tmp_path_factory.mktemp("honest"), HONEST)


def test_an_honest_vendor_passes(honest: Finished) -> None:
    assert honest.code == 0, honest.out
    assert failed(honest) == set()
    assert honest.directory is not None
    (outcome,) = honest.directory.glob("*/round1/outcome.json")
    # All pairs except those of several ranks and of energy: one rank, no sampled devices.
    assert json.loads(outcome.read_text())["compared"] >= 28


def test_a_slowed_clock_fails_by_the_agents_times(repo: Path, torch_python: str, tmp_path: Path) -> None:
    finished = trained(repo, tmp_path, SLOW_CLOCK + HONEST)
    assert finished.code == 1, finished.out
    verdicts = failed(finished)
    assert {name for name, _ in verdicts} == {"consistent"}
    pairs = {sentence.rpartition("(pair ")[2].rstrip(")") for _, sentence in verdicts}
    assert {"train_time_seen", "record_times"} <= pairs, verdicts
    assert "train_time" not in pairs, "the ranks' own clocks agree with each other"
    assert "`raw_train_time`" in finished.out


def test_a_hook_that_reports_a_third_of_the_time_fails_by_the_hosts_clock(
    repo: Path, torch_python: str, tmp_path: Path
) -> None:
    finished = trained(repo, tmp_path, HONEST, device=FAST_EVENTS)
    assert finished.code == 1, finished.out
    verdicts = failed(finished)
    assert {name for name, _ in verdicts} == {"consistent"}
    assert {sentence.rpartition("(pair ")[2] for _, sentence in verdicts} == {"device_clock)"}


def test_the_log_of_another_run_fails_by_its_token(
    honest: Finished, repo: Path, torch_python: str, tmp_path: Path
) -> None:
    assert honest.directory is not None
    (log,) = honest.directory.glob("*/round1/*/rank0.out.log")
    finished = trained(repo, tmp_path, COPY.format(log=str(log)) + HONEST)
    assert finished.code == 1, finished.out
    ((name, sentence),) = failed(finished)
    assert name == "own_log"
    assert "INIT_END repeats token" in sentence
