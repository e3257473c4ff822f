"""The summary of a run: the state of its cases, the verdict in one line, and the table of cases."""

import re
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from pytest_flagperf.kinds.training import verdicts as training_verdicts
from pytest_flagperf.report.terminal import summary as summary_module
from pytest_flagperf.report.terminal.summary import RunSummary, all_lines
from pytest_flagperf.report.terminal.table import console_table
from pytest_flagperf.results import verdicts
from pytest_flagperf.results.measured.limits import MachineRates
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.results.verdicts import OneCard, Verdict, VerdictKind
from pytest_flagperf.results.verdicts.case_result import (
    EXPECTED,
    FAILED,
    PASSED,
    REGRESSED,
    UNFINISHED,
    CaseResult,
    CaseSummary,
    summarize_case,
)
from tests.helpers.results_help import recorded, with_metric

BERT = "bert:pytorch:CPU:1:2:1"
GOOD = Verdict("finished", True, "finished", "finished", "it finished")
MISSED = Verdict("target", False, "0.3", "acc >= 0.9", "round 1: acc reached 0.3, expected 0.9")
SLOWER = Verdict("baseline p_core", False, "90", "at least 95", "p_core is 90", kind=VerdictKind.BASELINE)


def case(*judged: Verdict, replay: str = "converged_1x1", called: str = BERT) -> CaseResult:
    return CaseResult(called, (replace(recorded(replay), case=called),), {"test_x": judged} if judged else {})


def summary(state: str, called: str = BERT, **more: Any) -> CaseSummary:
    return CaseSummary(called, state, **more)


def run_of(*summaries: CaseSummary, **more: Any) -> RunSummary:
    return RunSummary(summaries=summaries, **more)


@pytest.mark.parametrize(
    ("measured", "text"), [(None, "which this run did not measure"), (5e10, "and 50 GFLOP/s was measured")]
)
def test_an_mfu_is_beside_whether_its_peak_was_measured(measured: float | None, text: str) -> None:
    run = RunSummary((case(GOOD), case(GOOD, called="glm:pytorch:CPU:1:1:1")))
    with mock.patch.object(summary_module, "rates_of", return_value=MachineRates(flops=measured)):
        lines = " ".join(run.lines(200))
    assert f"MFU: of the declared peak, {text}: {BERT}, glm:pytorch:CPU:1:1:1" in lines


@pytest.mark.parametrize(
    ("result", "state", "interrupted"),
    [
        (case(GOOD), PASSED, PASSED),
        (case(GOOD, called="bert:pytorch:CPU:1:2:3"), PASSED, UNFINISHED),
        (case(GOOD, MISSED), FAILED, FAILED),
        (case(GOOD, SLOWER), REGRESSED, REGRESSED),
        (case(MISSED, SLOWER), FAILED, FAILED),
        # Without a comparison a regression is unknown.
        (case(GOOD, replace(SLOWER, name="baseline", kind=VerdictKind.INCOMPARABLE)), FAILED, FAILED),
        (case(GOOD, replace(MISSED, expected_failure="known")), EXPECTED, EXPECTED),
        (case(SLOWER, replace(MISSED, expected_failure="known")), REGRESSED, REGRESSED),
        (case(), FAILED, UNFINISHED),
        (case(GOOD, replay="killed_rank"), FAILED, UNFINISHED),
        (case(GOOD, replay="interrupted"), FAILED, UNFINISHED),
    ],
)
def test_a_case_that_an_interrupted_run_did_not_finish_has_not_failed(
    result: CaseResult, state: str, interrupted: str
) -> None:
    assert (summarize_case(result).state, summarize_case(result, interrupted=True).state) == (state, interrupted)


def test_each_failure_is_listed_once_an_expected_one_with_its_reason() -> None:
    outcome = recorded("crashed_rank")
    failures = tuple(training_verdicts.converges(outcome))
    crashed = summarize_case(CaseResult(BERT, (outcome,), {"test_converges": failures, "test_throughput": failures}))
    assert len(crashed.failures) == len(set(crashed.failures)) == len(crashed.short)
    speedup = verdicts.speedup([recorded("converged_1x2")], OneCard(4000.0, "this run"), 2, 0.5, "weak")
    slow = summarize_case(case(*speedup))
    assert slow.short == ("speedup 0.84x, expected above 1x", "efficiency 42.1 %, expected at least 50.0 %")
    assert slow.failures[0].startswith("weak scaling: 2 cards do")
    (line,) = all_lines([summarize_case(case(GOOD, replace(MISSED, expected_failure="ticket 7")))])
    assert line == f"expected: {BERT}: {MISSED.sentence} (expected failure: ticket 7)"


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (run_of(summary(PASSED)), "flagperf: 1 of 1 case passed"),
        (
            run_of(summary(PASSED), summary(FAILED, short=("speedup 0.8x, expected above 1x",), warnings=("w", "v"))),
            f"flagperf: 1 of 2 cases passed, 1 failed ({BERT}: speedup 0.8x, expected above 1x); 2 warnings; r.html",
        ),
        (
            run_of(summary(REGRESSED, short=("slow",)), summary(FAILED, "b", short=("bad",)), summary(EXPECTED, "c")),
            "flagperf: 0 of 3 cases passed, 1 failed, 1 regressed (first b: bad), 1 failed as expected",
        ),
        (
            run_of(summary(PASSED), summary(UNFINISHED), not_run=("c", "d"), interrupted=True),
            "flagperf: interrupted: 1 of 4 cases passed, 1 not finished, 2 not run",
        ),
        (RunSummary(), "flagperf: no case ran"),
        (RunSummary(not_run=("a",), interrupted=True), "flagperf: interrupted: no case ran, 1 case requested"),
    ],
)
def test_the_verdict_is_one_line(run: RunSummary, line: str) -> None:
    run = replace(run, reports=("r.html",)) if "r.html" in line else run
    assert run.verdict() == line
    assert list(run.lines(200))[-1] == line


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
def test_a_narrow_verdict_leaves_out_the_least_important_parts(width: int) -> None:
    failed = summary(FAILED, "transformer_xl:pytorch_2.15:A100-80G-PCIe:2:8:3", short=("0.8x, expected above 1x",))
    run = run_of(failed, reports=("reports/run20261121103856/report.html",))
    line = run.verdict(width)
    assert len(line) <= max(width, 80)
    assert line.startswith("flagperf: 0 of 1 case passed, 1 failed")
    assert ("report.html" in line) == (width == 200 or "(" not in line)


def test_the_first_warning_of_a_case_is_a_short_line_after_the_failures_and_repeats_no_mark() -> None:
    long = "h1: a rank waited " + "for a core " * 40
    busy = summary(PASSED, marks={"figures not valid": long}, warnings=(f"round 1: {long}",))
    slow = summary(FAILED, "slow", short=("bad",), warnings=(long, "again", "once more"))
    failed, mark, warning, verdict = run_of(busy, slow).lines(1000)
    assert (failed, verdict[-12:]) == ("failed: slow: bad", "; 4 warnings")
    assert len(mark) <= len(f"figures not valid: {BERT}: ") + 120
    reasons = {"a": "h1: waited 31 %", "b": "h2: waited 9.5 %", "c": "h1: hot"}
    marked = [summary(PASSED, name, marks={"figures not valid": text}) for name, text in reasons.items()]
    assert "figures not valid: a, b, c: h1: waited 31 % (2 cases); h1: hot (1 case)" in run_of(*marked).lines(1000)
    assert re.fullmatch(r"warning: slow: h1: a rank .* \.\.\. \(and 2 more warnings\)", warning)
    assert f"warning: {BERT}: round 1: {long}" in all_lines([busy])
    waits = [(n, (ValidityWarning("busy", f"h1: waited {30 + n} %"),)) for n in (1, 2, 3)]
    rounds = tuple(replace(recorded("converged_1x1"), round=n, validity_warnings=wait) for n, wait in waits)
    assert summarize_case(CaseResult(BERT, rounds)).warnings == ("round 1 (similar in 2, 3): h1: waited 31 %",)


def test_a_long_list_of_failures_is_truncated_and_its_lines_are_broken_between_words() -> None:
    failed = [summary(FAILED, f"case{number}", short=("a word " * 40,)) for number in range(25)]
    lines = list(run_of(*failed).lines(80))
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("  ")
    assert sum(line.startswith("failed: ") for line in lines) == 10
    assert "... and 15 more" in lines


# -- the table of cases --------------------------------------------------------------------------------------


def listed(name: str, called: str, rounds: int = 1, one_card: float | None = None) -> CaseResult:
    outcome = replace(recorded(name), case=called)
    return CaseResult(called, (outcome,) * rounds, {}, OneCard(one_card, "this run") if one_card else None)


def long_names() -> CaseResult:
    original = recorded("converged_1x2")
    target = replace(original.target, name="masked_lm_accuracy", value=0.123456)
    outcome = replace(original, case="bert:pytorch:CPU:1:2:1", target=target, sample_unit="sequences")
    for name, value in (("p_whole", 123456.0), ("p_train", 123456.0), ("p_core", 123456.0), ("e2e_time", 86000.0)):
        outcome = with_metric(outcome, name, value)
    return CaseResult(outcome.case, (outcome,), {}, OneCard(1000.0, "this run"))


CASES = [
    listed("converged_1x1", "resnet50:pytorch:CPU:1:1:3", 3),
    listed("converged_1x2", "resnet50:pytorch:CPU:1:2:1", one_card=1750.0),
    listed("missed_target", "transformer_xl:pytorch_2.15:A100-80G-PCIe:2:8:3"),
    listed("crashed_rank", "bert:pytorch:CPU:1:2:1"),
    listed("throughput_only", "glm:pytorch:H200:1:1:1"),
    long_names(),
]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_table_fits_and_is_complete(width: int) -> None:
    assert console_table([], width) == ["no results"]
    lines = console_table(CASES, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for expected in (
        *(result.case.split(":")[0] for result in CASES), "3/3", "0/1", "not tested", "0.924", "0.874",
        "1,684", "images/s", "1.92x", "9.1 s",
    ):  # fmt: skip
        assert expected in text, expected


@pytest.mark.parametrize(
    ("width", "row"),
    [
        (130, "resnet50:pytorch:CPU:1:2:1 1/1 1/1 top1 0.924 (>= 0.900) 2,133 3,200 3,368 images/s 1.7 % 1.92x 9.1 s"),
        (100, "resnet50:pytorch:CPU:1:2:1 1/1 top1 0.924 (>= 0.900) 3,368 images/s 1.7 % 1.92x 9.1 s"),
        (92, "resnet50 1x2 1/1 top1 0.924 (>= 0.900) 3,368 images/s 1.7 % 1.92x 9.1 s"),
        (81, "resnet50 1x2 1/1 top1 0.924 3,368 images/s 1.7 % 1.92x 9.1 s"),
        (80, "resnet50 1x2 1/1 0.924 3,368 images/s 1.7 % 1.92x 9.1 s"),
        (70, "1/1 0.924 (>= 0.900) 3,368 images/s 1.7 % 1.92x 9.1 s"),
    ],
)
def test_a_case_has_one_line_with_the_columns_that_fit(width: int, row: str) -> None:
    lines = console_table(CASES[:2], width)
    assert " ".join(lines[-1].split()) == row
    assert len(lines) == (6 if width == 70 else 3), "only where nothing else fits has the name a line of its own"
