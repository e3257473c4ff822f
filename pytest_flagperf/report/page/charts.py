"""Charts as data: pure functions from what was measured to what ``page.js`` draws.

A ``Chart`` holds lines over one axis; ``spec`` makes charts that stand together JSON-able, with shared axes said once,
and ``html`` puts them into a page:

    charts.html([charts.loss(outcomes), charts.metric(outcomes)])      # None is passed over; "" when nothing is left

Charts of one call share their cursor, and their zoom where their axes are of one kind. The page needs
``style()`` and ``script()`` of ``report/html.py`` once. Bars need no script: ``bars([Bar(name, value, said), ...])``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import median
from typing import Any

from pytest_flagperf.results.logs.step_times import RankStepTimes
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.units import quantity

MAX_POINTS = 300
"""Of one line: more cannot be told apart at a chart's width, and the page stays small."""
LINES_AT_MOST = 8
"""Of devices, hosts and ranks: more lines than this are drawn as their lowest, middle and highest."""
_NAME_AT_MOST = 40
_DIGITS = 4


@dataclass(frozen=True)
class Line:
    """``name`` is what the legend says; what is not a number is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False

    @property
    def drawable(self) -> bool:
        return any(map(math.isfinite, self.y))


@dataclass(frozen=True)
class Level:
    """A horizontal line to compare with."""

    name: str
    value: float


@dataclass(frozen=True)
class Band:
    """A part of the axis that is shaded, one shade a name."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Chart:
    """``kind`` says what the axis counts: "count" (steps, cards, ranks) or "time" (seconds)."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    kind: str = "count"
    levels: tuple[Level, ...] = ()
    bands: tuple[Band, ...] = ()
    floor: float | None = None
    """What the axis of values begins at; None: below the lowest."""
    dots: bool = False
    """Whether each value is one by itself, and shown as a dot."""
    note: str = ""

    @property
    def drawable(self) -> bool:
        return any(line.drawable for line in self.lines)


# -- of rounds -----------------------------------------------------------------------------------------------


def loss(outcomes: Sequence[Outcome], points: int = MAX_POINTS) -> Chart | None:
    """The training loss over steps, a line a round."""
    lines = [_line(_round(one), [(step.step, step.loss) for step in one.steps], points) for one in outcomes]
    return make_chart("Training loss", "step", "loss", lines)


def metric(outcomes: Sequence[Outcome], points: int = MAX_POINTS) -> Chart | None:
    """The suite's metric over steps against the target, the untrained model first."""
    if not outcomes:
        return None
    target = outcomes[0].target
    lines = [_line(_round(one), _evaluated(one), points) for one in outcomes]
    levels: tuple[Level, ...] = ()
    if target.value is not None and math.isfinite(target.value):
        levels = (Level(f"target {quantity(target.value, target.unit)}", target.value),)
    made = make_chart(f"{target.name} against its target", "step", target.name, lines)
    return made and replace(made, levels=levels, dots=True)


def throughput(outcomes: Sequence[Outcome], points: int = MAX_POINTS) -> Chart | None:
    """Samples per second over time, all cards together, a line a round."""
    if not outcomes:
        return None
    lines = [_line(_round(one), [(step.time, step.throughput) for step in one.steps], points) for one in outcomes]
    made = make_chart("Throughput, all cards", "time since the training began", outcomes[0].rate_unit, lines)
    return made and replace(made, kind="time", floor=0.0)


def _evaluated(outcome: Outcome) -> list[tuple[float, float]]:
    found = [outcome.untrained] if outcome.untrained else []
    found += outcome.evaluations
    return [(item.step, item.metrics.get(outcome.target.name, math.nan)) for item in found]


def _round(outcome: Outcome) -> str:
    return f"round {outcome.round}"


def envelope(lines: Sequence[Line]) -> list[Line]:
    """At the times of the line with most points, over what each line was last."""
    longest = max(lines, key=lambda line: len(line.x))
    columns = [_at(line, longest.x) for line in lines]
    rows = [[value for value in row if math.isfinite(value)] or [math.nan] for row in zip(*columns, strict=True)]
    return [
        Line(name, longest.x, [pick(row) for row in rows])
        for name, pick in (("lowest", min), ("middle", median), ("highest", max))
    ]


def _at(line: Line, wanted: Sequence[float]) -> list[float]:
    place, found = 0, []
    for when in wanted:
        while place + 1 < len(line.x) and line.x[place + 1] <= when:
            place += 1
        found.append(line.y[place])
    return found


# -- of ranks ------------------------------------------------------------------------------------------------


def rank_steps(words: Sequence[RankStepTimes], points: int = MAX_POINTS) -> Chart | None:
    """How long the logged steps took, a line a rank."""
    points = points if len(words) <= 2 else max(points // 2, 60)
    lines = [
        _line(f"rank {each.rank}", [(step, seconds * 1e3) for step, seconds in each.step_times], points)
        for each in words
    ]
    lines, note = [line for line in lines if line.drawable], ""
    if len(lines) > LINES_AT_MOST:
        note = f"of {len(lines)} ranks: the lowest, the middle and the highest at each step"
        lines = envelope(lines)
    made = make_chart("Step time of each rank", "step", "ms", lines)
    return made and replace(made, note=note, floor=0.0)


def rank_spread(words: Sequence[RankStepTimes]) -> Chart | None:
    """Of each rank the median of its step times and its tails; one rank has no others to differ from."""
    if len(words) < 2:
        return None
    names = ("p50", "p90", "p99")
    lines = [
        Line(name, [each.rank for each in words], [each.percentiles.get(name, math.nan) * 1e3 for each in words])
        for name in names
    ]
    made = make_chart("Step time over the ranks", "rank", "ms", lines)
    return made and replace(made, floor=0.0, dots=True)


# -- of cases ------------------------------------------------------------------------------------------------


def scaling(title: str, unit: str, found: Mapping[str, Sequence[tuple[int, float]]]) -> Chart | None:
    """Throughput over cards, by what it was measured on, each with the line that perfect scaling would follow."""
    lines = []
    for name, pairs in found.items():
        cards, values = zip(*sorted(pairs), strict=True)
        lines.append(Line(name, cards, values))
        if len(set(cards)) > 1:
            ideal = [values[0] / cards[0] * number for number in cards]
            lines.append(Line(f"{name}, ideal", cards, ideal, dashed=True))
    made = make_chart(title, "cards", unit, lines)
    return made and replace(made, floor=0.0, dots=True)


@dataclass(frozen=True)
class Bar:
    """``said`` is the value as people read it; ``link`` an address inside the page."""

    name: str
    value: float
    said: str
    link: str = ""


def bars(found: Sequence[Bar]) -> str:
    """Plain HTML, the longest bar the highest value; needs no script."""
    highest = max((bar.value for bar in found if math.isfinite(bar.value)), default=0.0)
    rows = []
    for bar in found:
        share = bar.value / highest if highest > 0 and math.isfinite(bar.value) else 0.0
        name = f'<a href="{escape(bar.link)}">{escape(bar.name)}</a>' if bar.link else escape(bar.name)
        width = f"{max(share, 0.0) * 100:.1f}%"
        rows.append(
            f'<tr><th scope="row">{name}</th><td class="bar"><span style="width:{width}"></span></td>'
            f'<td class="number">{escape(bar.said)}</td><td class="number">{share * 100:.0f} %</td></tr>'
        )
    return f'<table class="bars"><tbody>{"".join(rows)}</tbody></table>'


# -- to the page ---------------------------------------------------------------------------------------------


def html(charts: Iterable[Chart | None]) -> str:
    """The charts with their data; each is drawn when it comes into sight."""
    found = [chart for chart in charts if chart is not None]
    if not found:
        return ""
    figures = "".join(_figure(number, chart) for number, chart in enumerate(found))
    names = dict.fromkeys(band.name for chart in found for band in chart.bands)
    key = "".join(f'<span><i class="band" data-band="{escape(name)}"></i>{escape(name)}</span>' for name in names)
    key = f'<p class="bands">Phases: {key}</p>' if key else ""
    return f'{key}<div class="charts"><script type="application/json">{dumped(spec(found))}</script>{figures}</div>'


def _figure(number: int, chart: Chart) -> str:
    note = f" <small>({escape(chart.note)})</small>" if chart.note else ""
    unit = f" <small>[{escape(chart.y)}]</small>" if chart.y and chart.y not in chart.title else ""
    return (
        f'<figure class="chart" data-chart="{number}">'
        f'<figcaption>{escape(chart.title)}{unit}{note}</figcaption><div class="plot"></div></figure>'
    )


def spec(charts: Sequence[Chart]) -> dict[str, Any]:
    """``xs`` and ``bands``, each once; ``charts``: of each line its name, the number of its axis, and its values.

    A gap is null, and a line whose values are all the same is that value; one that is dashed has a 1 at its end.
    """
    xs: dict[tuple[float, ...], int] = {}
    bands: dict[tuple[Band, ...], int] = {}
    made = [_chart_spec(chart, xs, bands) for chart in charts]
    said = [[[band.name, _place(band.start), _place(band.end)] for band in each] for each in bands]
    return {"xs": [list(x) for x in xs], "bands": said, "charts": made}


def _chart_spec(chart: Chart, xs: dict[tuple[float, ...], int], bands: dict[tuple[Band, ...], int]) -> dict[str, Any]:
    made: dict[str, Any] = {"x": chart.x, "kind": chart.kind, "y": chart.y}
    made["lines"] = [
        [
            _named(line.name),
            xs.setdefault(tuple(map(_place, line.x)), len(xs)),
            _values(line.y),
            *([1] if line.dashed else []),
        ]
        for line in chart.lines
        if line.drawable
    ]
    if chart.levels:
        made["levels"] = [{"name": level.name, "value": level.value} for level in chart.levels]
    if chart.bands:
        made["bands"] = bands.setdefault(chart.bands, len(bands))
    if chart.floor is not None:
        made["floor"] = chart.floor
    if chart.dots:
        made["dots"] = True
    return made


def _values(found: Sequence[float]) -> list[float | int | None] | float | int | None:
    values = [rounded(value) for value in found]
    return values[0] if len(set(values)) == 1 else values


def rounded(value: float, digits: int = _DIGITS) -> float | int | None:
    """With as many digits as a chart can show; None for what is no number."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    if math.isinf(short):  # the largest numbers have no shorter form
        return value
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _place(value: float) -> float | int:
    """A place on an axis, to a hundredth: steps are whole, samples come in tenths of seconds."""
    short = round(value, 2)
    return int(short) if float(short).is_integer() else short


def dumped(value: object) -> str:
    """JSON that may stand in a script element: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def make_chart(title: str, x: str, y: str, lines: Iterable[Line]) -> Chart | None:
    drawable = tuple(line for line in lines if line.drawable)
    return Chart(title, x, y, drawable) if drawable else None


def _line(name: str, pairs: Sequence[tuple[float, float]], points: int) -> Line:
    """Points evenly apart, and the last one; a place that is no number has no point."""
    pairs = [(x, y) for x, y in pairs if math.isfinite(x)]
    stride = max(1, math.ceil(len(pairs) / points))
    kept = [*pairs[::stride], *(pairs[-1:] if (len(pairs) - 1) % stride else [])]
    return Line(name, [x for x, _ in kept], [y for _, y in kept])


def _named(name: str) -> str:
    text = "".join(char if char.isprintable() else "?" for char in name)
    return text if len(text) <= _NAME_AT_MOST else f"{text[: _NAME_AT_MOST - 1]}…"
