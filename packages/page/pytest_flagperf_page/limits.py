"""What the machine's measured figures allow: the limits of each training's step beside the measured step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.limits import COMPUTE, TOLERANCE, StepLimits, limits_of
from pytest_flagperf.results.measured.outcome import Outcome

from . import chart_html
from .chart_html import Bar
from .html import Number, items, table
from .rows import Row

_MOST_PICTURES = 30
_NOTE = (
    "A limit is the least time of a step if only its computing (FLOPs at the measured matrix product), only its memory "
    "(the bytes that no program avoids, at the measured bandwidth) or only its communication (an all-reduce of the "
    "gradients) counted. The largest one binds: a step on this machine cannot be faster."
)
_HEAD = (
    "case", "step without input wait", "binds", "limit", "of the step", "throughput", "at the limit",
    "MFU, declared peak", "MFU, measured peak",
)  # fmt: skip


def of_rows(rows: Sequence[Row], measurements: Sequence[Outcome]) -> dict[str, StepLimits]:
    """Return the limits of the cases whose machine the run has measured too."""
    found = {row.case: limits_of(row.work, measurements) for row in rows if row.work is not None}
    return {case: limits for case, limits in found.items() if limits is not None}


def html(rows: Sequence[Row], limits: Mapping[str, StepLimits]) -> str:
    """Return the section of the cases that have limits; empty without such a case."""
    found = [(row, limits[row.case]) for row in rows if row.case in limits]
    if not found:
        return ""
    pictures = "".join(
        f"<div><h3>{row.linked}: time of a step</h3>{_bars(of_row)}</div>" for row, of_row in found[:_MOST_PICTURES]
    )
    sources = dict.fromkeys(f"{name}: {text}" for _, of_row in found for name, text in of_row.sources.items())
    return (
        f'<h2 id="limits">Limits of the machine</h2><p class="soft">{escape(_NOTE)}</p>'
        f"{items([text for row, of_row in found for text in _exceeded(row, of_row)], 'bad')}"
        f"{table(_HEAD, [_cells(row, of_row) for row, of_row in found])}"
        f'<div class="charts">{pictures}</div>{items(list(sources), "soft")}'
    )


def _cells(row: Row, limits: StepLimits) -> tuple[str, ...]:
    compute = limits.times.get(COMPUTE)
    return (
        row.linked,
        Number(quantity(limits.work.seconds, "s")),
        limits.binds,
        Number(quantity(limits.least, "s")),
        Number(quantity(limits.share(limits.least), "share")),
        Number(quantity(limits.rate(limits.work.seconds), limits.work.unit)),
        Number(quantity(limits.rate(limits.least), limits.work.unit)),
        Number("" if limits.work.mfu is None else quantity(limits.work.mfu, "share")),
        Number("" if compute is None else quantity(limits.share(compute), "share")),
    )


def _bars(limits: StepLimits) -> str:
    """Return the measured step, its limits and the time of its operations' bytes as bars."""
    times = {"measured": limits.work.seconds, **limits.times}
    if limits.operations is not None:
        times["bytes of the operations"] = limits.operations
    return chart_html.bars([Bar(name, time, quantity(time, "s")) for name, time in times.items()])


def _exceeded(row: Row, limits: StepLimits) -> list[str]:
    return [
        f"{row.case}: the step takes {quantity(limits.work.seconds, 's')} and its limit by {name} is "
        f"{quantity(limits.times[name], 's')}, more than {TOLERANCE:.0%} above: the machine was slower when it was "
        "measured, or the work of the step is counted wrongly"
        for name in limits.above
    ]
