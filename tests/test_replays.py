"""Recorded rounds and runs, good and bad, get exactly the verdicts that are written beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_flagperf.results.verdicts import converges, failed, throughput
from tests.results_help import NAMES, REPLAYS, expected, recorded


@pytest.mark.parametrize("name", NAMES)
def test_a_round_has_the_verdicts_that_are_written_beside_it(name: str) -> None:
    outcome, wanted = recorded(name), expected(name)
    assert [verdict.name for verdict in failed(converges(outcome))] == wanted["converges"]
    assert [verdict.name for verdict in failed(throughput([outcome]))] == wanted["throughput"]
    assert [mark.kind for mark in outcome.marks] == wanted.get("marks", [])


def test_there_are_replays_of_both_kinds() -> None:
    good = [name for name in NAMES if not any(expected(name).values())]
    assert {"converged_1x1", "converged_1x2", "mangled_log", "clock_skew", "at_its_power_limit"} <= set(good)
    assert len(NAMES) - len(good) >= 20


def test_the_replays_are_what_their_maker_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(REPLAYS / "make.py"), str(tmp_path)], check=True, timeout=60)
    names = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path.relative_to(REPLAYS) for path in REPLAYS.glob("*/**/*") if path.is_file()}
    kept = {path for path in kept if path.parts[0] != "__pycache__"}
    assert kept == names
    assert [name for name in names if (tmp_path / name).read_bytes() != (REPLAYS / name).read_bytes()] == []
