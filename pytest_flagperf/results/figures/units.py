"""Format numbers in the same way everywhere: with their unit and only significant digits.

``fraction`` is a quality metric (``0.755``); ``share`` is a part of a whole such as MFU, stored between 0 and 1 and
shown in per cent (``75.5 %``); ``s`` is a time, ``bytes`` a size, ``B/s`` and ``FLOP/s`` rates, ``x`` a factor;
any other unit is written after the number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

DIGITS = 4
_MOST_DIGITS = 12
_LARGEST_PLAIN = 1e15
"""Larger numbers have an exponent: a float does not have all their digits."""
_LEAST_WITH_DECIMAL = 0.0095
"""The least share whose per cent have two significant digits with one decimal: 0.95 % becomes 1.0 %."""
_SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_POWERS = ("", "k", "M", "G", "T", "P")
_RATES = ("B/s", "FLOP/s", "OP/s")  # of networks, memories and chips, which are counted in tens


def quantity(value: float | None, unit: str = "", digits: int = DIGITS) -> str:
    """Format a value: ``1,234 images/s``, ``3 min 20 s``, ``75.5 %``, ``0.755``; None is ``missing``."""
    if value is None:
        return "missing"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    format_value = _FORMATS.get(unit)
    if format_value is not None:
        return format_value(value, digits)
    return f"{plain(value, digits)} {unit}".rstrip()


def compared(got: float | None, expected: float | None, unit: str = "") -> tuple[str, str]:
    """Format both with enough digits to differ, never "0.755 is below 0.755"."""
    for digits in range(DIGITS, _MOST_DIGITS):
        left, right = quantity(got, unit, digits), quantity(expected, unit, digits)
        if left != right or got == expected:
            break
    return left, right


def signed(share: float) -> str:
    """Format a signed share with one decimal: ``+1.5 %``, ``-8.0 %``, never ``-0.0 %``."""
    return f"{round(share * 100, 1) + 0.0:+.1f} %"


def plain(value: float, digits: int = DIGITS) -> str:
    """Format a number with significant digits and thousands separators, without trailing zeros."""
    if not math.isfinite(value):
        return quantity(value)
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < _LARGEST_PLAIN:
        return f"{value:.{digits - 1}g}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(number: int, noun: str) -> str:
    """Format a number of things: ``1 step``, ``1,200 steps``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _share(value: float, digits: int) -> str:
    if 0 < abs(value) < _LEAST_WITH_DECIMAL:
        return f"{plain(value * 100, digits - 2)} %"
    return f"{value * 100:,.{max(digits - 3, 0)}f} %"


def _seconds(value: float, digits: int) -> str:
    sign, size = ("-" if value < 0 else ""), abs(value)
    if size >= 60 and digits == DIGITS:
        return sign + _long_time(round(size))
    if size >= 1 or size == 0:
        return f"{sign}{plain(size, digits - 1)} s"
    if size >= 1e-3:
        return f"{sign}{plain(size * 1e3, digits - 1)} ms"
    return f"{sign}{plain(size * 1e6, digits - 1)} us"


def _long_time(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s"


def scale_of(value: float, unit: str) -> tuple[float, str]:
    """Return the divisor and the unit in which reports write a value, such as 1e9 and GB/s."""
    if unit == "s":
        return (1.0, "s") if value >= 1 else (1e-3, "ms") if value >= 1e-3 else (1e-6, "us")
    if unit not in ("bytes", *_RATES):
        return 1.0, unit
    step, units = (1024.0, _SIZES) if unit == "bytes" else (1000.0, tuple(f"{power}{unit}" for power in _POWERS))
    power = 0
    while abs(value) >= step ** (power + 1) and power < len(units) - 1:
        power += 1
    return step**power, units[power]


def _scaled(unit: str) -> Callable[[float, int], str]:
    def format_value(value: float, digits: int) -> str:
        divisor, shown = scale_of(value, unit)
        return f"{plain(value / divisor, digits - 1)} {shown}"

    return format_value


_FORMATS: Mapping[str, Callable[[float, int], str]] = {
    "fraction": lambda value, digits: f"{value:.{digits - 1}f}",
    "share": _share,
    "x": lambda value, digits: f"{value:.{digits - 2}f}x",
    "s": _seconds,
    **{unit: _scaled(unit) for unit in ("bytes", *_RATES)},
}

SCALED = frozenset(_FORMATS)
"""The units that change how the number is written."""
