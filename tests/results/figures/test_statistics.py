"""Over rounds: what a few values say of their middle and spread, and what they are too few for."""

import random

import pytest

from pytest_flagperf.results.figures.statistics import few, outliers, student_limit, student_tail, summarize


def test_statistics_are_of_numbers_with_a_spread_and_an_interval_by_students_distribution() -> None:
    assert summarize([1.0, None, float("nan"), 3.0, float("inf")]) == summarize([1.0, 3.0])
    assert summarize([1.0, 3.0]).stdev == pytest.approx(2**0.5)
    assert (summarize([]).median, summarize([5.0]).stdev, summarize([5.0]).mean) == (None, None, 5.0)
    one = summarize([5.0])
    assert (one.lowest, one.highest, one.variation, one.interval, one.olympic) == (5.0, 5.0, None, None, None)
    assert one.outliers == ()
    assert summarize([90.0, 110.0]).variation == pytest.approx(200**0.5 / 100)
    assert summarize([-90.0, -110.0]).variation == pytest.approx(200**0.5 / 100)
    assert summarize([-1.0, 1.0]).variation is None
    found = summarize([9.0, 10.0, 11.0]).interval
    assert found == pytest.approx((10 - 4.30265 / 3**0.5, 10 + 4.30265 / 3**0.5), abs=1e-4)


def test_the_olympic_mean_drops_two() -> None:
    assert summarize([7.0, 1.0, 3.0, 5.0]).olympic == 4.0
    assert summarize([1.0, 5.0, 9.0]).olympic == 5.0
    assert summarize([1.0, 5.0]).olympic is None


@pytest.mark.parametrize(
    ("chance", "freedom", "limit"),
    [(0.025, 1, 12.70620), (0.025, 2, 4.30265), (0.025, 9, 2.26216), (0.005, 30, 2.75000), (0.025, 1000, 1.96234)],
)
def test_students_limits_are_those_of_the_tables(chance: float, freedom: float, limit: float) -> None:
    assert student_limit(chance, freedom) == pytest.approx(limit, abs=2e-5)
    assert student_tail(limit, freedom) == pytest.approx(chance, rel=1e-4)


def test_half_degrees_lie_between_whole_ones_and_far_tails_stay_exact() -> None:
    assert student_limit(0.01, 4) > student_limit(0.01, 4.5) > student_limit(0.01, 5)
    assert student_tail(24.771, 5) == pytest.approx(1e-6, rel=1e-3)


def test_rounds_that_lie_apart_are_named_and_do_not_hide_each_other() -> None:
    assert summarize([100, 101, None, 99, 150, 100, 102]).outliers == (4,)
    assert summarize([100, 101, 99, 102, 98, 100]).outliers == ()
    assert outliers([100, 101, 99, 150, 100, 102, 99.5, 149, 100.4, 101.2]) == [3, 7]


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 9.0], [5.0] * 8, [6400.0] * 3, [0.1 + 0.2, 0.3, 0.3]])
def test_where_nothing_varies_or_all_do_none_lies_apart(values: list[float]) -> None:
    assert outliers(values) == []


@pytest.mark.parametrize("rounds", [3, 5, 10])
def test_noise_alone_rarely_has_an_outlier(rounds: int) -> None:
    chance = random.Random(rounds)
    found = sum(bool(outliers([chance.gauss(100, 2) for _ in range(rounds)])) for _ in range(1000))
    assert found < 30


def test_too_few_rounds_are_reported() -> None:
    assert few(3) is None
    assert "1 round with a value" in str(few(1))
    assert "0 rounds" in str(few(0))
    assert "9 times their spread" in str(few(2))
