"""Curves of few characters, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#@"
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""The dots of a Braille character from the bottom to the top, for its left and its right column."""
_BRAILLE = 0x2800


def sparkline(values: Sequence[float], width: int, *, plain: bool) -> str:
    """Return one line of bars; ``plain`` uses ASCII only."""
    chars = _ASCII if plain else _BLOCKS
    levels = _levels(_resampled(values, width), len(chars) - 1)
    return "".join(chars[level + 1] for level in levels)


def plot(values: Sequence[float], width: int, height: int, *, plain: bool) -> list[str]:
    """Return the lines of a curve, the highest values in the first one; ``plain`` uses ASCII only."""
    if plain:
        levels = _levels(_resampled(values, width), height)
        return ["".join("*" if level == row else " " for level in levels) for row in reversed(range(height))]
    levels = _levels(_resampled(values, 2 * width), 4 * height)
    cells = [[0] * ((len(levels) + 1) // 2) for _ in range(height)]
    for column, level in enumerate(levels):
        # Connect the point with the one before, so that steep curves have no holes.
        before = levels[column - 1] if column else level
        for dot in range(min(level, before + (before < level)), max(level, before - (before > level)) + 1):
            cells[dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
    return ["".join(chr(_BRAILLE + cell) for cell in row) for row in reversed(cells)]


def _resampled(values: Sequence[float], number: int) -> list[float]:
    """Return this number of values: means of equal parts, or values between the given ones."""
    if len(values) < 2:
        return list(values) * number
    if len(values) <= number:
        places = [column * (len(values) - 1) / (number - 1) for column in range(number)]
        return [_between(values, place) for place in places]
    edges = [len(values) * part // number for part in range(number + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]


def _between(values: Sequence[float], place: float) -> float:
    left = min(int(place), len(values) - 2)
    return values[left] + (values[left + 1] - values[left]) * (place - left)


def _levels(values: Sequence[float], number: int) -> list[int]:
    """Return the values as levels from 0; equal values are in the middle."""
    if not values:
        return []
    low, high = min(values), max(values)
    if high - low <= abs(high) * 1e-9:
        return [number // 2] * len(values)
    return [min(number - 1, int((value - low) / (high - low) * number)) for value in values]
