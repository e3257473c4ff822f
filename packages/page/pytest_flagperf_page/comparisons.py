"""Comparisons of the cases: their rounds, numbers of cards, energy and hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from pytest_flagperf.report import charts
from pytest_flagperf.results.figures.kinds import EFFICIENCY, FIGURES, SPEEDUP
from pytest_flagperf.results.figures.units import compared, count, quantity
from pytest_flagperf.stored.plan import MAIN_THROUGHPUT

from . import chart_html
from .chart_html import Bar
from .html import Markup, Number, figures, folded, table
from .rows import Row

_MAX_OPEN = 30
"""The number of rows from which on a table is folded."""
_LEAST_SPREAD = 0.01
"""The least half width of the axis of a distribution, as a share of the median."""
_MAIN = "the p_core, or the first figure of a measurement,"


def comparisons(rows: Sequence[Row]) -> str:
    """Return all comparisons for which the run has the figures."""
    with_throughput = [row for row in rows if row.figure == MAIN_THROUGHPUT]
    return "".join(
        [measurements(rows), distribution(rows), *(part(with_throughput) for part in (scaling, energy, machines))]
    )


def measurements(rows: Sequence[Row]) -> str:
    """Return the figures of the measurements as the terminal lists them, each with its curve."""
    measured = [line for row in rows for line in row.measured]
    if not measured:
        return ""
    head = ("case", "figure", "median", "of the peak", "over the points")
    return f'<h2 id="measurements">Measurements</h2>{table(head, measured)}'


# -- rounds and runs -------------------------------------------------------------------------------------------


def distribution(rows: Sequence[Row]) -> str:
    """Return the main figure of each round as a dot on an axis around its median, for cases with several rounds."""
    shown = [row for row in rows if len(row.values) > 1 and row.main.median]
    if not shown:
        return ""
    reach = max([_LEAST_SPREAD, *(abs(value / _median(row) - 1) for row in shown for value in row.values)])
    cells = []
    for row in shown:
        interval = " to ".join(compared(*row.main.interval, row.unit)) if row.main.interval else ""
        variation = "" if row.main.variation is None else quantity(row.main.variation, "share")
        texts = (Number(interval), Number(variation))
        cells.append((row.linked, Markup(_dots(row, reach)), Number(quantity(row.main.median, row.unit)), *texts))
    share = quantity(reach, "share")
    head = ("case", f"rounds, from -{share} to +{share} of the median", "median", *_STATISTICS)
    note = f"Each dot is {_MAIN} of a round, the line is the median, the shade is the 95 % confidence interval."
    return _section("distribution", "Distribution of the rounds", note, table(head, cells), len(shown))


_STATISTICS = ("95 % confidence interval of the mean", "coefficient of variation")


def _dots(row: Row, reach: float) -> str:
    def place(value: float) -> float:
        return min(max(50 + (value / _median(row) - 1) / reach * 48, 0), 100)

    low, high = (place(value) for value in row.main.interval or (_median(row), _median(row)))
    dots = "".join(f'<b style="left:{place(value):.1f}%"></b>' for value in row.values)
    label = f"{count(len(row.values), 'round')}: {', '.join(quantity(value, row.unit) for value in row.values)}"
    band = f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i>'
    return f'<span class="dots" role="img" aria-label="{escape(label)}">{band}{dots}</span>'


# -- energy ----------------------------------------------------------------------------------------------------


def energy(rows: Sequence[Row]) -> str:
    """Return the devices' energy per sample as bars, and the throughput per watt, for cases whose power was sampled."""
    parts, shown = [], 0
    # The table of a sweep has the energy of its variants.
    for title, group in _groups(
        (row for row in rows if row.energy_per_sample and not row.swept), lambda row: row.group
    ):
        ordered = sorted(group, key=lambda row: row.energy_per_sample or 0.0)
        highest = ordered[-1].energy_per_sample or 1.0
        cells = [_energy_cells(row, row.energy_per_sample or 0.0, highest) for row in ordered]
        head = ("case", "share of the most", "energy per sample", "throughput per watt")
        parts.append(f"<h3>{escape(title)}</h3>{table(head, cells)}")
        shown += len(cells)
    if not parts:
        return ""
    note = (
        f"Energy per sample: {FIGURES['device_energy_per_sample'].meaning}, less is better. Throughput per watt:"
        " samples per second for each watt of all devices, which is samples per joule; more is better."
    )
    return _section("energy", "Energy of the devices", note, "".join(parts), shown)


def _energy_cells(row: Row, joules: float, highest: float) -> tuple[str, ...]:
    per_watt = f"{quantity(1 / joules)} {row.unit} per W"
    return (
        row.linked,
        Markup(f'<span class="bar">{chart_html.bar_of(joules / highest)}</span>'),
        Number(quantity(joules, "J/sample")),
        Number(per_watt),
    )


def _section(name: str, title: str, note: str, content: str, rows: int) -> str:
    shown = content if rows <= _MAX_OPEN else folded(f"Show {count(rows, 'case')}", content)
    return f'<h2 id="{name}">{escape(title)}</h2><p class="soft">{escape(note)}</p>{shown}'


def _median(row: Row) -> float:
    return row.main.median or math.nan


# -- several shapes and machines ------------------------------------------------------------------------------


def scaling(rows: Sequence[Row]) -> str:
    """Return a chart and a table for each model with three numbers of cards, or with several on several machines."""
    groups = [(name, group) for name, group in _groups(rows, lambda row: row.same_work) if _is_scaled(group)]
    drawn = chart_html.html(_speedup_chart(name, group) for name, group in groups)
    tables = "".join(_efficiencies(f"{name}: p_core [{group[0].unit}] (efficiency)", group) for name, group in groups)
    note = f"Speed-up: {SPEEDUP}. Efficiency: {EFFICIENCY}. The dotted line is the ideal."
    text = f'<p class="soft">{escape(note)}</p>'
    return f'<h2 id="scaling">Scaling</h2>{text}{drawn}{tables}' if drawn else ""


def _is_scaled(rows: Sequence[Row]) -> bool:
    """Return False if the overview has all: one machine with two numbers of cards."""
    several = [len(by_cards) for _, by_cards in _by_cards(rows) if len(by_cards) > 1]
    return len(several) > 1 or max(several, default=0) > 2


def _efficiencies(title: str, rows: Sequence[Row]) -> str:
    """Return a table with the throughput and efficiency of each number of cards."""
    cards = sorted({row.cards for row in rows})
    table = []
    for machine, by_cards in _by_cards(rows):
        if len(by_cards) > 1:
            least = min(by_cards)
            cells = [
                f"{quantity(value)} ({quantity(value * least / by_cards[least] / number, 'share')})"
                if (value := by_cards.get(number)) is not None
                else ""
                for number in cards
            ]
            table.append((machine, *cells))
    if not table:
        return ""
    return f"<h3>{escape(title)}</h3>{figures(('hardware', *(count(number, 'card') for number in cards)), table)}"


def _speedup_chart(name: str, rows: Sequence[Row]) -> charts.Chart | None:
    """Return the speed-up over the fewest cards that were measured, and its ideal."""
    points = {}
    for machine, by_cards in _by_cards(rows):
        fewest = min(by_cards)
        if len(by_cards) > 1 and by_cards[fewest]:
            points[machine] = [(cards, value / by_cards[fewest] * fewest) for cards, value in by_cards.items()]
    return chart_html.speedup(f"{name}: speed-up", points)


def _by_cards(rows: Sequence[Row]) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield p_core by cards for each machine; the case with the fewest hosts, then the most rounds, counts."""
    preferred_last = sorted(rows, key=lambda row: (-row.shape[0], row.rounds))
    for machine in dict.fromkeys(row.machine for row in rows):
        yield machine, {row.cards: _median(row) for row in preferred_last if row.machine == machine}


def machines(rows: Sequence[Row]) -> str:
    """Return bars for the same model, scale, precision and shape on different hardware, the fastest first."""
    parts = []
    for title, group in _groups(rows, lambda row: f"{row.same_work}, {row.shape[0]}x{row.shape[1]}"):
        if len({row.machine for row in group}) > 1:
            fastest_first = sorted(group, key=lambda row: -_median(row))
            bars = [
                Bar(row.machine, _median(row), quantity(row.main.median, row.unit), row.link) for row in fastest_first
            ]
            parts.append(f"<div><h3>{escape(title)}</h3>{chart_html.bars(bars)}</div>")
    if not parts:
        return ""
    return f'<h2 id="machines">Hardware comparison: p_core</h2><div class="charts">{"".join(parts)}</div>'


def _groups(rows: Iterable[Row], key: Callable[[Row], str]) -> Iterable[tuple[str, list[Row]]]:
    """Group the cases that have a throughput."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.main.median is not None:
            groups.setdefault(key(row), []).append(row)
    return groups.items()
