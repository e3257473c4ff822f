"""The summary for GitHub: nothing breaks out of it, and it keeps within its limits."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_flagperf.report.export import github
from pytest_flagperf.report.terminal.summary import FAILED, Closing, Told, closing
from pytest_flagperf.results.store import CaseResult, Run
from tests.results_help import REPLAYS, recorded

HOSTILE = "50 %, a:b\r\n::error::x | <script>`*[link](http://x)"


def told(number: int, state: str = FAILED, **more: Any) -> Told:
    return Told(f"bert:pytorch:CPU:1:2:{number}", state, **more)


def run_of(*replays: str) -> Closing:
    cases = [CaseResult(recorded(name).case, (recorded(name),)) for name in replays]
    return closing(Run(REPLAYS, None, tuple(cases)), not_run=["glm: has no config"])


def test_the_summary_says_first_what_matters() -> None:
    text = github.summary(run_of("converged_1x1", "crashed_rank"))
    lines = text.splitlines()
    assert lines[0].startswith("### flagperf: 0 of 3 cases passed, 2 failed")
    assert text.index("ModuleNotFoundError") < text.index("| case |") < text.index("<details>")
    rows = [line for line in lines if line.startswith("| ")]
    assert len({line.count("|") for line in rows}) == 1
    assert len(rows) == 4
    assert "- glm: has no config" in lines


def test_nothing_that_a_log_says_becomes_markup() -> None:
    end = Closing(told=(told(1, failures=(HOSTILE,), warnings=(HOSTILE,)),))
    text = github.summary(end)
    assert "<script" not in text
    assert "\\|" in text
    assert "\\[link\\]" in text
    assert all(not line.startswith("::") for line in text.splitlines())


@pytest.mark.parametrize("room", [0, 20, 100, 1000, 3000, 100_000, 10_000_000])
def test_the_summary_keeps_within_its_room_and_says_so_where_it_is_cut(room: int) -> None:
    text = github.summary(Closing(told=tuple(told(number, failures=("ä" * 100,)) for number in range(200))), room)
    assert len(text.encode()) <= room
    assert text == "" or text.endswith("\n\n")
    assert ("More did not fit" in text) == (100 <= room < 100_000)
