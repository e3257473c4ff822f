"""Change points: simulated runs with and without a change of their level."""

import random
from collections.abc import Callable

import pytest

from pytest_flagperf.results.figures import noise
from pytest_flagperf_page import change_points

S = 0.02
"""The standard deviation of a run, as a share."""


def simulated(rng: random.Random, runs: int, level: Callable[[int], float] = lambda run: 1.0) -> list[float]:
    return [level(run) * (1 + S * rng.gauss(0, 1)) for run in range(runs)]


@pytest.mark.parametrize("runs", [change_points.FEWEST, 30])
def test_unchanged_runs_have_a_change_once_in_a_hundred_times_at_most(runs: int) -> None:
    rng = random.Random(runs)
    found = sum(bool(change_points.find(simulated(rng, runs))) for _ in range(400))
    assert found <= 400 * noise.CHANCE


def test_outliers_are_no_change() -> None:
    rng = random.Random(2)
    for _ in range(100):
        values = simulated(rng, 24)
        for place in rng.sample(range(24), 2):
            values[place] *= 0.7
        assert change_points.find(values) == []


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (lambda run: 0.9 if run >= 14 else 1.0, [14]),
        (lambda run: 0.9 if run >= 21 else 1.0, [21]),
        (lambda run: 0.9 if 8 <= run < 17 else 1.0, [8, 17]),
        (lambda run: 1.0 if run < 8 else 0.9 if run < 16 else 0.8, [8, 16]),
    ],
    ids=["fell", "fell in the last three runs", "fell and rose", "fell twice"],
)
def test_a_change_of_five_deviations_is_found_at_its_run(level: Callable[[int], float], expected: list[int]) -> None:
    rng = random.Random(3)
    found = [change_points.find(simulated(rng, 24, level)) for _ in range(100)]
    assert sum(one == expected for one in found) >= 80
    assert sum(len(one) == len(expected) for one in found) >= 90


def test_too_few_runs_and_too_small_changes_are_no_change() -> None:
    assert change_points.find([1.0] * 5 + [0.5] * 4) == [], "nine runs"
    assert change_points.find([1.0] * 10 + [1 - noise.LEAST / 2] * 10) == [], "without any noise"
    assert change_points.find([1.0] * 10 + [1 - noise.LEAST * 2] * 10) == [10]
