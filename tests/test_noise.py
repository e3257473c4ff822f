"""What noise is measured to be, and how a new run is judged by it; simulated histories are seeded."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.noise import (
    BETTER,
    CHANGED,
    DRIFT,
    MISSING,
    STEP,
    TOO_FEW,
    UNCLEAR,
    WITHIN,
    WORSE,
)

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


NOISE = {"a round's": (0.0, 0.02), "a run's": (0.02, 0.0), "both": (0.016, 0.018)}
"""2 % in each sense: that of one training; that which all rounds of a run share; that of a run's median, of both."""


def throughputs(rng: random.Random, runs: int, of_run: float, of_round: float) -> list[Runs]:
    """Three figures of the same trainings: as in real runs, they share most of their noise."""
    shared = simulated(rng, runs, of_run=of_run, of_round=of_round)
    own = [simulated(rng, runs, of_run=0.25 * of_run, of_round=0.25 * of_round) for _ in range(3)]
    return [
        [[a * b / 100 for a, b in zip(*pair, strict=True)] for pair in zip(shared, one, strict=True)] for one in own
    ]


def called_worse(histories: list[Runs], number: int, factor: float = 1.0) -> bool:
    """Whether any of the figures of a run calls it worse than those before it."""
    return any(word(runs[:number], scaled(runs[number], factor)) == WORSE for runs in histories)


@pytest.mark.parametrize(("earlier", "wanted"), [(20, {"a round's": 0.99}), (30, {"a round's": 0.99, "both": 0.94})])
@pytest.mark.parametrize("kind", NOISE)
def test_a_planted_slowdown_of_8_percent_is_flagged_with_three_rounds(
    kind: str, earlier: int, wanted: dict[str, float]
) -> None:
    rng = random.Random(1)
    flagged = [called_worse(throughputs(rng, earlier + 1, *NOISE[kind]), earlier, SLOWER) for _ in range(200)]
    assert sum(flagged) >= wanted.get(kind, 0.9) * len(flagged)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NOISE)
def test_fifty_honest_reruns_give_at_most_two_false_alarms(kind: str) -> None:
    """At all three figures together; chance does more in some series of twenty."""
    rng = random.Random(3)
    alarms = []
    for _ in range(16):
        histories = throughputs(rng, 60, *NOISE[kind])
        alarms.append(sum(called_worse(histories, number) for number in range(10, 60)))
    assert sum(alarms) <= 0.03 * 50 * len(alarms)
    assert sum(each <= 2 for each in alarms) >= 0.85 * len(alarms)


def test_a_rule_that_flags_more_slowdowns_calls_too_many_honest_runs_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "CHANCE", 0.03)
    rng = random.Random(3)
    histories = [throughputs(rng, 60, *NOISE["a run's"]) for _ in range(10)]
    alarms = [sum(called_worse(each, number) for number in range(10, 60)) for each in histories]
    assert sum(each <= 2 for each in alarms) < 0.85 * len(alarms)


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
    sentence = noise.judge(QUIET, [96.0] * 3, direction="higher", unit="images/s").sentence
    assert sentence.startswith("96 images/s is 4.0 % below 100 images/s, the median of the 12 runs before; a change")
    assert "noise goes this far once in about " in sentence
    assert "noise goes" not in noise.judge(QUIET, [100.4] * 3, direction="higher").sentence


def test_what_is_smaller_than_anybody_cares_about_is_no_change() -> None:
    same = [[100.0]] * 8
    assert word(same, [99.5]) == WITHIN
    assert word(same, [98.0]) == WORSE
    assert "less than once in a million" in noise.judge(same, [98.0], direction="higher").sentence


def test_values_about_zero_have_no_shares() -> None:
    assert word([[0.0]] * 6, [0.0]) == WITHIN
    assert (
        noise.judge([[0.0]] * 6, [2.0], direction="lower").sentence
        == "the median of the 6 runs before was 0, now it is 2"
    )
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


def test_of_a_few_runs_none_is_an_outlier_that_the_noise_is_measured_without() -> None:
    """As measured: the second lies off four that happen to agree, and the sixth is no slower than honest runs go."""
    runs = [[2908.0], [2859.0], [2912.0], [2923.0], [2918.0]]
    assert word(runs, [2824.0]) == WITHIN
    assert word(runs, [2500.0]) == WORSE


def test_outliers_are_told_from_steps() -> None:
    values = [100.0, 101.0, 99.0, 60.0, 100.0, 101.0, 99.5, 90.0, 91.0, 90.0, 89.0, 90.5]
    assert list(noise.outliers(values)) == [3]
    assert list(noise.outliers(values[:4])) == []
    assert list(noise.outliers([5.0] * 8)) == []


def test_where_most_values_are_equal_the_others_still_count() -> None:
    assert noise.spread([100.0] * 6 + [106.0] + [100.0] * 6) == pytest.approx(1.04 * 6 / 12**0.5)
    assert noise.spread([100.0, 101.0]) is None


# -- two runs ------------------------------------------------------------------------------------------------


def of_two(old: Sequence[float], new: Sequence[float], like: Runs | None = None) -> noise.Judgement:
    return noise.compare(old, new, like or [], direction="higher", least=0.05)


def test_two_runs_are_judged_by_their_rounds_where_no_like_runs_are_known() -> None:
    judged = of_two([100.0, 101.0, 99.0], [90.0, 91.0, 89.0])
    assert (judged.word, judged.error and judged.error.source) == (WORSE, noise.FROM_ROUNDS)
    assert judged.needed == 0.05
    noisy = of_two([90.0, 100.0, 110.0], [80.0, 90.0, 100.0])
    assert noisy.word == WITHIN
    assert noisy.needed is not None
    assert noisy.needed > 0.3


def test_of_two_rounds_a_side_chance_goes_far() -> None:
    """Student's distribution of two degrees: twice the standard error would be exceeded by one honest run in eleven."""
    few = of_two([100.0, 102.0], [100.0, 102.0]).error
    many = of_two([100.0, 102.0] * 5, [100.0, 102.0] * 5).error
    assert few is not None
    assert many is not None
    assert few.limit / few.share == pytest.approx(6.96, rel=0.01)
    assert many.limit / many.share == pytest.approx(2.55, rel=0.01)


def test_honest_pairs_of_few_rounds_are_seldom_called_worse() -> None:
    rng = random.Random(12)
    pairs = [simulated(rng, 2, of_round=0.06) for _ in range(2000)]
    words = [noise.compare(old, new, direction="higher").word for old, new in pairs]
    assert words.count(WORSE) <= 2 * noise.CHANCE * len(words)
    assert words.count(BETTER) <= 2 * noise.CHANCE * len(words)


def test_like_runs_tell_what_the_rounds_of_two_runs_cannot() -> None:
    """Rounds that are alike, in runs that are not: their own noise would call a quarter of honest runs worse."""
    rng = random.Random(13)
    alone, known = [], []
    for _ in range(300):
        *like, new = simulated(rng, 21, of_run=0.03, of_round=0.003)
        alone.append(noise.compare(like[-1], new, direction="higher").word)
        known.append(noise.compare(like[-1], new, like, direction="higher").word)
    assert alone.count(WORSE) >= 0.25 * len(alone)
    assert known.count(WORSE) <= 0.03 * len(known)


def test_a_lone_round_each_is_judged_by_the_threshold_and_that_is_known() -> None:
    judged = of_two([100.0], [90.0])
    assert (judged.word, judged.error, judged.chance) == (WORSE, None, None)
    assert "noise goes" not in judged.sentence
    assert of_two([100.0], [90.0], [[100.0], [80.0], [120.0], [90.0], [110.0]]).word == WITHIN


def test_two_runs_without_values_or_a_level() -> None:
    assert of_two([100.0], []).word == MISSING
    assert of_two([], [100.0]).word == TOO_FEW
    assert of_two([0.0], [1.0]).sentence == "the old run was 0, now it is 1"


def test_the_level_of_each_run_follows_what_changed() -> None:
    steps = [100.0] * 6 + [80.0] * 6
    assert noise.levels(steps, noise.shifts(steps)) == steps
    assert noise.levels([1.0, 3.0, 2.0], []) == [2.0] * 3
    drift = [100.0 - number + 0.1 * (-1) ** number for number in range(20)]
    assert noise.levels(drift, noise.shifts(drift)) == pytest.approx(drift, abs=0.3)
