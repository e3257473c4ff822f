"""The amounts of copies."""

from __future__ import annotations

import time

import pytest

from pytest_flagperf.hosts.amounts import megabytes, reporter


def test_amounts_of_bytes() -> None:
    assert megabytes(0, 38_400_000) == "0 of 38 MB"
    assert megabytes(12_000_000, 38_400_000) == "12 of 38 MB"
    assert megabytes(500_000, 1_100_000) == "0.5 of 1.1 MB"


def test_a_copy_reports_once_a_second_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines: list[str] = []
    on_bytes = reporter(lines.append, "h1: fetching the logs", 40_000_000)
    for done in range(1_000_000, 41_000_000, 1_000_000):
        on_bytes(done)
        now += 0.1
    assert lines[0] == "h1: fetching the logs: 1 of 40 MB"
    assert lines[-1] == "h1: fetching the logs: 40 of 40 MB"
    assert 4 <= len(set(lines)) <= 6
