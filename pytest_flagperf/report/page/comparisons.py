"""Comparisons of the cases: their numbers of cards and hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from pytest_flagperf.report.page import charts
from pytest_flagperf.report.page.charts import Bar
from pytest_flagperf.report.page.html import figures
from pytest_flagperf.report.page.rows import Row
from pytest_flagperf.results.figures.kinds import EFFICIENCY
from pytest_flagperf.results.figures.units import count, quantity


def comparisons(rows: Sequence[Row]) -> str:
    """Return all comparisons for which the run has the figures."""
    trainings = [row for row in rows if row.is_training]
    return scaling(trainings) + machines(trainings)


def scaling(rows: Sequence[Row]) -> str:
    """Return a chart and a table for each model that was measured with several numbers of cards."""
    groups = _groups(rows, lambda row: row.group)
    drawn = charts.html(_scaling_chart(f"{name}: p_core", group) for name, group in groups)
    tables = "".join(_efficiencies(f"{name}: p_core [{group[0].unit}] (efficiency)", group) for name, group in groups)
    note = f"Efficiency: {EFFICIENCY}. Dotted lines are the ideal."
    text = f'<p class="soft">{escape(note)}</p>'
    return f'<h2 id="scaling">Scaling</h2>{text}{drawn}{tables}' if drawn else ""


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


def _scaling_chart(title: str, rows: Sequence[Row]) -> charts.Chart | None:
    points = {machine: list(by_cards.items()) for machine, by_cards in _by_cards(rows) if len(by_cards) > 1}
    return charts.scaling(title, rows[0].unit, points)


def _median(row: Row) -> float:
    return row.main or math.nan


def _by_cards(rows: Sequence[Row]) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield p_core by cards for each machine; the case with the fewest hosts, then the most rounds, counts."""
    preferred_last = sorted(rows, key=lambda row: (-row.shape[0], row.rounds))
    for machine in dict.fromkeys(row.machine for row in rows):
        yield machine, {row.cards: _median(row) for row in preferred_last if row.machine == machine}


def machines(rows: Sequence[Row]) -> str:
    """Return bars for the same model, scale, precision and shape on different hardware, the fastest first."""
    parts = []
    for title, group in _groups(rows, lambda row: f"{row.group}, {row.shape[0]}x{row.shape[1]}"):
        if len({row.machine for row in group}) > 1:
            fastest_first = sorted(group, key=lambda row: -_median(row))
            bars = [Bar(row.machine, _median(row), quantity(row.main, row.unit), row.link) for row in fastest_first]
            parts.append(f"<div><h3>{escape(title)}</h3>{charts.bars(bars)}</div>")
    if not parts:
        return ""
    return f'<h2 id="machines">Hardware comparison: p_core</h2><div class="charts">{"".join(parts)}</div>'


def _groups(rows: Iterable[Row], key: Callable[[Row], str]) -> Iterable[tuple[str, list[Row]]]:
    """Group the cases that have a throughput."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.main is not None:
            groups.setdefault(key(row), []).append(row)
    return groups.items()
