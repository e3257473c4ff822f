"""How a number is said, everywhere the same: with its unit and with as many digits as mean something.

A value's unit is a word of its record. ``fraction`` is a quality metric, said as it is declared (``0.755``);
``share`` is a part of a whole (MFU, efficiency, waiting), kept between 0 and 1 and said in per cent
(``75.5 %``); ``s`` is a time, ``bytes`` a size, ``B/s`` a rate of them, ``x`` a factor; anything else
follows the number as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

DIGITS = 4
_MOST_DIGITS = 12
_SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_RATES = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s")  # of networks and disks, which are counted in tens


def quantity(value: float | None, unit: str = "", digits: int = DIGITS) -> str:
    """``1,234 images/s``, ``3 min 20 s``, ``75.5 %``, ``0.755``; ``missing`` for None, ``NaN`` for NaN."""
    if value is None:
        return "missing"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    say = _SAYERS.get(unit)
    if say is not None:
        return say(value, digits)
    return f"{plain(value, digits)} {unit}".rstrip()


def compared(got: float | None, wanted: float | None, unit: str = "") -> tuple[str, str]:
    """Both said with as many digits as it takes to tell them apart: never "0.755 is below 0.755"."""
    for digits in range(DIGITS, _MOST_DIGITS):
        left, right = quantity(got, unit, digits), quantity(wanted, unit, digits)
        if left != right or got == wanted:
            break
    return left, right


def signed(share: float) -> str:
    """``+1.5 %``, ``-8.0 %``: in a column all with as many decimals."""
    return f"{share * 100:+.1f} %"


def plain(value: float, digits: int = DIGITS) -> str:
    """The number alone: so many significant digits, thousands apart, no tail of zeros."""
    if not math.isfinite(value):
        return quantity(value)
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}g}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(number: int, noun: str) -> str:
    """``1 step``, ``1,200 steps``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _fraction(value: float, digits: int) -> str:
    return f"{value:.{digits - 1}f}"


def _share(value: float, digits: int) -> str:
    if 0 < abs(value) < 0.0095:
        # Little is not nothing.
        return f"{plain(value * 100, digits - 2)} %"
    return f"{value * 100:,.{max(digits - 3, 0)}f} %"


def _factor(value: float, digits: int) -> str:
    return f"{value:.{digits - 2}f}x"


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


def _bytes(value: float, digits: int) -> str:
    return _scaled(value, 1024, _SIZES, digits)


def _rate(value: float, digits: int) -> str:
    return _scaled(value, 1000, _RATES, digits)


def _scaled(value: float, step: int, units: Sequence[str], digits: int) -> str:
    power = 0
    while abs(value) >= step and power < len(units) - 1:
        value, power = value / step, power + 1
    return f"{plain(value, digits - 1)} {units[power]}"


_SAYERS: Mapping[str, Callable[[float, int], str]] = {
    "fraction": _fraction,
    "share": _share,
    "x": _factor,
    "s": _seconds,
    "bytes": _bytes,
    "B/s": _rate,
}

SCALED = frozenset(_SAYERS)
"""The units that change what stands before them; all others follow the number as it is."""
