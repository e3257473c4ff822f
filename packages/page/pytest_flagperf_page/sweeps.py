"""The section of each sweep: a table of its variants, their figures beside the best one's, and their losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape

from pytest_flagperf.report import charts
from pytest_flagperf.report.case_cell import anchor
from pytest_flagperf.report.sweeps import COMPARED, TARGET, Sweep, SweptCase, sweeps
from pytest_flagperf.results.figures.units import quantity

from . import chart_html
from .html import Markup, Number, linked, state, table


def html(cases: Iterable[SweptCase | None]) -> str:
    """Return the sections of all sweeps; empty without one."""
    found = sweeps(cases)
    if not found:
        return ""
    note = "Each figure is the median over the rounds that count."
    return f'<h2 id="sweeps">Sweeps</h2><p class="soft">{note}</p>{"".join(map(_section, found))}'


def _section(sweep: Sweep) -> str:
    best = next(iter(sweep.ranked), None)
    names = {**COMPARED, **{name: name for one in sweep.cases for name in one.figures if name not in COMPARED}}
    shown = [name for name in names if any(name in one.figures for one in sweep.cases)]
    word = "fastest to the target" if best and best.goal == TARGET else f"best {sweep.cases[0].goal}"
    rows = [_cells(one, shown, word if one is best else one.problem) for one in sweep.cases]
    head = (sweep.keys, "state", *(names[name] for name in shown))
    shown_table = table(head, rows, [one is best for one in sweep.cases])
    drawn = chart_html.html([_figures(sweep, best, {name: names[name] for name in shown}), _losses(sweep)])
    return f"<h3>{escape(sweep.name)}</h3><p>{escape(sweep.answer)}</p>{shown_table}{drawn}"


def _cells(one: SweptCase, shown: Sequence[str], note: str) -> tuple[str, ...]:
    below = f'<span class="spread">{escape(note)}</span>' if note != one.state else ""
    values = (one.figures.get(name) for name in shown)
    cells = (Number("" if figure is None else quantity(figure.value, figure.unit)) for figure in values)
    return linked(one.label, f"#{anchor(str(one.case))}"), Markup(f"{state(one.state)}{below}"), *cells


def _figures(sweep: Sweep, best: SweptCase | None, titles: dict[str, str]) -> charts.Chart | None:
    """Return the figures of all variants as multiples of the best one's."""
    if best is None:
        return None
    places = [float(place) for place, _ in enumerate(sweep.cases, 1)]
    lines = [
        charts.ChartLine(title, places, [_multiple(one, best, name) for one in sweep.cases])
        for name, title in titles.items()
        if name in best.figures
    ]
    chart = charts.make_chart(f"Figures as multiples of those of {best.label}", sweep.keys, "x", lines)
    return chart and replace(chart, floor=0.0, names=tuple(one.label for one in sweep.cases))


def _multiple(one: SweptCase, best: SweptCase, name: str) -> float:
    figure, least = one.figures.get(name), best.figures[name].value
    return figure.value / least if figure is not None and least else math.nan


def _losses(sweep: Sweep) -> charts.Chart | None:
    """Return the loss of each variant's first round over the samples."""
    lines = [charts.line_of(one.label, one.loss, charts.MAX_POINTS) for one in sweep.cases]
    chart = charts.make_chart("Training loss of the first round", "samples", "loss", lines)
    return chart and replace(chart, summary="last")
