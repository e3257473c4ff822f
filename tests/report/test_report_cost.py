"""What a report costs grows with its cases, and not with their logs; seconds are benchmarks/report.py's."""

from pathlib import Path

import pytest

from tests.helpers import many_cases
from tests.helpers.reporting import report

pytestmark = pytest.mark.slow


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_memory_does_not_grow_with_the_size_of_the_logs(tmp_path: Path) -> None:
    short = many_cases.make(tmp_path / "short", 5)
    long = many_cases.make(tmp_path / "long", 5, log_factor=30)
    assert size(long) > 15 * size(short)
    costs = [report(run, tmp_path / "report.html") for run in (short, long)]
    # Thirty times the logs: pieces of a bounded size are read of them, which take some MiB.
    assert costs[1].peak_mib < 1.4 * costs[0].peak_mib
    assert costs[1].page_mib < 2 * costs[0].page_mib


def test_fifty_cases_are_a_page_of_less_than_three_megabytes(tmp_path: Path) -> None:
    run = many_cases.make(tmp_path / "run", 50)
    assert report(run, tmp_path / "report.html").page_mib * 2**20 < 3e6
