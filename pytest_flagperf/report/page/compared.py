"""The page of a comparison: what got worse, a table a case with all runs side by side, trends, and the trainings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from pytest_flagperf.report.page import charts, sampled_charts
from pytest_flagperf.report.page.charts import Bar, Chart, Line
from pytest_flagperf.report.page.html import Markup, Name, Number, document, items, state, table
from pytest_flagperf.report.page.section import SERIES_AT_MOST
from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.comparison import Change, Compared, certainty
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.logs.samples import Samples
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.units import count, quantity, signed

_RUNS_DRAWN = 8
"""Maximum number of lines in one chart."""
_POINTS = 200
_BYTES = 2_000_000
"""What the charts of a page may weigh; of many cases their lines have fewer points, and samples go first."""
_OF_A_POINT, _FEWEST = 13, 15
_WIDEST = 0.5
"""A change that fills its bar; larger ones do not stick out of it."""


@dataclass(frozen=True)
class Page:
    """The content of the page; ``where`` has the directory of each run by its name, in the order of the runs."""

    where: Mapping[str, Path]
    cases: tuple[Compared, ...]
    regressions: tuple[str, ...]
    notes: tuple[str, ...]
    threshold: float


def alone(page: Page) -> str:
    """A page that stands by itself."""
    old, *_, new = page.where
    parts = [_headline(page), _facts(page), _machines(page), _scaling(page), "<h2>Cases</h2>"]
    parts += [_case(page, case) for case in page.cases]
    return document(f"flagperf: {old} and {new}", f'<main class="flagperf">{"".join(parts)}</main>')


def _headline(page: Page) -> str:
    bad = len(page.regressions)
    said = count(bad, "regression") if bad else "No regression"
    kind = "failed" if bad else "passed"
    told = f"{items(page.regressions, 'bad')}{items(page.notes, 'soft')}"
    return f'<div class="headline {kind}"><p>{said}</p>{told}</div>'


def _facts(page: Page) -> str:
    old, *between, new = (f"{escape(name)} <small>{escape(str(path))}</small>" for name, path in page.where.items())
    rule = (
        f"a change counts from {quantity(page.threshold, 'share')} on, "
        f"and beyond what chance alone does once in {1 / noise.CHANCE:.0f} runs"
    )
    found = {"old": old, **({"between": "<br>".join(between)} if between else {}), "new": new, "rule": rule}
    return f'<dl class="facts">{"".join(f"<dt>{name}</dt><dd>{said}</dd>" for name, said in found.items())}</dl>'


# -- all cases -----------------------------------------------------------------------------------------------


def _machines(page: Page) -> str:
    """Each case's p_core as bars, a bar a run, where the runs are of different hardware."""
    made = [(case.row.old.case, _bars(case)) for case in page.cases if _other_hardware(case)]
    shown = [f"<div><h3>{escape(case)}</h3>{bars}</div>" for case, bars in made if bars]
    return f'<h2>Side by side: p_core</h2><div class="charts">{"".join(shown)}</div>' if shown else ""


def _other_hardware(case: Compared) -> bool:
    return len({result.outcomes[0].hardware for _, result in case.row.runs}) > 1


def _bars(case: Compared) -> str:
    return charts.bars(
        [
            Bar(f"{name}: {one.outcomes[0].vendor} {one.outcomes[0].hardware}", value, quantity(value, _rate(one)))
            for name, one in case.row.runs
            if (value := one.median("p_core")) is not None
        ]
    )


def _scaling(page: Page) -> str:
    """A line a run for each model that was measured on several numbers of cards."""
    found: dict[tuple[str, str], dict[str, list[tuple[int, float]]]] = {}
    for case in page.cases:
        one = case.row.old.outcomes[0]
        for name, result in case.row.runs:
            value = result.median("p_core")
            if value is not None:
                group = found.setdefault((f"{one.model} {one.framework}: p_core", _rate(result)), {})
                group.setdefault(name, []).append((result.outcomes[0].cards, value))
    drawn = [
        charts.scaling(title, unit, runs)
        for (title, unit), runs in found.items()
        if any(len({cards for cards, _ in pairs}) > 1 for pairs in runs.values())
    ]
    made = charts.html(drawn)
    return f"<h2>Scaling</h2>{made}" if made else ""


def _rate(case: CaseResult) -> str:
    return case.outcomes[0].rate_unit


# -- a case --------------------------------------------------------------------------------------------------


def _case(page: Page, case: Compared) -> str:
    worse = any(case.row.regressions(case.changes, page.threshold))
    word, kind = ("worse", "failed") if worse else ("not worse", "passed")
    p_core = case.change("p_core")
    share = f"<span>p_core {_change(p_core)}</span>" if p_core and p_core.judgement.change is not None else ""
    body = "".join(_body(page, case))
    return (
        f'<details class="case" data-state="{kind}"{" open" if worse or len(page.cases) <= 3 else ""}>'
        f"<summary>{state(kind, word)}<strong>{escape(case.row.name)}</strong>{share}</summary>"
        f"<div>{body}</div></details>"
    )


def _body(page: Page, case: Compared) -> Iterator[str]:
    yield "".join(f'<p class="warning">{escape(f"different: {text}")}</p>' for text in case.row.unlike)
    yield items(case.row.notes, "soft")
    yield _figures(case)
    if text := certainty(case.changes, page.threshold):
        yield f'<p class="soft">{escape(text)}</p>'
    yield charts.html(_trend(change) for change in case.changes if change.judged)
    yield _drawn(page, case)


def _figures(case: Compared) -> str:
    """The old and the new run first, so that the change is in sight beside many runs between."""
    old, *between, new = case.row.names
    head = ("figure", old, new, "change", "", "noise", "", "better", *between)
    rows = []
    for change in case.changes:
        then, *values, now = map(Number, change.texts)
        rows.append((Name(change.name), then, now, *_cells(change), change.direction or "", *values))
    return table(head, rows, [change.word == noise.WORSE for change in case.changes])


def _trend(change: Change) -> Chart | None:
    """The median of each run over their numbers, where there are more than two."""
    medians = [math.nan if median is None else median for median in change.medians]
    line = Line("median of the rounds", [float(number) for number in range(1, len(medians) + 1)], medians)
    if len(medians) < 3 or not line.drawable:
        return None
    return Chart(f"{change.name} over the runs", "run", change.unit, (line,), dots=True)


def _cells(change: Change) -> tuple[str, ...]:
    """The change as a number and as a bar over its noise, the noise, and whether the change is for the worse."""
    error = change.judgement.error
    bar = _bar(change) if change.judgement.change is not None else ""
    return (
        Number(_change(change)),
        Markup(bar),
        Number("?" if error is None else quantity(error.limit, "share")),
        Markup(f"<strong>{escape(change.word)}</strong>"),
    )


def _bar(change: Change) -> str:
    """From the middle to the side that it changed to; the shade is what chance does."""
    share = change.judgement.change or 0.0
    error = change.judgement.error
    shade = min(error.limit if error else 0.0, _WIDEST) / _WIDEST * 50
    width = min(abs(share), _WIDEST) / _WIDEST * 50
    kind = {noise.WORSE: "worse", noise.BETTER: "better"}.get(change.word, "")
    return (
        f'<span class="shift {kind}" aria-hidden="true">'
        f'<i style="left:{50 - shade:.1f}%;width:{2 * shade:.1f}%"></i>'
        f'<b style="left:{50 - width if share < 0 else 50:.1f}%;width:{width:.1f}%"></b></span>'
    )


def _change(change: Change) -> str:
    share = change.judgement.change
    return "" if share is None else signed(share)


# -- how the trainings went ----------------------------------------------------------------------------------


def _drawn(page: Page, case: Compared) -> str:
    """The round in the middle of each run, line beside line; of many runs the first and the last ones."""
    named = [(name, middle) for name, one in case.row.runs if (middle := _middle(one)) is not None]
    shown = named if len(named) <= _RUNS_DRAWN else [named[0], *named[1 - _RUNS_DRAWN :]]
    room = _BYTES / max(len(page.cases), 1) / _OF_A_POINT / 2
    points = max(min(int(room / 3 / max(len(shown), 1)), _POINTS), _FEWEST)
    curves = [
        _beside([(name, draw([one], points)) for name, one in shown])
        for draw in (charts.loss, charts.metric, charts.throughput)
    ]
    sampled = _sampled(page, shown, room)
    if not any(curves) and not sampled:
        return ""
    about = "of each run the round whose p_core is in the middle"
    if len(shown) < len(named):
        about += f"; {len(shown)} of {len(named)} runs"
    if sampled is None:
        about += "; what hosts and devices did is left out, there are too many cases"
    return f"<h3>Training <small>({about})</small></h3>{charts.html(curves)}{charts.html(sampled or ())}"


def _middle(case: CaseResult) -> Outcome | None:
    well = [one for one in case.outcomes if one.ok]
    known = [one for one in well if math.isfinite(one.value("p_core") or math.nan)]
    if not known:
        return next(iter(well), None)
    middle = statistics.median_low(one.value("p_core") or math.nan for one in known)
    return next(one for one in known if one.value("p_core") == middle)


def _sampled(page: Page, shown: Iterable[tuple[str, Outcome]], room: float) -> list[Chart | None] | None:
    """What hosts and devices did, each title once with the lines of all runs; None where there is no room for it."""
    found = {name: monitors.read(page.where[name] / one.directory, SERIES_AT_MOST) for name, one in shown}
    lines = sum(_lines(samples) for samples in found.values())
    points = min(int(room / max(lines, 1)), _POINTS)
    if points < _FEWEST:
        return None
    by_title: dict[str, list[tuple[str, Chart | None]]] = {}
    for name, samples in found.items():
        for chart in filter(
            None, (*sampled_charts.devices(samples, (), points), *sampled_charts.hosts(samples, (), points))
        ):
            by_title.setdefault(chart.title, []).append((name, chart))
    return [_beside(each) for each in by_title.values()]


def _lines(hosts: Mapping[str, Samples]) -> int:
    """How many the charts of a round have at most: nine titles, of many devices or hosts a few lines each."""
    devices = sum(len(samples.devices) for samples in hosts.values())
    return 5 * min(devices, charts.LINES_AT_MOST) + 4 * min(len(hosts), charts.LINES_AT_MOST)


def _beside(named: Sequence[tuple[str, Chart | None]]) -> Chart | None:
    """One chart of several: each line by the run that it is of."""
    there = [(name, chart) for name, chart in named if chart is not None]
    if not there:
        return None
    lines = tuple(
        replace(line, name=name if len(chart.lines) == 1 else f"{name} {line.name}")
        for name, chart in there
        for line in chart.lines
    )
    notes = "; ".join(dict.fromkeys(chart.note for _, chart in there if chart.note))
    return replace(there[0][1], lines=lines, note=notes)
