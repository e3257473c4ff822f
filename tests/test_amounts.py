"""The amounts of builds and copies."""

from __future__ import annotations

import io
import time

import pytest

from pytest_flagperf.hosts.amounts import CountedFile, megabytes, reporter
from pytest_flagperf.runtime.uv_amounts import UvAmounts

OUTPUT = """\
Using Python 3.11.7 environment at: v
Resolved 13 packages in 496ms
Downloading scipy (33.7MiB)
Downloading torch (1.5GiB)
Downloading tiny (512.0KiB)
Downloaded tiny
Downloaded scipy
Downloaded torch
Prepared 13 packages in 5.62s
Installed 13 packages in 231ms
+ scipy==1.17.1
"""


def test_the_lines_of_uv_get_the_amounts_so_far() -> None:
    build = UvAmounts()
    assert [build.line(line) for line in OUTPUT.splitlines()] == [
        "Using Python 3.11.7 environment at: v",
        "Resolved 13 packages in 496ms",
        "13 packages, downloaded 0 of 1 large ones, 0 of 34 MiB: Downloading scipy (33.7MiB)",
        "13 packages, downloaded 0 of 2 large ones, 0 of 1,570 MiB: Downloading torch (1.5GiB)",
        "13 packages, downloaded 0 of 3 large ones, 0 of 1,570 MiB: Downloading tiny (512.0KiB)",
        "13 packages, downloaded 1 of 3 large ones, 0 of 1,570 MiB: Downloaded tiny",
        "13 packages, downloaded 2 of 3 large ones, 34 of 1,570 MiB: Downloaded scipy",
        "13 packages, downloaded 3 of 3 large ones, 1,570 of 1,570 MiB: Downloaded torch",
        "prepared 13 of 13 packages: Prepared 13 packages in 5.62s",
        "installed 13 of 13 packages: Installed 13 packages in 231ms",
        "+ scipy==1.17.1",
    ]


def test_amounts_of_bytes() -> None:
    assert megabytes(0, 38_400_000) == "0 of 38 MB"
    assert megabytes(12_000_000, 38_400_000) == "12 of 38 MB"
    assert megabytes(500_000, 1_100_000) == "0.5 of 1.1 MB"


def test_a_copy_reports_once_a_second_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines: list[str] = []
    on_bytes = reporter(lines.append, "copying uv to h1", 40_000_000)
    file = CountedFile(io.BytesIO(bytes(40_000_000)), on_bytes)
    while file.read(1_000_000):
        now += 0.1
    assert lines[0] == "copying uv to h1: 1 of 40 MB"
    assert lines[-1] == "copying uv to h1: 40 of 40 MB"
    assert 4 <= len(set(lines)) <= 6
