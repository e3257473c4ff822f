"""A figure of a step is declared in one place, and then it is in the outcome, the tables and the page."""

import re
from html import escape
from pathlib import Path

import pytest

from flagperf_driver.logged_step import CHARTED, STEP_FIGURES
from pytest_flagperf.results.figures.kinds import FIGURES
from pytest_flagperf.results.tables import columns
from pytest_flagperf_page import page
from tests.helpers.results_help import recorded
from tests.helpers.stored_runs import run_of

REPO = Path(__file__).resolve().parents[3]


def test_the_figures_of_the_last_step_are_in_the_tables_and_on_the_page(tmp_path: Path) -> None:
    """tests/driver/training/test_training.py shows that the loop logs them."""
    outcome = recorded("experts")
    text = page.standalone(run_of(tmp_path, "experts"), tmp_path / "report.html")
    for name, value in (("expert_load", 1.6), ("expert_entropy", 0.8)):
        metric = outcome.metric(name)
        assert metric is not None
        assert metric.value == pytest.approx(value)
        assert metric.how == STEP_FIGURES[name].how
        assert columns.row("run", outcome)[name] == metric.value
        assert escape(FIGURES[name].meaning) in text


@pytest.mark.parametrize("name", CHARTED)
def test_at_most_eight_files_name_a_figure(name: str) -> None:
    """Those that declare, measure and judge it, and those that set its limit."""
    folders = ("pytest_flagperf", "flagperf_driver", "suites")
    files = [path for folder in folders for path in REPO.glob(f"{folder}/**/*.py") if "tests" not in path.parts]
    naming = [path for path in files if re.search(rf"\b(max_)?{name}\b", path.read_text(encoding="utf-8"))]
    assert 0 < len(naming) <= 8, naming
