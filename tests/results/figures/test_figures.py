"""Over rounds: what a few values say of their middle and spread, and what they are too few for; and units."""

import math
import random

import pytest

from pytest_flagperf.results.figures.statistics import few, outliers, student_limit, student_tail, summarize
from pytest_flagperf.results.figures.units import compared, count, quantity, signed


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


# -- units: numbers are formatted in the same way everywhere -------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1234.4, "images/s", "1,234 images/s"), (0.00123456, "images/s", "0.001235 images/s"),
        (12.3456, "sequences/s", "12.35 sequences/s"), (1e9, "tokens/s", "1,000,000,000 tokens/s"),
        (0.755, "fraction", "0.755"), (0.9, "fraction", "0.900"), (0.4321, "share", "43.2 %"),
        (12.34, "s", "12.3 s"), (59.99, "s", "60 s"), (200, "s", "3 min 20 s"), (3725, "s", "1 h 2 min"),
        (100000, "s", "1 d 3 h"), (0.0123, "s", "12.3 ms"), (0.0000123, "s", "12.3 us"), (0, "s", "0 s"),
        (-5, "s", "-5 s"), (300 * 2**20, "bytes", "300 MiB"), (1.5 * 2**30, "bytes", "1.5 GiB"),
        (7, "bytes", "7 bytes"), (5_243_810, "B/s", "5.24 MB/s"), (12, "B/s", "12 B/s"), (3.2e9, "B/s", "3.2 GB/s"),
        (1.5e12, "FLOP/s", "1.5 TFLOP/s"), (4.3e11, "OP/s", "430 GOP/s"),
        (1.857, "x", "1.86x"), (0, "", "0"), (2.30258, "", "2.303"), (1e-9, "", "1e-09"), (1e20, "", "1e+20"),
        (None, "s", "missing"), (math.nan, "s", "NaN"),
        (math.inf, "x", "infinity"), (-math.inf, "", "-infinity"),
    ],
)  # fmt: skip
def test_a_quantity_has_its_unit_and_sensible_digits(value: float | None, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@pytest.mark.parametrize("unit", ["fraction", "share", "s", "x", "images/s", "bytes", ""])
def test_different_numbers_are_never_shown_as_equal(unit: str) -> None:
    got, expected = compared(0.754999, 0.755, unit)
    assert got != expected
    assert compared(0.5, 0.5, unit)[0] == compared(0.5, 0.5, unit)[1]
    assert compared(71.000001, 71.0, unit)[0] != compared(71.000001, 71.0, unit)[1]


def test_a_change_says_which_way_and_counts_have_their_plural() -> None:
    assert [signed(share) for share in (0.015, -0.08, -0.0004)] == ["+1.5 %", "-8.0 %", "+0.0 %"]
    assert (count(1, "step"), count(1200, "step"), count(0, "step")) == ("1 step", "1,200 steps", "0 steps")
