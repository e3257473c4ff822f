"""A figure of a step is declared in one place, from which the log, the outcome, the tables and the page follow."""

import re
from pathlib import Path

import pytest

from flagperf_driver.logged_step import CHARTED

REPO = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", CHARTED)
def test_at_most_eight_files_name_a_figure(name: str) -> None:
    """Those that declare, measure and judge it, and those that set its limit."""
    folders = ("pytest_flagperf", "flagperf_driver", "suites")
    files = [path for folder in folders for path in REPO.glob(f"{folder}/**/*.py") if "tests" not in path.parts]
    naming = [path for path in files if re.search(rf"\b(max_)?{name}\b", path.read_text(encoding="utf-8"))]
    assert 0 < len(naming) <= 8, naming
