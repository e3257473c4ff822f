"""The table of cases on the terminal."""

from dataclasses import replace

import pytest

from pytest_flagperf.report.terminal.table import console_table
from pytest_flagperf.results.verdicts import OneCard
from pytest_flagperf.results.verdicts.case_result import CaseResult
from tests.helpers.results_help import recorded, with_metric


def case(name: str, called: str, rounds: int = 1, one_card: float | None = None) -> CaseResult:
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
    case("converged_1x1", "resnet50:pytorch:CPU:1:1:3", 3),
    case("converged_1x2", "resnet50:pytorch:CPU:1:2:1", one_card=1750.0),
    case("missed_target", "transformer_xl:pytorch_2.15:A100-80G-PCIe:2:8:3"),
    case("crashed_rank", "bert:pytorch:CPU:1:2:1"),
    case("throughput_only", "glm:pytorch:H200:1:1:1"),
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
