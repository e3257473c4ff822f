"""What a run closes with: how its cases stand, and the verdict in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_flagperf.report.terminal.summary import (
    EXPECTED,
    FAILED,
    PASSED,
    REGRESSED,
    UNFINISHED,
    Closing,
    Told,
    all_lines,
    tell,
)
from pytest_flagperf.results import verdicts
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.verdicts import Kind, OneCard, Verdict
from tests.results_help import recorded

BERT = "bert:pytorch:CPU:1:2:1"
GOOD = Verdict("finished", True, "finished", "finished", "it finished")
MISSED = Verdict("target", False, "0.3", "acc >= 0.9", "round 1: acc reached 0.3, wanted 0.9")
SLOWER = Verdict("baseline p_core", False, "90", "at least 95", "p_core is 90, below the baseline", kind=Kind.BASELINE)


def case(*judged: Verdict, replay: str = "converged_1x1", called: str = BERT) -> CaseResult:
    return CaseResult(called, (replace(recorded(replay), case=called),), {"test_x": judged} if judged else {})


def told(state: str, called: str = BERT, **more: Any) -> Told:
    return Told(called, state, **more)


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (case(GOOD), PASSED),
        (case(GOOD, MISSED), FAILED),
        (case(GOOD, SLOWER), REGRESSED),
        (case(MISSED, SLOWER), FAILED),
        (
            case(GOOD, replace(SLOWER, name="baseline", kind=Kind.INCOMPARABLE)),
            FAILED,
        ),  # it cannot be compared: worse is not known
        (case(GOOD, replace(MISSED, expected="known")), EXPECTED),
        (case(SLOWER, replace(MISSED, expected="known")), REGRESSED),
        (case(), FAILED),
        (case(GOOD, replay="killed_rank"), FAILED),
    ],
)
def test_how_a_case_stands(result: CaseResult, state: str) -> None:
    assert tell(result).state == state


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (case(GOOD), PASSED),
        (case(), UNFINISHED),
        (case(GOOD, called="bert:pytorch:CPU:1:2:3"), UNFINISHED),
        (case(GOOD, replay="interrupted"), UNFINISHED),
        (case(MISSED), FAILED),
    ],
)
def test_what_an_interrupted_run_did_not_get_through_is_no_failure(result: CaseResult, state: str) -> None:
    assert tell(result, interrupted=True).state == state


def test_a_sentence_is_told_once_and_in_short() -> None:
    outcome = recorded("crashed_rank")
    found = verdicts.converges(outcome)
    one = tell(CaseResult(BERT, (outcome,), {"test_converges": tuple(found), "test_throughput": tuple(found)}))
    assert len(one.failures) == len(set(one.failures)) == len(one.short)
    slow = tell(case(*verdicts.speedup([recorded("converged_1x2")], OneCard(4000.0, "this run"), 2, 0.5, "weak")))
    assert slow.short == ("speedup 0.84x, wanted above 1x", "efficiency 42.1 %, wanted at least 50.0 %")
    assert slow.failures[0].startswith("weak scaling: 2 cards do")


def test_an_expected_failure_is_told_with_its_reason() -> None:
    (line,) = all_lines([tell(case(GOOD, replace(MISSED, expected="ticket 7")))])
    assert line == f"expected: {BERT}: {MISSED.sentence} (expected: ticket 7)"


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (Closing(told=(told(PASSED),)), "flagperf: 1 of 1 case passed"),
        (
            Closing(told=(told(PASSED), told(FAILED, short=("speedup 0.8x, wanted above 1x",), warnings=("w", "v")))),
            f"flagperf: 1 of 2 cases passed, 1 failed ({BERT}: speedup 0.8x, wanted above 1x); 2 warnings; r.html",
        ),
        (
            Closing(told=(told(REGRESSED, short=("slow",)), told(FAILED, "b", short=("bad",)), told(EXPECTED, "c"))),
            "flagperf: 0 of 3 cases passed, 1 failed, 1 regressed (first b: bad), 1 failed as expected",
        ),
        (
            Closing(told=(told(PASSED), told(UNFINISHED)), not_run=("c", "d"), interrupted=True),
            "flagperf: interrupted: 1 of 4 cases passed, 1 not finished, 2 not run",
        ),
        (Closing(), "flagperf: no case ran"),
        (Closing(not_run=("a",), interrupted=True), "flagperf: interrupted: no case ran, 1 case asked for"),
    ],
)
def test_the_verdict_is_one_line(end: Closing, line: str) -> None:
    end = replace(end, reports=("r.html",)) if "r.html" in line else end
    assert end.verdict() == line
    assert list(end.lines(200))[-1] == line


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
def test_what_does_not_fit_is_left_out_the_least_needed_first(width: int) -> None:
    failed = told(FAILED, "transformer_xl:pytorch_2.15:A100-80G-PCIe:2:8:3", short=("speedup 0.8x, wanted above 1x",))
    end = Closing(told=(failed,), reports=("reports/run20261121103856/report.html",))
    line = end.verdict(width)
    assert len(line) <= max(width, 80)
    assert line.startswith("flagperf: 0 of 1 case passed, 1 failed")
    assert ("report.html" in line) == (width == 200 or "(" not in line)


def test_lines_are_broken_between_words_where_they_are_long() -> None:
    failed = told(FAILED, short=("a word " * 40,))
    lines = list(Closing(told=(failed,)).lines(80))
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("  ")


def test_of_many_failures_some_are_told_and_how_many_more() -> None:
    lines = list(Closing(told=tuple(told(FAILED, f"case{number}", short=("bad",)) for number in range(25))).lines(80))
    assert sum(line.startswith("failed: ") for line in lines) == 10
    assert "... and 15 more like these" in lines
