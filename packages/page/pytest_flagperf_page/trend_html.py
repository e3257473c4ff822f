"""The trend of a figure on the page: a chart of the runs with their noise and changes, and a table of the runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_flagperf.report import charts
from pytest_flagperf.report.charts import Band, Chart, ChartLine
from pytest_flagperf.results.figures.units import count, quantity, scale_of

from . import chart_html
from .html import Name, Number, folded, items, linked, table
from .trend import Trend

NOISE, CHANGE = "noise of a run", "change"
Address = Callable[[str], str]
"""Returns the address of a run's page by the run's name; empty without a page."""


def chart(trend: Trend) -> Chart | None:
    """Return the medians of the runs, around each level the noise, and a line where the level changes."""
    divisor, unit = scale_of(max(map(abs, trend.medians)), trend.unit)
    places = [float(place) for place in range(1, len(trend.runs) + 1)]
    line = ChartLine("median of the rounds", places, [value / divisor for value in trend.medians])
    made = charts.make_chart(f"{trend.figure} over the runs", "run", unit, [line])
    bands = [
        Band(NOISE, level.places[0] + 0.5, level.places[-1] + 1.5, level.low / divisor, level.high / divisor)
        for level in trend.levels
        if level.low is not None and level.high is not None
    ]
    bands += [Band(CHANGE, place + 0.5, place + 0.5) for place in trend.changes]
    names = tuple(f"{run.name} {run.commit}".strip() for run in trend.runs)
    return made and replace(made, summary="last", bands=tuple(bands), names=names)


def small_chart(trend: Trend) -> Chart | None:
    """Return the chart for a table of cases."""
    made = chart(trend)
    return made and replace(made, title=f"{trend.figure} of {count(len(trend.runs), 'run')}")


def html(trends: Sequence[Trend], address: Address) -> str:
    """Return the charts, a sentence for each change, and the folded tables of the runs; empty without a trend."""
    sentences = [text for trend in trends for text in trend.sentences()]
    tables = "".join(_runs(trend, address) for trend in trends)
    return f"{items(sentences)}{chart_html.html(map(chart, trends))}{tables}"


def _runs(trend: Trend, address: Address) -> str:
    """Return the folded table of the runs, the newest first."""
    rows = [
        (linked(run.name, address(run.name)), Name(date(run.started_ms)), Name(run.commit),
         Number(quantity(run.median, trend.unit)), Number(len(run.values)))
        for run in reversed(trend.runs)
    ]  # fmt: skip
    marked = [place in trend.changes for place in reversed(range(len(trend.runs)))]
    head = ("run", "start (UTC)", "commit", trend.figure, "rounds")
    return folded(f"{count(len(rows), 'run')} like this one, also of other commits", table(head, rows, marked))


def date(started_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(started_ms / 1000)) if started_ms else ""
