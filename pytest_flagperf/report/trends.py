"""The page of a case's history: each group of like runs with its trend, where the level changed, and every run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pytest_flagperf.report import charts
from pytest_flagperf.report.charts import Chart, Line
from pytest_flagperf.report.html import Name, Number, document, items, table
from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.comparison import plain_name
from pytest_flagperf.results.history import Group, Trend
from pytest_flagperf.results.units import count, quantity, signed


@dataclass(frozen=True)
class Page:
    """``groups`` with the newest run's last, each with the trend of every metric; ``shifts`` says them in words."""

    groups: tuple[tuple[Group, tuple[Trend, ...]], ...]
    worse: bool
    said: str
    notes: tuple[str, ...]
    shifts: dict[tuple[int, str], tuple[str, ...]]
    """By the group's place and the metric."""


def alone(page: Page) -> str:
    """A page that stands by itself; the newest run's group first."""
    newest, _ = page.groups[-1]
    runs = sum(len(group.entries) for group, _ in page.groups)
    title = f"flagperf: {plain_name(newest.entries[-1].case)} over {count(runs, 'run')}"
    kind = "failed" if page.worse else "passed"
    head = f'<div class="headline {kind}"><p>{escape(page.said)}</p>{items(page.notes, "soft")}</div>'
    places = reversed(range(len(page.groups)))
    parts = [head, *(part for place in places for part in _group(page, place))]
    return document(title, f'<main class="flagperf">{"".join(parts)}</main>')


def _group(page: Page, place: int) -> Iterator[str]:
    group, trends = page.groups[place]
    first, last = group.entries[0].run, group.entries[-1].run
    yield f"<h2>{count(len(group.entries), 'run')}: {escape(first if first == last else f'{first} to {last}')}</h2>"
    yield items([f"unlike the newest run: {text}" for text in group.unlike], "soft")
    changed = [f"from {entry.run} on: {', '.join(texts)}" for entry, texts in group.changed()]
    yield "".join(f'<p class="warning">{escape(text)}</p>' for text in changed)
    yield charts.html(chart(trend) for trend in trends)
    for trend in trends:
        told = [
            *page.shifts.get((place, trend.metric), ()),
            f"newest: {trend.judged[-1].word}: {trend.judged[-1].sentence}",
        ]
        yield f"<h3>{escape(trend.metric)} <small>({escape(_noise(trend))})</small></h3>{items(told)}"
    yield f"<h3>Runs</h3>{_table(group, trends)}"


def chart(trend: Trend) -> Chart | None:
    """The median of each run over their numbers, the level that they had, and what was called worse or better."""
    places = [number for number, run in enumerate(trend.runs) if run]
    medians = [statistics.median(trend.runs[place]) for place in places]
    if not medians:
        return None
    found = noise.shifts(medians)
    numbers = [float(place + 1) for place in places]
    lines = [
        Line("median of the rounds", numbers, medians),
        Line("level", numbers, noise.levels(medians, found), dashed=True),
        *(_called(trend, word) for word in (noise.WORSE, noise.BETTER, noise.CHANGED)),
    ]
    lines.append(_dots("first after a change", trend, {shift.first for shift in trend.shifts}))
    drawable = tuple(line for line in lines if line.drawable)
    return Chart(f"{trend.metric} over the runs", "run", trend.unit, drawable, dots=True)


def _called(trend: Trend, word: str) -> Line:
    return _dots(word, trend, {place for place, judged in enumerate(trend.judged) if judged.word == word})


def _dots(name: str, trend: Trend, places: Collection[int]) -> Line:
    """Some of the runs; the others are gaps, so that no line goes over them."""
    values = [statistics.median(run) if run and place in places else math.nan for place, run in enumerate(trend.runs)]
    return Line(name, [place + 1.0 for place in range(len(values))], values)


def _noise(trend: Trend) -> str:
    shares = (("of a round", trend.noise.within), ("from run to run", trend.noise.between))
    known = [f"{quantity(value, 'share')} {what}" for what, value in shares if value is not None]
    return f"noise: {', '.join(known) or 'not known yet'}"


def _table(group: Group, trends: Sequence[Trend]) -> str:
    """The newest run first."""
    head = ("", "run", "rounds", *(cell for trend in trends for cell in (trend.metric, "change", "")))
    rows, marked = [], []
    for number in reversed(range(len(group.entries))):
        entry = group.entries[number]
        cells = [cell for trend in trends for cell in _cells(trend, number)]
        rows.append((Number(str(number + 1)), Name(entry.run), Number(str(len(trends[0].runs[number]))), *cells))
        marked.append(any(trend.judged[number].word == noise.WORSE for trend in trends))
    return table(head, rows, marked)


def _cells(trend: Trend, number: int) -> tuple[str, ...]:
    run, judged = trend.runs[number], trend.judged[number]
    value = quantity(statistics.median(run), trend.unit) if run else ""
    change = "" if judged.change is None else signed(judged.change)
    return Number(value), Number(change), "" if judged.word in (noise.WITHIN, noise.TOO_FEW) else judged.word
