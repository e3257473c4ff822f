"""Numbers are formatted in the same way everywhere."""

import math

import pytest

from pytest_flagperf.results.figures.units import compared, count, quantity, signed


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
