"""Write possible ranges, and the figures and readings outside them, as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from flagperf_driver.node.logs.ranges import DroppedReadings, Range
from flagperf_driver.node.logs.ranklog import Impossible
from pytest_flagperf.results.figures.units import SCALED, count, quantity


def range_text(allowed: Range) -> str:
    """Return the range with its unit."""
    if math.isinf(allowed.high):
        return f"{quantity(allowed.low, allowed.unit)} or more"
    low = quantity(allowed.low, allowed.unit if allowed.unit in SCALED else "")
    return f"{low} to {quantity(allowed.high, allowed.unit)}"


def impossible_figure(figure: Impossible) -> str:
    """Return a sentence on a logged figure outside its range."""
    where = f"rank {figure.rank} logged {figure.name} = {quantity(figure.first, figure.allowed.unit)} in {figure.event}"
    where += "" if figure.step is None else f" at step {figure.step:,}"
    return f"{where} ({count(figure.times, 'record')}), expected {range_text(figure.allowed)}"


def dropped_readings(host: str, dropped: Iterable[DroppedReadings]) -> Iterator[str]:
    """A sentence for each quantity of a host, with all its devices."""
    of_quantity: dict[tuple[str, bool], list[DroppedReadings]] = {}
    for readings in dropped:
        of_quantity.setdefault((readings.name, readings.device is None), []).append(readings)
    for (name, of_host), group in of_quantity.items():
        first, devices = group[0], ", ".join(str(readings.device) for readings in group)
        source = host if of_host else f"{host}: device{'s' if len(group) > 1 else ''} {devices}"
        times = count(sum(readings.times for readings in group), "reading")
        got = f"the first {quantity(first.first, first.allowed.unit)}, expected {range_text(first.allowed)}"
        yield f"{source}: dropped {times} of {name} outside the possible range: {got}"
