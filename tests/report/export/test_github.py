"""The summary for GitHub: texts are escaped, and the size is limited."""

from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.report.export import github
from pytest_flagperf.report.terminal.summary import RunSummary, summarize_run
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import FAILED, CaseResult, CaseSummary
from tests.helpers.results_help import recorded

HOSTILE = "50 %, a:b\r\n::error::x | <script>`*[link](http://x)"


def summary(number: int, state: str = FAILED, **more: Any) -> CaseSummary:
    return CaseSummary(f"bert:pytorch:CPU:1:2:{number}", state, **more)


def run_of(*replays: str) -> RunSummary:
    cases = [CaseResult(recorded(name).case, (recorded(name),)) for name in replays]
    return summarize_run(StoredRun(Path("run1"), None, tuple(cases)), not_run=["glm: has no config"])


def test_the_summary_begins_with_verdict_and_failures_and_texts_are_no_markup() -> None:
    text = github.summary(run_of("converged_1x1", "crashed_rank"))
    lines = text.splitlines()
    assert lines[0].startswith("### flagperf: 0 of 3 cases passed, 2 failed")
    assert text.index("ModuleNotFoundError") < text.index("| case |") < text.index("<details>")
    rows = [line for line in lines if line.startswith("| ")]
    assert len({line.count("|") for line in rows}) == 1
    assert len(rows) == 4
    assert "- glm: has no config" in lines
    text = github.summary(RunSummary(summaries=(summary(1, failures=(HOSTILE,), warnings=(HOSTILE,)),)))
    assert "<script" not in text
    assert "\\|" in text
    assert "\\[link\\]" in text
    assert all(not line.startswith("::") for line in text.splitlines())


@pytest.mark.parametrize("limit", [0, 20, 100, 1000, 3000, 100_000, 10_000_000])
def test_the_summary_has_a_size_limit_and_reports_truncation(limit: int) -> None:
    failed = tuple(summary(number, failures=("ä" * 100,)) for number in range(200))
    text = github.summary(RunSummary(summaries=failed), limit)
    assert len(text.encode()) <= limit
    assert text == "" or text.endswith("\n\n")
    assert ("This summary is truncated" in text) == (100 <= limit < 100_000)
