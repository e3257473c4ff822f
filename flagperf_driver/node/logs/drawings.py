"""Small drawings of a model in an evaluation, checked as they are read from a rank's log."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Mapping

from flagperf_driver.node.logs.whole_numbers import LARGEST_COUNT
from flagperf_driver.training.steps import MOST_PIXELS

MOST_SETS = 4
"""The largest number of sets of drawings with different names."""
_LONGEST_NAME = 40


@dataclass(frozen=True)
class LoggedDrawings:
    """Grey drawings of equal size, one after the other."""

    name: str
    step: int
    rows: int
    columns: int
    pixels: str
    """Base64 of a byte for each pixel, from 0 (black) to 255 (white)."""

    @property
    def content(self) -> bytes:
        return binascii.a2b_base64(self.pixels)


def drawings(value: Mapping[str, Any]) -> LoggedDrawings | None:
    """Return the drawings of a DRAWINGS record; None if the record is not valid."""
    name, pixels = value.get("name"), value.get("pixels")
    step, rows, columns = value.get("step", -1), value.get("rows", 0), value.get("columns", 0)
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isidentifier():
        return None
    if not isinstance(pixels, str) or len(pixels) > 2 * MOST_PIXELS:
        return None
    if not _is_count(step, 0, LARGEST_COUNT) or not _is_count(rows, 1, MOST_PIXELS):
        return None
    if not _is_count(columns, 1, MOST_PIXELS):
        return None
    try:
        size = len(base64.b64decode(pixels, validate=True))
    except (binascii.Error, ValueError):
        return None
    if not size or size > MOST_PIXELS or size % (rows * columns):
        return None
    return LoggedDrawings(name, step, rows, columns, pixels)


def _is_count(value: object, lowest: int, highest: int) -> bool:
    return type(value) is int and lowest <= value <= highest


class FirstAndLast:
    """The first and the last drawings of each name."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[LoggedDrawings, ...]] = {}

    def add(self, added: LoggedDrawings) -> None:
        kept = self._by_name.get(added.name, ())
        if kept or len(self._by_name) < MOST_SETS:
            self._by_name[added.name] = (*kept[:1], added)

    def all(self) -> tuple[LoggedDrawings, ...]:
        return tuple(one for kept in self._by_name.values() for one in kept)
