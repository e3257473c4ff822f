"""What noise is measured to be, and how a new run is judged by it; simulated histories are seeded."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from pytest_flagperf.results import noise
from pytest_flagperf.results.noise import BETTER, CHANGED, DRIFT, MISSING, STEP, TOO_FEW, UNCLEAR, WITHIN, WORSE

Runs = list[list[float]]
SLOWER = 0.92
QUIET = [[100.0, 101.0, 99.0], [101.0, 100.5, 102.0], [99.0, 100.0, 98.5]] * 4


def flat(_: int) -> float:
    return 1.0


def simulated(
    rng: random.Random, runs: int, level: Callable[[int], float] = flat, *, of_run: float = 0.0, of_round: float = 0.02
) -> Runs:
    """Runs of three rounds about a level, with the noise of a run, which its rounds share, and that of a round."""
    middles = [100 * level(number) * (1 + rng.gauss(0, of_run)) for number in range(runs)]
    return [[middle * (1 + rng.gauss(0, of_round)) for _ in range(3)] for middle in middles]


def scaled(run: Sequence[float], factor: float) -> list[float]:
    return [value * factor for value in run]


def word(history: Runs, new: Sequence[float], direction: str | None = "higher") -> str:
    return noise.judge(history, new, direction=direction).word


def medians(runs: Runs) -> list[float]:
    return [statistics.median(run) for run in runs]


# -- simulated -----------------------------------------------------------------------------------------------


def test_a_planted_slowdown_is_flagged_with_three_rounds() -> None:
    """8 % where rounds differ by 2 %, after 20 runs, 200 times over."""
    rng = random.Random(1)
    histories = [simulated(rng, 21) for _ in range(200)]
    flagged = [word(runs[:-1], scaled(runs[-1], SLOWER)) == WORSE for runs in histories]
    assert sum(flagged) >= 0.95 * len(flagged)


def test_noise_that_all_rounds_of_a_run_share_may_take_more_than_one_run_to_flag() -> None:
    """More rounds do not help there: 8 % is below four deviations of a run, and honest runs must stay untold."""
    rng = random.Random(2)
    first, any_of_three = 0, 0
    for _ in range(100):
        runs = simulated(rng, 33, of_run=0.02, of_round=0.01)
        words = [word(runs[:30], scaled(run, SLOWER)) for run in runs[30:]]
        first += words[0] == WORSE
        any_of_three += WORSE in words
    assert first >= 60
    assert any_of_three >= 85


@pytest.mark.parametrize(("of_run", "of_round"), [(0.0, 0.02), (0.02, 0.01), (0.02, 0.0)])
def test_fifty_honest_reruns_give_at_most_two_false_alarms(of_run: float, of_round: float) -> None:
    rng = random.Random(3)
    for _ in range(20):
        runs = simulated(rng, 60, of_run=of_run, of_round=of_round)
        words = [word(runs[:number], runs[number]) for number in range(10, 60)]
        assert words.count(WORSE) <= 2


def test_one_outlier_poisons_nothing_after_it() -> None:
    rng = random.Random(4)
    honest, slowed = [], []
    for _ in range(100):
        runs = simulated(rng, 21)
        runs[-2] = scaled(runs[-2], 0.7)
        honest.append(word(runs[:-1], runs[-1]))
        slowed.append(word(runs[:-1], scaled(runs[-1], SLOWER)))
        assert word(runs[:-2], runs[-2]) == WORSE
        assert not any(shift.first == 19 for shift in noise.shifts(medians(runs)))
    assert honest.count(WITHIN) >= 97
    assert slowed.count(WORSE) >= 95


@pytest.mark.parametrize(
    ("level", "right", "wrong"),
    [
        (lambda number: 1.0 if number < 15 else SLOWER, STEP, DRIFT),
        (lambda number: 1.0 - 0.12 * number / 30, DRIFT, STEP),
    ],
    ids=[STEP, DRIFT],
)
def test_a_step_and_a_drift_are_told_apart_or_it_is_said_that_they_are_not(
    level: Callable[[int], float], right: str, wrong: str
) -> None:
    rng = random.Random(5)
    found = [noise.shifts(medians(simulated(rng, 30, level))) for _ in range(50)]
    kinds = [shifts[0].kind if len(shifts) == 1 else "several" if shifts else "none" for shifts in found]
    assert kinds.count(right) >= 45
    assert kinds.count(wrong) == 0


def test_a_short_history_does_not_claim_to_know_a_step_from_a_drift() -> None:
    rng = random.Random(6)
    found = [noise.shifts(medians(simulated(rng, 8, lambda n: 1 - 0.12 * n / 8, of_run=0.02))) for _ in range(100)]
    kinds = [shift.kind for shifts in found for shift in shifts]
    assert kinds.count(UNCLEAR) > kinds.count(STEP) * 5


def test_a_history_without_a_change_has_none() -> None:
    rng = random.Random(7)
    found = [noise.shifts(medians(simulated(rng, 30, of_run=0.02))) for _ in range(100)]
    assert sum(map(bool, found)) <= 2


def test_a_step_is_found_at_its_place_and_becomes_the_level_after_half_a_window() -> None:
    rng = random.Random(8)
    runs = simulated(rng, 32, lambda number: 1.0 if number < 20 else SLOWER)
    (shift,) = noise.shifts(medians(runs))
    assert (shift.kind, shift.first) == (STEP, 20)
    assert shift.before == pytest.approx(100, rel=0.02)
    assert shift.after == pytest.approx(92, rel=0.02)
    assert [word(runs[:number], runs[number]) for number in (20, 21, 22, 31)] == [WORSE, WORSE, WORSE, WITHIN]


def test_a_staircase_is_steps_and_no_drift() -> None:
    rng = random.Random(11)
    runs = simulated(rng, 60, lambda number: 1.0 - 0.1 * (number // 15))
    found = noise.shifts(medians(runs))
    assert [(shift.kind, shift.first) for shift in found] == [(STEP, 15), (STEP, 30), (STEP, 45)]
    assert found[1].before == pytest.approx(90, rel=0.02)
    assert found[1].after == pytest.approx(80, rel=0.02)


# -- by hand -------------------------------------------------------------------------------------------------


def test_too_few_runs_are_said_to_be_too_few() -> None:
    judged = noise.judge(QUIET[:4], [50.0], direction="higher")
    assert judged.word == TOO_FEW
    assert judged.sentence == "4 earlier runs like this one; the noise is known from 5 on"
    assert judged.change == pytest.approx(-0.5, abs=0.01)
    first = noise.judge([], [50.0], direction="higher")
    assert (first.word, first.level, first.change) == (TOO_FEW, None, None)


def test_runs_without_a_value_do_not_count() -> None:
    assert word([*QUIET[:4], [], []], [50.0]) == TOO_FEW
    assert word([*QUIET, []], []) == MISSING
    assert word([*QUIET, []], [100.0]) == WITHIN


@pytest.mark.parametrize(
    ("direction", "value", "wanted"),
    [
        ("higher", 80.0, WORSE),
        ("lower", 80.0, BETTER),
        ("higher", 120.0, BETTER),
        ("lower", 120.0, WORSE),
        (None, 120.0, CHANGED),
        ("higher", 100.4, WITHIN),
    ],
)
def test_which_way_is_worse(direction: str | None, value: float, wanted: str) -> None:
    assert word(QUIET, [value] * 3, direction) == wanted


def test_the_sentence_says_how_much_against_what_and_how_sure() -> None:
    sentence = noise.judge(QUIET, [80.0] * 3, direction="higher", unit="images/s").sentence
    assert sentence.startswith("80 images/s is 20.0 % below 100 images/s, the median of the 10 runs before; a change")
    assert "noise goes this far once in about " in sentence
    assert "noise goes" not in noise.judge(QUIET, [100.4] * 3, direction="higher").sentence


def test_what_is_smaller_than_anybody_cares_about_is_no_change() -> None:
    same = [[100.0]] * 8
    assert word(same, [99.5]) == WITHIN
    assert word(same, [98.0]) == WORSE
    assert "less than once in a million" in noise.judge(same, [98.0], direction="higher").sentence


def test_values_about_zero_have_no_shares() -> None:
    assert word([[0.0]] * 6, [0.0]) == WITHIN
    assert noise.judge([[0.0]] * 6, [2.0], direction="lower").sentence == "the level was 0 and is 2"
    assert noise.measure([[0.0]] * 6).between is None


def test_fewer_rounds_than_usual_are_less_sure() -> None:
    rng = random.Random(9)
    runs = simulated(rng, 20)
    needed = [noise.judge(runs, [100.0] * rounds, direction="higher").needed or 0 for rounds in (1, 3)]
    assert needed[0] > 1.3 * needed[1]


def test_the_noise_of_rounds_and_of_runs_is_measured() -> None:
    rng = random.Random(10)
    measured = noise.measure(simulated(rng, 30, lambda n: 1.0 if n < 15 else 0.8, of_run=0.03, of_round=0.01))
    assert measured.within == pytest.approx(0.01, rel=0.35)
    assert measured.between == pytest.approx(0.03, rel=0.35)
    assert noise.measure([]).between is None


def test_outliers_are_told_from_steps() -> None:
    values = [100.0, 101.0, 99.0, 60.0, 100.0, 101.0, 99.5, 90.0, 91.0, 90.0, 89.0, 90.5]
    assert list(noise.outliers(values)) == [3]
    assert list(noise.outliers(values[:4])) == []
    assert list(noise.outliers([5.0] * 8)) == []


def test_where_most_values_are_equal_the_others_still_count() -> None:
    assert noise.spread([100.0] * 6 + [106.0] + [100.0] * 6) == pytest.approx(1.04 * 6 / 12**0.5)
    assert noise.spread([100.0, 101.0]) is None
