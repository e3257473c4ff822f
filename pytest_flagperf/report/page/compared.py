"""The HTML page of a comparison: regressions, a table of all runs for each case, trends, and the trainings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from pytest_flagperf.report.page import charts, machine, sampled_charts
from pytest_flagperf.report.page.charts import Bar, Chart, ChartLine
from pytest_flagperf.report.page.html import Markup, Name, Number, anchor, document, items, state, table
from pytest_flagperf.report.page.section import MAX_SERIES_BYTES
from pytest_flagperf.results.comparing.case_table import BAD, CHECK, HEAD, NOT_JUDGED, CaseRow, limit
from pytest_flagperf.results.comparing.comparison import Change, Compared, certainty
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.kinds import meaning
from pytest_flagperf.results.figures.units import count, quantity, signed
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.logs.samples import Samples
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.case_result import CaseResult

_MAX_RUNS = 8
"""The maximum number of runs in one chart."""
_MAX_POINTS, _MIN_POINTS = 200, 15
_CHART_BYTES = 2_000_000
"""The maximum size of all charts; with many cases their lines have fewer points, or samples are left out."""
_BYTES_PER_POINT = 13
_FULL_BAR = 0.5
"""The change that fills its bar; bars of larger changes have the same width."""


@dataclass(frozen=True)
class ComparisonPage:
    """The content of the page; ``directories`` are those of the runs by name, in the order of the runs."""

    directories: Mapping[str, Path]
    cases: tuple[Compared, ...]
    rows: tuple[CaseRow, ...]
    regressions: tuple[str, ...]
    suspect: tuple[str, ...]
    """The cases that improved so much that one of the runs measured wrongly, and those that were not judged."""
    notes: tuple[str, ...]
    threshold: float
    title: str
    """How many cases regressed, or the smallest change that the comparison could have seen."""


def standalone(page: ComparisonPage) -> str:
    """Return a complete page."""
    old, *_, new = page.directories
    parts = [
        _headline(page),
        _case_table(page),
        _lists(page),
        _facts(page),
        _machines(page),
        _scaling(page),
        "<h2>Cases</h2>",
    ]
    parts += [_case(page, case) for case in page.cases]
    return document(f"flagperf: {old} and {new}", f'<main class="flagperf">{"".join(parts)}</main>')


def _headline(page: ComparisonPage) -> str:
    suspect = sum(row.verdict == CHECK for row in page.rows)
    text = page.title[:1].upper() + page.title[1:] + (f"; {count(suspect, 'case')} {CHECK}" if suspect else "")
    kind = "failed" if page.regressions else "passed"
    return f'<div class="headline {kind}"><p>{escape(text)}</p></div>'


def _lists(page: ComparisonPage) -> str:
    """Return the regressions, warnings and notes as sentences."""
    parts = {"Regressions": (page.regressions, "bad"), "Warnings": (page.suspect, ""), "Notes": (page.notes, "soft")}
    return "".join(f"<h2>{name}</h2>{items(texts, kind)}" for name, (texts, kind) in parts.items() if texts)


def _case_table(page: ComparisonPage) -> str:
    """Return the table of all cases, with a link to the section of each compared case."""
    names = {case.row.name for case in page.cases}
    rows = [
        (_linked(row, names), Name(row.metric), *map(Number, row.cells[2:6]), Markup(_labelled(row.verdict)))
        for row in page.rows
    ]
    return f'<h2 id="overview">Overview</h2>{table(HEAD, rows, [row.verdict in BAD for row in page.rows])}'


def _linked(row: CaseRow, names: Collection[str]) -> str:
    name = escape(row.case)
    return Markup(f'<a href="#{anchor(row.case)}">{name}</a>' if row.case in names else name)


def _labelled(verdict: str) -> str:
    kind = "failed" if verdict in BAD else "not-finished" if verdict in (CHECK, NOT_JUDGED) else ""
    return state(kind or ("passed" if verdict == noise.BETTER else "none"), verdict)


def _facts(page: ComparisonPage) -> str:
    runs = page.directories.items()
    old, *between, new = (f"{escape(name)} <small>{escape(str(path))}</small>" for name, path in runs)
    rule = (
        f"a change counts if it is at least {quantity(page.threshold, 'share')}, "
        f"and larger than random variation reaches once in {1 / noise.CHANCE:.0f} runs"
    )
    facts = {"old": old, **({"between": "<br>".join(between)} if between else {}), "new": new, "rule": rule}
    return f'<dl class="facts">{"".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items())}</dl>'


# -- all cases -----------------------------------------------------------------------------------------------


def _machines(page: ComparisonPage) -> str:
    """Return p_core as bars for each case whose runs are of different hardware."""
    named = [(case.row.old.case, _bars(case)) for case in page.cases if _is_across_hardware(case)]
    shown = [f"<div><h3>{escape(case)}</h3>{bars}</div>" for case, bars in named if bars]
    return f'<h2>Hardware comparison: p_core</h2><div class="charts">{"".join(shown)}</div>' if shown else ""


def _is_across_hardware(case: Compared) -> bool:
    return len({result.outcomes[0].hardware for _, result in case.row.runs}) > 1


def _bars(case: Compared) -> str:
    return charts.bars(
        [
            Bar(
                f"{name}: {machine.named(run.outcomes[0].vendor, run.outcomes[0].hardware)}",
                value,
                quantity(value, _rate(run)),
            )
            for name, run in case.row.runs
            if (value := run.median("p_core")) is not None
        ]
    )


def _scaling(page: ComparisonPage) -> str:
    """Return a chart with a line for each run, for each model with several numbers of cards."""
    groups: dict[tuple[str, str], dict[str, list[tuple[int, float]]]] = {}
    for case in page.cases:
        first = case.row.old.outcomes[0]
        for name, result in case.row.runs:
            value = result.median("p_core")
            if value is not None:
                group = groups.setdefault((f"{first.model} {first.framework}: p_core", _rate(result)), {})
                group.setdefault(name, []).append((result.outcomes[0].cards, value))
    drawn = [
        charts.scaling(title, unit, runs)
        for (title, unit), runs in groups.items()
        if any(len({cards for cards, _ in pairs}) > 1 for pairs in runs.values())
    ]
    html = charts.html(drawn)
    return f"<h2>Scaling</h2>{html}" if html else ""


def _rate(case: CaseResult) -> str:
    return case.outcomes[0].rate_unit


# -- a case --------------------------------------------------------------------------------------------------


def _case(page: ComparisonPage, case: Compared) -> str:
    worse = any(case.row.regressions(case.changes))
    undecided = (NOT_JUDGED, "not-finished") if case.row.undecided else ("not worse", "passed")
    label, kind = ("worse", "failed") if worse else undecided
    p_core = case.change("p_core")
    share = f"<span>p_core {_change(p_core)}</span>" if p_core and p_core.judgement.change is not None else ""
    body = "".join(_body(page, case))
    opened = " open" if worse or len(page.cases) <= 3 else ""
    return (
        f'<details class="case" id="{anchor(case.row.name)}" data-state="{kind}"{opened}>'
        f"<summary>{state(kind, label)}<strong>{escape(case.row.name)}</strong>{share}</summary>"
        f"<div>{body}</div></details>"
    )


def _body(page: ComparisonPage, case: Compared) -> Iterator[str]:
    yield "".join(f'<p class="warning">{escape(f"different: {text}")}</p>' for text in case.row.differences)
    yield "".join(f'<p class="warning">{escape(text)}</p>' for text in case.row.invalid)
    yield items(case.row.notes, "soft")
    yield _figures(case) if case.changes else ""
    if text := certainty(case.changes, page.threshold):
        yield f'<p class="soft">{escape(text)}</p>'
    yield charts.html(_trend(change) for change in case.changes if change.judged)
    yield _drawn(page, case)


def _figures(case: Compared) -> str:
    """Return the table of figures, with the old and the new run before the runs between them."""
    old, *between, new = case.row.names
    head = ("figure", old, new, "change", "bar", "limit", "verdict", "better", *between)
    rows = []
    for change in case.changes:
        before, *values, after = map(Number, change.texts)
        rows.append((_named(change.name, case), before, after, *_cells(change), change.direction or "", *values))
    return table(head, rows, [change.word == noise.WORSE for change in case.changes])


def _named(name: str, case: Compared) -> str:
    """Return the name of a figure with its meaning below."""
    text = meaning(name, case.row.old.outcomes[0].target.name)
    return Markup(f'{escape(name)}<span class="spread">{escape(text)}</span>' if text else escape(name))


def _trend(change: Change) -> Chart | None:
    """Return a chart of the medians of all runs; None for two runs."""
    medians = [math.nan if median is None else median for median in change.medians]
    line = ChartLine("median of the rounds", [float(number) for number in range(1, len(medians) + 1)], medians)
    if len(medians) < 3 or not line.drawable:
        return None
    return Chart(f"{change.name} over the runs", "run", change.unit, (line,), dots=True)


def _cells(change: Change) -> tuple[str, ...]:
    """Return the change, a bar of the change over its limit, the limit, and the judgement."""
    bar = _bar(change) if change.judgement.change is not None else ""
    return (
        Number(_change(change)),
        Markup(bar),
        Number(limit(change)),
        Markup(f"<strong>{escape(change.word)}</strong>"),
    )


def _bar(change: Change) -> str:
    """Return a bar from the middle to the side of the change; the shade is the limit."""
    share = change.judgement.change or 0.0
    shade = min(change.judgement.needed or 0.0, _FULL_BAR) / _FULL_BAR * 50
    width = min(abs(share), _FULL_BAR) / _FULL_BAR * 50
    kind = {noise.WORSE: "worse", noise.BETTER: "better"}.get(change.word, "")
    return (
        f'<span class="shift {kind}" aria-hidden="true">'
        f'<i style="left:{50 - shade:.1f}%;width:{2 * shade:.1f}%"></i>'
        f'<b style="left:{50 - width if share < 0 else 50:.1f}%;width:{width:.1f}%"></b></span>'
    )


def _change(change: Change) -> str:
    share = change.judgement.change
    return "" if share is None else signed(share)


# -- the trainings ------------------------------------------------------------------------------------------


def _drawn(page: ComparisonPage, case: Compared) -> str:
    """Return the charts of the median round of each run; of many runs the first and the last ones."""
    named = [(name, outcome) for name, run in case.row.runs if (outcome := _median_round(run)) is not None]
    shown = named if len(named) <= _MAX_RUNS else [named[0], *named[1 - _MAX_RUNS :]]
    numbers = _CHART_BYTES / max(len(page.cases), 1) / _BYTES_PER_POINT / 2
    points = max(min(int(numbers / 3 / max(len(shown), 1)), _MAX_POINTS), _MIN_POINTS)
    curves = [
        _combined([(name, draw([outcome], points)) for name, outcome in shown])
        for draw in charts.of_training([outcome for _, outcome in shown])
    ]
    sampled = _sampled(page, shown, numbers)
    if not any(curves) and not sampled:
        return ""
    about = "of each run the round with the median p_core"
    if len(shown) < len(named):
        about += f"; {len(shown)} of {len(named)} runs"
    if sampled is None:
        about += "; without the charts of hosts and devices, because there are too many cases"
    return f"<h3>Training <small>({about})</small></h3>{charts.html(curves)}{charts.html(sampled or ())}"


def _median_round(case: CaseResult) -> Outcome | None:
    finished = [outcome for outcome in case.outcomes if outcome.ok]
    measured = [outcome for outcome in finished if math.isfinite(outcome.value("p_core") or math.nan)]
    if not measured:
        return next(iter(finished), None)
    median = statistics.median_low(outcome.value("p_core") or math.nan for outcome in measured)
    return next(outcome for outcome in measured if outcome.value("p_core") == median)


def _sampled(page: ComparisonPage, shown: Iterable[tuple[str, Outcome]], numbers: float) -> list[Chart | None] | None:
    """Return the charts of hosts and devices with the lines of all runs; None if they have too few points."""
    monitored = {
        name: monitors.read(page.directories[name] / outcome.directory, MAX_SERIES_BYTES) for name, outcome in shown
    }
    lines = sum(_number_of_lines(samples) for samples in monitored.values())
    points = min(int(numbers / max(lines, 1)), _MAX_POINTS)
    if points < _MIN_POINTS:
        return None
    by_title: dict[str, list[tuple[str, Chart | None]]] = {}
    for name, samples in monitored.items():
        for chart in filter(
            None, (*sampled_charts.devices(samples, (), points), *sampled_charts.hosts(samples, (), points))
        ):
            by_title.setdefault(chart.title, []).append((name, chart))
    return [_combined(named) for named in by_title.values()]


def _number_of_lines(hosts: Mapping[str, Samples]) -> int:
    """Return the maximum number of lines in the five charts of devices and four charts of hosts."""
    devices = sum(len(samples.devices) for samples in hosts.values())
    return 5 * min(devices, charts.MAX_LINES) + 4 * min(len(hosts), charts.MAX_LINES)


def _combined(named: Sequence[tuple[str, Chart | None]]) -> Chart | None:
    """Combine the charts of several runs; the name of each line has its run."""
    drawn = [(name, chart) for name, chart in named if chart is not None]
    if not drawn:
        return None
    lines = tuple(
        replace(line, name=name if len(chart.lines) == 1 else f"{name} {line.name}")
        for name, chart in drawn
        for line in chart.lines
    )
    notes = "; ".join(dict.fromkeys(chart.note for _, chart in drawn if chart.note))
    return replace(drawn[0][1], lines=lines, note=notes)
