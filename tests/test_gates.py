"""What a round must get past beside what it says of itself: marks, and the runs before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_flagperf.results import gates
from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.validity import Mark
from tests.results_help import recorded, with_metric

QUIET = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.996, 1.001)


def rounds(*factors: float) -> list[Outcome]:
    return [with_metric(recorded("converged_1x1"), "p_core", 100 * factor) for factor in factors]


def history(*factors: float, before: tuple[float, ...] = QUIET) -> dict[str, str]:
    found = gates.history(rounds(*factors), [rounds(each, each) for each in before], ["p_core"])
    return {one.name: f"{one.ok} {one.got}" for one in found}


@pytest.mark.parametrize("strict", [False, True])
def test_marks_are_said_and_fail_where_all_is_strict(strict: bool) -> None:
    marks = (Mark("throttled", "device 0 was slow"), Mark("gap", "host a was not sampled"))
    found = gates.valid(replace(recorded("converged_1x1"), marks=marks), strict=strict)
    assert (found.name, found.ok, found.got) == ("valid", not strict, "throttled, gap")
    assert found.sentence == "round 1: its figures are bent: device 0 was slow; host a was not sampled"
    assert gates.valid(replace(recorded("converged_1x1"), marks=()), strict=strict).ok


def test_a_regression_is_worse_and_noise_is_none() -> None:
    assert history(0.92) == {"history p_core": f"False {noise.WORSE}"}
    assert history(0.998, 1.001) == {"history p_core": f"True {noise.WITHIN}"}
    assert history(1.2) == {"history p_core": f"True {noise.BETTER}"}


def test_where_runs_vary_so_much_themselves_the_same_is_no_regression() -> None:
    assert history(0.92, before=(1.0, 1.1, 0.9, 1.06, 0.94, 1.1, 0.93, 1.0)) == {
        "history p_core": f"True {noise.WITHIN}"
    }


def test_of_few_runs_nothing_is_said() -> None:
    assert history(0.5, before=QUIET[: noise.FEWEST - 1]) == {"history p_core": f"True {noise.TOO_FEW}"}


def test_what_no_round_has_is_another_verdicts_business() -> None:
    lost = with_metric(recorded("converged_1x1"), "p_core", None)
    assert gates.history([lost], [rounds(1.0)] * 8, ["p_core"]) == []


def test_as_warnings_nothing_fails_and_what_would_is_to_be_read() -> None:
    worse = gates.history(rounds(0.92), [rounds(each) for each in QUIET], ["p_core"])
    (found,) = gates.as_warnings(worse)
    assert (found.ok, found.warning, found.got) == (True, True, noise.WORSE)
    fine = gates.history(rounds(1.0), [rounds(each) for each in QUIET], ["p_core"])
    assert gates.as_warnings(fine) == fine
