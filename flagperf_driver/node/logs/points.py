"""The points of a measurement that a rank logged, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Mapping

from flagperf_driver.node.logs.whole_numbers import LARGEST_COUNT, LARGEST_INT
from flagperf_driver.perflog import number

MOST_POINTS = 10_000
"""The maximum number of points of a rank; a longer log is not a measurement."""
_MOST_VALUES, _MOST_TURNS, _LONGEST_TEXT = 50, 100, 200


@dataclass(frozen=True)
class Turn:
    """A rank's time of one iteration in one of the turns in which all ranks measured at the same time."""

    seconds: float
    own: float | None = None
    """Without the time waited for a core; None if unknown."""
    waited: float | None = None
    """The share of the time in which the rank was ready and had no core."""


@dataclass(frozen=True)
class MeasuredPoint:
    """A point of a measurement; of several ranks the figures are those of the worst rank, the rest is of the slowest.

    None: not known, or not timed.
    """

    name: str
    values: Mapping[str, Any]
    """What varies between points, such as the size."""
    figures: Mapping[str, float]
    seconds: float | None = None
    """The median time of an iteration."""
    interval: float | None = None
    """The half width of the 95 % interval of the time, as a share of it."""
    best: float | None = None
    """The time of the fastest tenth."""
    sustained: float | None = None
    """All time over all iterations."""
    windows: int = 0
    drift: float | None = None
    """The share by which the point became slower; None if it did not drift."""
    sides: tuple[float, ...] = ()
    """The times of an iteration of a device with two speeds."""
    clock: str = ""
    waited: float | None = None
    own: float | None = None
    together: bool = False
    """All ranks took part in each iteration."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0
    """The slowest rank."""
    turns: Mapping[str, tuple[Turn, ...]] = field(default_factory=dict)
    """By rank, for the judgement of slow ranks."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know about the figures."""
        drifts = self.drift is not None
        return tuple(
            text
            for text, there in (
                (f"became {'slower' if (self.drift or 0) > 0 else 'faster'} while it was measured", drifts),
                ("has two speeds", bool(self.sides)),
            )
            if there
        )


@dataclass(frozen=True)
class LeftOutPoint:
    """A point that was not measured, because it would have taken too long."""

    name: str
    values: Mapping[str, Any]
    expected_s: float


def measured_point(value: Mapping[str, Any], rank: int) -> MeasuredPoint | None:
    """Return the point of a MEASURED record; None if it has no name, no table of figures, or an impossible time."""
    name, figures = value.get("point"), value.get("figures")
    if not _is_name(name) or not isinstance(figures, dict) or len(figures) > _MOST_VALUES:
        return None
    times = {key: _finite(value.get(key)) for key in ("seconds", "interval", "best", "sustained", "waited", "own")}
    windows = _finite(value.get("windows")) or 0.0
    if not 0 <= windows <= LARGEST_COUNT or any(time is not None and time < 0 for time in times.values()):
        return None
    turns = [_turn(one) for one in _list(value.get("turns"))[:_MOST_TURNS]]
    return MeasuredPoint(
        str(name),
        _plain(value.get("values")),
        {str(figure): number(amount) for figure, amount in figures.items()},
        **times,
        drift=_finite(value.get("drift")),
        windows=int(windows),
        sides=tuple(number(side) for side in _list(value.get("sides"))[:2]),
        clock=str(value.get("clock") or "")[:_LONGEST_TEXT],
        together=value.get("together") is True,
        facts=_plain(value.get("facts")),
        rank=rank,
        turns={str(rank): tuple(turns)} if turns else {},
    )


def left_out_point(value: Mapping[str, Any]) -> LeftOutPoint | None:
    """Return the point of a LEFT_OUT record; None if the record has no name."""
    name = value.get("point")
    return (
        LeftOutPoint(str(name), _plain(value.get("values")), number(value.get("expected_s")))
        if _is_name(name)
        else None
    )


def _turn(value: object) -> Turn:
    one = value if isinstance(value, dict) else {}
    return Turn(number(one.get("seconds")), _finite(one.get("own")), _finite(one.get("waited")))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _LONGEST_TEXT


def _finite(value: object) -> float | None:
    finite = number(value)
    return finite if math.isfinite(finite) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _plain(value: object) -> dict[str, Any]:
    """Return the texts, numbers and flags of a table that a file can hold; a rank may log anything."""
    items = value.items() if isinstance(value, dict) else ()
    plain = {
        str(key)[:_LONGEST_TEXT]: item[:_LONGEST_TEXT] if isinstance(item, str) else item
        for key, item in items
        if isinstance(item, str)
        or (isinstance(item, int) and abs(item) <= LARGEST_INT)
        or (isinstance(item, float) and math.isfinite(item))
    }
    return dict([*plain.items()][:_MOST_VALUES])
