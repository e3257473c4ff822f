"""The points of a measurement on the page: a table with what was measured, how well, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator

from flagperf_driver.node.logs.points import MeasuredPoint
from pytest_flagperf.results.figures.units import count, plain, quantity
from pytest_flagperf.results.measured.outcome import Outcome

from .html import Name, Number, folded, table

_MOST = 500
"""The maximum number of rows."""
_TIMES = {"seconds": "time", "best": "best", "sustained": "sustained", "own": "without waiting for a core"}


def html(outcome: Outcome) -> str:
    """Return the folded table of a round's points; empty without points."""
    points, units = outcome.points, {figure.name: figure.unit for figure in outcome.figures}
    if not points and not outcome.left_out:
        return ""
    names = [name for name in units if any(name in point.figures for point in points)]
    times = {name: title for name, title in _TIMES.items() if any(getattr(point, name) is not None for point in points)}
    head = ("point", *names, *times.values(), "interval", "waited", "remarks")
    rows = [
        (
            Name(point.name),
            *(_number(point.figures.get(name), units[name]) for name in names),
            *(_number(getattr(point, name), "s") for name in times),
            _number(point.interval, "share", "± "),
            _number(point.waited, "share"),
            "; ".join([*point.remarks, *_facts(point)]),
        )
        for point in points[:_MOST]
    ]
    more = f"<p>and {count(len(points) - _MOST, 'more point')}</p>" if len(points) > _MOST else ""
    left_out = [(Name(point.name), _number(point.expected_s, "s")) for point in outcome.left_out]
    rest = table(("left out", "time of an iteration"), left_out) if left_out else ""
    return folded(f"Round {outcome.round}: {count(len(points), 'point')}", f"{table(head, rows)}{more}{rest}")


def _facts(point: MeasuredPoint) -> Iterator[str]:
    for name, value in point.facts.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        yield f"{name.replace('_', ' ')} {plain(float(value)) if is_number else value}"


def _number(value: float | None, unit: str, before: str = "") -> str:
    return Number("" if value is None else f"{before}{quantity(value, unit)}")
