"""The HTML of charts, which ``page.js`` draws, and bars, which need no script.

``spec`` converts a group of charts to JSON, with each shared axis once, and ``html`` puts the group into a page:

    chart_html.html([loss(outcomes), metric(outcomes)])      # skips None; returns "" without charts

The charts of a group share their cursor, and charts with the same axis their zoom. The page needs ``style()`` and
``script()`` of html.py once. ``bars([Bar(name, value, text), ...])`` is plain HTML.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import median
from typing import Any

from pytest_flagperf.report.charts import MAX_POINTS, Band, Chart, ChartLine, line_of, make_chart
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.results.measured.stragglers import SLOW

from .step_times import RankStepTimes

MAX_LINES = 8
"""The maximum number of lines of devices, hosts or ranks; more are drawn as their lowest, median and highest."""
_MOST_BARS = 16
IDEAL = "ideal"
_MAX_NAME_LENGTH = 40
_DIGITS = 4


def envelope(lines: Sequence[ChartLine]) -> list[ChartLine]:
    """Return the lowest, median and highest value of the lines at the times of the longest line."""
    longest = max(lines, key=lambda line: len(line.x))
    columns = [_at(line, longest.x) for line in lines]
    rows = [[value for value in row if math.isfinite(value)] or [math.nan] for row in zip(*columns, strict=True)]
    return [
        ChartLine(name, longest.x, [pick(row) for row in rows])
        for name, pick in (("lowest", min), ("median", median), ("highest", max))
    ]


def _at(line: ChartLine, times: Sequence[float]) -> list[float]:
    """Return the last value of the line at each time."""
    index, values = 0, []
    for time in times:
        while index + 1 < len(line.x) and line.x[index + 1] <= time:
            index += 1
        values.append(line.y[index])
    return values


# -- of ranks ------------------------------------------------------------------------------------------------


def rank_steps(ranks: Sequence[RankStepTimes], points: int = MAX_POINTS) -> Chart | None:
    """Return the duration of the logged steps, one line for each rank."""
    points = points if len(ranks) <= 2 else max(points // 2, 60)
    lines = [
        line_of(f"rank {rank.rank}", [(step, seconds * 1e3) for step, seconds in rank.step_times], points)
        for rank in ranks
    ]
    lines, note = [line for line in lines if line.drawable], ""
    if len(lines) > MAX_LINES:
        note = f"lowest, median and highest of {len(lines)} ranks at each step"
        lines = envelope(lines)
    chart = make_chart("Step time of each rank", "step", "ms", lines)
    return chart and replace(chart, note=note, floor=0.0)


def rank_bars(ranks: Sequence[RankStepTimes]) -> str:
    """Return the forward pass of each rank as a bar, of many ranks only the slowest, which delay the others.

    The whole steps of all ranks take equally long, because each waits for the slowest.
    """
    known = [rank for rank in ranks if rank.forward > 0]
    if len(known) < 2:
        return ""
    slowest = sorted(known, key=lambda rank: -rank.forward)[:_MOST_BARS]
    middle = median(rank.forward for rank in known)
    shown = [
        Bar(f"rank {rank.rank}", rank.forward, quantity(rank.forward, "s"), marked=rank.forward >= SLOW * middle)
        for rank in sorted(slowest, key=lambda rank: rank.rank)
    ]
    some = f", the slowest {len(shown)} of {count(len(known), 'rank')}" if len(shown) < len(known) else ""
    return f"<h4>Forward pass of each rank, in which no rank waits for others{some}</h4>{bars(shown)}"


# -- of cases ------------------------------------------------------------------------------------------------


def speedup(title: str, points: Mapping[str, Sequence[tuple[int, float]]]) -> Chart | None:
    """Return the speed-up over cards by name, and one line for the ideal, which is the number of cards."""
    lines = []
    for name, pairs in points.items():
        numbers, factors = zip(*sorted(pairs), strict=True)
        lines.append(ChartLine(name, numbers, factors))
    cards = sorted({float(number) for pairs in points.values() for number, _ in pairs})
    chart = make_chart(title, "cards", "x", [*lines, ChartLine(IDEAL, cards, cards, dashed=True)])
    return chart and replace(chart, floor=0.0, summary="last")


@dataclass(frozen=True)
class Bar:
    """A bar; ``text`` is the formatted value, ``link`` an anchor of the page; a ``marked`` one is a problem."""

    name: str
    value: float
    text: str
    link: str = ""
    marked: bool = False


def bars(bars: Sequence[Bar]) -> str:
    """Return horizontal bars as plain HTML without a script."""
    highest = max((bar.value for bar in bars if math.isfinite(bar.value)), default=0.0)
    rows = []
    for bar in bars:
        share = bar.value / highest if highest > 0 and math.isfinite(bar.value) else 0.0
        name = f'<a href="{escape(bar.link)}">{escape(bar.name)}</a>' if bar.link else escape(bar.name)
        rows.append(
            f'<tr{" class=bad" if bar.marked else ""}><th scope="row">{name}</th><td class="bar">{bar_of(share)}</td>'
            f'<td class="number">{escape(bar.text)}</td><td class="number">{share * 100:.0f} %</td></tr>'
        )
    return f'<table class="bars"><tbody>{"".join(rows)}</tbody></table>'


def stacked(title: str, parts: Mapping[str, float], unit: str, most: float, names: Sequence[str]) -> str:
    """Return the parts of a whole as one bar with their values below; ``most``: the value of a full bar.

    The place of a part in ``names`` decides its colour.
    """
    whole = sum(parts.values())
    # The first two colours are those of the old and the new run.
    marks = {name: f"<i class=c{2 + list(names).index(name) % 7}" for name in parts}
    pieces = "".join(f'{mark} style="width:{parts[name] / most * 100:.1f}%"></i>' for name, mark in marks.items())
    values = "".join(
        f"<span>{mark}></i>{escape(name)} {escape(quantity(parts[name], unit))} "
        f"({quantity(parts[name] / whole, 'share')})</span>"
        for name, mark in marks.items()
    )
    total = f"{escape(title)}: {escape(quantity(whole, unit))}"
    return f'<div class="stacked"><div aria-hidden="true">{pieces}</div><p><span>{total}</span>{values}</p></div>'


def bar_of(share: float) -> str:
    """Return a bar that fills a share of its cell."""
    return f'<span class="filled" style="width:{max(share, 0.0) * 100:.1f}%"></span>'


# -- to the page ---------------------------------------------------------------------------------------------


def html(charts: Iterable[Chart | None]) -> str:
    """Return the elements and data of the charts; the script draws a chart when it becomes visible."""
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return ""
    figures = "".join(_figure(number, chart) for number, chart in enumerate(drawn))
    # A chart with labels names its bands itself.
    names = dict.fromkeys(band.name for chart in drawn for band in chart.bands if not _labels(chart))
    key = "".join(f'<span><i class="band" data-band="{escape(name)}"></i>{escape(name)}</span>' for name in names)
    key = f'<p class="bands">{key}</p>' if key else ""
    return f'{key}<div class="charts"><script type="application/json">{dumped(spec(drawn))}</script>{figures}</div>'


def _figure(number: int, chart: Chart) -> str:
    note = f" <small>({escape(chart.note)})</small>" if chart.note else ""
    unit = f" <small>[{escape(chart.y)}]</small>" if chart.y and chart.y not in chart.title else ""
    return (
        f'<figure class="chart" data-chart="{number}">'
        f'<figcaption>{escape(chart.title)}{unit}{note}</figcaption><div class="plot"></div></figure>'
    )


def spec(charts: Sequence[Chart]) -> dict[str, Any]:
    """Return the data of a group of charts: the axes ``xs`` and the ``bands``, each once, and the ``charts``.

    A line is a list of its name, the number of its axis and its values, and 1 if it is dashed. A gap is null; a line
    with a constant value has that value instead of a list.
    """
    xs: dict[tuple[float, ...], int] = {}
    bands: dict[tuple[Band, ...], int] = {}
    specs = [_chart_spec(chart, xs, bands) for chart in charts]
    band_specs = [[_band_spec(band) for band in group] for group in bands]
    return {"xs": [list(x) for x in xs], "bands": band_specs, "charts": specs}


def _band_spec(band: Band) -> list[Any]:
    heights = [rounded(value) for value in (band.low, band.high) if value is not None]
    return [band.name, _on_axis(band.start), _on_axis(band.end), *heights]


def _chart_spec(chart: Chart, xs: dict[tuple[float, ...], int], bands: dict[tuple[Band, ...], int]) -> dict[str, Any]:
    # A unit that the title contains is the name of the metric.
    spec: dict[str, Any] = {"x": chart.x, "kind": chart.kind, "y": "" if chart.y in chart.title else chart.y}
    spec["lines"] = [
        [
            _short_name(line.name),
            xs.setdefault(tuple(map(_on_axis, line.x)), len(xs)),
            _values(line.y),
            *([1] if line.dashed else []),
        ]
        for line in chart.lines
        if line.drawable
    ]
    if chart.levels:
        spec["levels"] = [{"name": level.name, "value": level.value} for level in chart.levels]
    if chart.bands:
        spec["bands"] = bands.setdefault(chart.bands, len(bands))
    if chart.floor is not None:
        spec["floor"] = chart.floor
    if labels := _labels(chart):
        spec["labels"] = labels
    if chart.names:
        spec["names"] = chart.names
    if chart.summary != Chart.summary:
        spec["summary"] = chart.summary
    return spec


def _labels(chart: Chart) -> list[tuple[str, ...]]:
    """Return the labels of each line; nothing if no line has any."""
    labels = [line.labels for line in chart.lines if line.drawable]
    return labels if any(labels) else []


def _values(values: Sequence[float]) -> list[float | int | None] | float | int | None:
    short = [rounded(value) for value in values]
    return short[0] if len(set(short)) == 1 else short


def rounded(value: float, digits: int = _DIGITS) -> float | int | None:
    """Return the value with as many digits as a chart can show; None if it is not finite."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    if math.isinf(short):  # the largest numbers have no shorter form
        return value
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _on_axis(value: float) -> float | int:
    """Round a position on an axis to a hundredth: steps are integers, samples are tenths of seconds apart."""
    short = round(value, 2)
    return int(short) if float(short).is_integer() else short


def dumped(value: object) -> str:
    """Return JSON for a script element, which no text in it can close."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _short_name(name: str) -> str:
    text = "".join(char if char.isprintable() else "?" for char in name)
    return text if len(text) <= _MAX_NAME_LENGTH else f"{text[: _MAX_NAME_LENGTH - 1]}…"
