"""What noise is measured to be, and how a run is judged against another by it; simulated runs are seeded."""

import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.noise import BETTER, CHANGED, MISSING, NO_OLD, WITHIN, WORSE

Runs = list[list[float]]


def simulated(
    rng: random.Random,
    runs: int,
    level: Callable[[int], float] = lambda _: 1.0,
    *,
    of_run: float = 0.0,
    of_round: float = 0.02,
) -> Runs:
    """Runs of three rounds about a level, with the noise of a run, which its rounds share, and that of a round."""
    middles = [100 * level(number) * (1 + rng.gauss(0, of_run)) for number in range(runs)]
    return [[middle * (1 + rng.gauss(0, of_round)) for _ in range(3)] for middle in middles]


def scaled(run: Sequence[float], factor: float) -> list[float]:
    return [value * factor for value in run]


def word(old: Sequence[float], new: Sequence[float], like: Runs | None = None) -> str:
    return noise.compare(old, new, like or [], direction="higher").word


NOISE = {"a round's": (0.0, 0.02), "a run's": (0.02, 0.0), "both": (0.016, 0.018)}
"""2 % in each sense: that of one training; that which all rounds of a run share; that of a run's median, of both."""


def throughputs(rng: random.Random, runs: int, of_run: float, of_round: float) -> list[Runs]:
    """Three figures of the same trainings: as in real runs, they share most of their noise."""
    shared = simulated(rng, runs, of_run=of_run, of_round=of_round)
    own = [simulated(rng, runs, of_run=0.25 * of_run, of_round=0.25 * of_round) for _ in range(3)]
    return [[[a * b / 100 for a, b in zip(*two, strict=True)] for two in zip(shared, one, strict=True)] for one in own]


def called_worse(metrics: list[Runs], factor: float = 1.0) -> bool:
    """Whether any metric of the last run is worse than that of the run before it, by the noise of all before it."""
    return any(word(runs[-2], scaled(runs[-1], factor), runs[:-1]) == WORSE for runs in metrics)


@pytest.mark.parametrize(("like", "least"), [(10, 0.9), (20, 0.97)])
@pytest.mark.parametrize("kind", NOISE)
def test_a_slowdown_of_15_percent_is_flagged_by_the_noise_of_like_runs(kind: str, like: int, least: float) -> None:
    rng = random.Random(1)
    flagged = [called_worse(throughputs(rng, like + 1, *NOISE[kind]), 0.85) for _ in range(200)]
    assert sum(flagged) >= least * len(flagged)


@pytest.mark.parametrize("like", [noise.FEWEST, 10, 30])
@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.integration
def test_honest_reruns_are_rarely_called_worse(kind: str, like: int) -> None:
    rng = random.Random(7)
    alarms = [called_worse(throughputs(rng, like + 1, *NOISE[kind])) for _ in range(300)]
    assert sum(alarms) <= 0.03 * len(alarms)


def test_a_rule_that_flags_more_slowdowns_calls_too_many_honest_runs_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "CHANCE", 0.1)
    rng = random.Random(3)
    alarms = [called_worse(throughputs(rng, 21, *NOISE["a run's"])) for _ in range(200)]
    assert sum(alarms) > 0.03 * len(alarms)


@pytest.mark.parametrize("after", [lambda n: 1.0 if n < 10 else 0.8, lambda n: 1 - 0.01 * n], ids=["step", "drift"])
def test_a_step_or_a_drift_in_the_past_is_hardly_noise(after: Callable[[int], float]) -> None:
    rng = random.Random(5)
    found = [noise.measure(simulated(rng, 20, after, of_run=0.02)).between or 0 for _ in range(50)]
    assert statistics.median(found) == pytest.approx(0.026, rel=0.25)
    medians = [map(statistics.median, simulated(rng, 20, after, of_run=0.02)) for _ in range(50)]
    plain = [statistics.stdev(of_runs) / 90 for of_runs in medians]
    assert statistics.median(plain) > 0.05, "the standard deviation would take it for noise"


def test_small_changes_count_for_nothing_and_fewer_rounds_are_less_sure() -> None:
    same = [[100.0]] * 8
    assert word([100.0], [99.5], same) == WITHIN
    assert word([100.0], [98.0], same) == WORSE
    assert noise.odds(noise.compare([100.0], [98.0], same, direction="higher").chance or 0) == (
        "less than once in a million runs"
    )
    assert (word([100.0], []), word([], [100.0])) == (MISSING, NO_OLD)
    assert noise.compare([100.0], [90.0], direction="higher").chance is None, "of a lone round each"
    assert word([0.0], [0.0]) == WITHIN
    assert noise.compare([0.0], [2.0], direction="lower").word == CHANGED
    assert noise.measure([[0.0]] * 6).between is None
    rng = random.Random(9)
    runs = simulated(rng, 20)
    needed = [noise.compare(runs[-1], [100.0] * many, runs, direction="higher").needed or 0 for many in (1, 3)]
    assert needed[0] > 1.15 * needed[1]


def test_noise_is_measured_without_outliers_which_differ_from_level_shifts() -> None:
    rng = random.Random(10)
    measured = noise.measure(simulated(rng, 30, of_run=0.03, of_round=0.01))
    assert measured.within == pytest.approx(0.01, rel=0.35)
    assert measured.between == pytest.approx(0.03, rel=0.35)
    assert noise.measure([]).between is None
    # As measured: the second lies off four that happen to agree, and the sixth is no slower than honest runs go.
    runs = [[2908.0], [2859.0], [2912.0], [2923.0], [2918.0]]
    assert word([2918.0], [2824.0], runs) == WITHIN
    assert word([2918.0], [2500.0], runs) == WORSE
    values = [100.0, 101.0, 99.0, 60.0, 100.0, 101.0, 99.5, 90.0, 91.0, 90.0, 89.0, 90.5]
    assert list(noise.far_from_neighbours(values)) == [3]
    assert list(noise.far_from_neighbours(values[:4])) == []
    assert list(noise.far_from_neighbours([5.0] * 8)) == []
    assert noise.spread([100.0] * 6 + [106.0] + [100.0] * 6) == pytest.approx(1.04 * 6 / 12**0.5)
    assert noise.spread([100.0, 101.0]) is None


def test_of_few_rounds_a_side_chance_goes_far_and_honest_pairs_are_rarely_called_worse() -> None:
    """Student's distribution of two degrees: twice the standard error would be exceeded by one honest run in eleven."""
    few, many = (noise.compare(same, same, direction="higher").error for same in ([100.0, 102.0], [100.0, 102.0] * 5))
    assert few is not None
    assert many is not None
    assert few.limit / few.share == pytest.approx(6.96, rel=0.01)
    assert many.limit / many.share == pytest.approx(2.55, rel=0.01)
    rng = random.Random(12)
    pairs = [simulated(rng, 2, of_round=0.06) for _ in range(2000)]
    words = [noise.compare(old, new, direction="higher").word for old, new in pairs]
    assert words.count(WORSE) <= 2 * noise.CHANCE * len(words)
    assert words.count(BETTER) <= 2 * noise.CHANCE * len(words)
