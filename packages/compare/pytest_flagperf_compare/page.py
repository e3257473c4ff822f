"""The HTML page of a comparison: regressions, a table for each case, trends, and the trainings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path

from flagperf_driver.node.logs.samples import Samples
from pytest_flagperf.kind import kind_of
from pytest_flagperf.report import charts
from pytest_flagperf.report.case_cell import anchor
from pytest_flagperf.report.charts import Chart
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.kinds import meaning
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf_page import chart_html, sampled_charts, time_parts, trend_html
from pytest_flagperf_page.case_table import CaseLine, case_table, cell
from pytest_flagperf_page.html import (
    Markup,
    Name,
    Number,
    css_class,
    document,
    folded,
    items,
    linked,
    page_of,
    state,
    table,
)
from pytest_flagperf_page.small_charts import POINTS, small

from .case_table import BAD, GONE, UNDECIDED, CaseRow, limit
from .comparison import Compared, certainty

_MAX_POINTS, _MIN_POINTS = 200, 15
_CHART_BYTES = 2_000_000
"""The maximum size of all charts; with many cases their lines have fewer points, or samples are left out."""
_BYTES_PER_POINT = 13
_MAX_REASONS = 10
"""The maximum number of regressions in the headline; the overview has all of them."""
_MAX_INVALID = 3
"""The maximum number of invalid rounds of a case whose reasons are not folded."""
_MAX_OPEN = 3
"""The number of cases up to which all are open at first."""


@dataclass(frozen=True)
class ComparisonPage:
    """The content of the page; ``directories`` are those of the old and the new run by name."""

    directories: Mapping[str, Path]
    cases: tuple[Compared, ...]
    rows: tuple[CaseRow, ...]
    regressions: tuple[str, ...]
    gone: str
    """A sentence about the cases that the new run does not have and should; may be empty."""
    suspect: tuple[str, ...]
    """The cases that improved so much that one of the runs measured wrongly, and those that were not judged."""
    notes: tuple[str, ...]
    threshold: float
    title: str
    """How many cases regressed, or the smallest change that the comparison could have seen."""

    @property
    def exit_code(self) -> int:
        """1 if a case regressed or is missing, 2 if none did but one could not be judged, else 0."""
        if self.regressions or self.gone:
            return 1
        return 2 if any(row.verdict in UNDECIDED for row in self.rows) else 0

    @cached_property
    def by_name(self) -> Mapping[str, Compared]:
        return {case.row.name: case for case in self.cases}

    @cached_property
    def verdicts(self) -> Mapping[str, str]:
        """The verdict of each case by its name."""
        return {row.case: row.verdict for row in self.rows}


def standalone(page: ComparisonPage, to: Path) -> str:
    """Return a complete page; its links to the runs are relative to the file ``to``."""
    old, new = page.directories
    page_dir = to.resolve().parent
    cases = sorted(page.cases, key=lambda case: page.verdicts[case.row.name] not in BAD)
    parts = [
        _headline(page),
        _facts(page, page_dir),
        _overview(page),
        _lists(page),
        _scaling(page),
        '<h2 id="cases">Cases</h2>',
        *(_case(page, case, page_dir) for case in cases),
    ]
    return document(f"flagperf: {old} and {new}", f'<main class="flagperf">{"".join(parts)}</main>')


def _headline(page: ComparisonPage) -> str:
    """Return the verdict, and for each case that regressed its first reason."""
    text = page.title[:1].upper() + page.title[1:]
    kind = ("passed", "failed", "failed-as-expected")[page.exit_code]
    reasons = [_reason(page, row) for row in page.rows if row.verdict in BAD]
    lines = reasons[:_MAX_REASONS]
    if len(reasons) > _MAX_REASONS:
        lines.append(f"<li>and {count(len(reasons) - _MAX_REASONS, 'more case')}</li>")
    if page.gone:
        lines.append(f"<li>{escape(page.gone)}</li>")
    listed = f"<ul>{''.join(lines)}</ul>" if lines else ""
    return f'<div class="headline {kind}" id="summary"><p>{escape(text)}</p>{listed}</div>'


def _reason(page: ComparisonPage, row: CaseRow) -> str:
    """Return the reason with the figure that decides, else the first one, and how many more there are."""
    case = page.by_name[row.case]
    reasons = list(case.row.regressions(case.changes))
    first = next((reason for reason in reasons if reason.startswith(f"{row.metric} ")), reasons[0])
    more = f" <small>(and {count(len(reasons) - 1, 'more reason')})</small>" if len(reasons) > 1 else ""
    since = [text for trend in case.trends if trend.is_worse for text in trend.sentences()[:1]]
    advice = "".join(f'<span class="advice">{escape(text)}</span>' for text in since)
    return f"<li>{_linked(row, page)}: {escape(first)}{more}{advice}</li>"


def _lists(page: ComparisonPage) -> str:
    """Return the warnings and notes as sentences."""
    parts = {"Warnings": (page.suspect, ""), "Notes": (page.notes, "soft")}
    return "".join(f"<h2>{name}</h2>{items(texts, kind)}" for name, (texts, kind) in parts.items() if texts)


# -- the overview --------------------------------------------------------------------------------------------


_COLUMNS = {
    "verdict": "", "case": "",
    "metric (target)": "the quality of the trainings over their steps, or the first figure of the measurements",
    "throughput": "the throughput of all cards over the time of the trainings, from zero",
    "figure": "the figure that decides the verdict", "old": "", "new": "",
    "change": "",
    "trend": "the main figure over the runs like these, with a line where its level changes",
    "limit": "the smallest change for the worse that counts; ? if the noise is unknown",
}  # fmt: skip


def _overview(page: ComparisonPage) -> str:
    """Return the table of all cases, those that regressed first, with the curves of the old and the new run."""
    rows = sorted(page.rows, key=lambda row: row.verdict not in BAD)
    lines = [CaseLine(row.verdict, f"{row.case} {row.verdict}", _cells(page, row)) for row in rows]
    return case_table(lines, _COLUMNS, list(dict.fromkeys(row.verdict for row in rows)))


def _cells(page: ComparisonPage, row: CaseRow) -> dict[str, str]:
    case = page.by_name.get(row.case)
    curves = _small_curves(case) if case else {}
    change = case.change(row.metric) if case else None
    share = change.judgement.change if change else None
    cells = {
        "verdict": cell(_labelled(row.verdict), row.verdict, number=False),
        "case": cell(_linked(row, page), row.case, number=False),
        **{name: cell(curve, number=False) for name, curve in curves.items()},
        "figure": cell(escape(row.metric), number=False),
        "old": cell(escape(row.old), change.old if change else None),
        "new": cell(escape(row.new), change.new if change else None),
        "change": cell(escape(row.change), share),
        "trend": cell(
            "".join(small(trend_html.small_chart(one)) for one in (case.trends[:1] if case else ())), number=False
        ),
        "limit": cell(escape(row.limit)),
    }
    return {name: text for name, text in cells.items() if text}


def _small_curves(case: Compared) -> dict[str, str]:
    """Return the first curves of the old and the new run, laid over each other, by column."""
    rounds = [outcome for _, run in case.row.runs if (outcome := _median_round(run)) is not None]
    drawn = {
        "metric (target)": map(_first_curve, rounds),
        "throughput": (charts.throughput([outcome], POINTS) for outcome in rounds),
    }
    return {name: small(_combined([("", curve) for curve in curves]), apart=True) for name, curves in drawn.items()}


def _first_curve(outcome: Outcome) -> Chart | None:
    first = next(filter(None, [charts.metric([outcome], POINTS), *kind_of(outcome).charts([outcome], POINTS)]), None)
    return first and replace(first, lines=first.lines[:1])


def _linked(row: CaseRow, page: ComparisonPage) -> str:
    return linked(row.case, f"#{anchor(row.case)}" if row.case in page.by_name else "")


def _labelled(verdict: str) -> str:
    kind = "failed" if verdict in (*BAD, GONE) else "not-finished" if verdict in UNDECIDED else ""
    return state(kind or ("passed" if verdict == noise.BETTER else "none"), verdict)


def _facts(page: ComparisonPage, page_dir: Path) -> str:
    old, new = (_run(name, path, page_dir) for name, path in page.directories.items())
    rule = (
        f"a change counts if it is at least {quantity(page.threshold, 'share')}, "
        f"and larger than random variation reaches once in {1 / noise.CHANCE:.0f} runs"
    )
    keys = {place: f'<i class="key c{place}"></i>' for place in range(2)}
    facts = {
        f"{keys[0]}old": old,
        f"{keys[1]}new": new,
        "rule": rule,
    }
    texts = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items())
    return f'<dl class="facts">{texts}</dl>'


def _run(name: str, directory: Path, page_dir: Path) -> str:
    """Return the run's name, which leads to its page, and its directory."""
    return f"{linked(name, page_of(directory.resolve(), page_dir))} <small>{escape(str(directory))}</small>"


# -- all cases -----------------------------------------------------------------------------------------------


def _scaling(page: ComparisonPage) -> str:
    """Return a chart with a line for each run, for each model with three numbers of cards."""
    groups: dict[tuple[str, str], dict[str, list[tuple[int, float]]]] = {}
    for case in page.cases:
        first = case.row.old.outcomes[0]
        for name, result in case.row.runs:
            value = result.median("p_core")
            if value is not None:
                group = groups.setdefault((f"{first.model} {first.framework}: p_core", _rate(result)), {})
                group.setdefault(name, []).append((result.outcomes[0].cards, value))
    drawn = [
        charts.make_chart(title, "cards", unit, [charts.line_of(name, sorted(runs[name]), 99) for name in runs])
        for (title, unit), runs in groups.items()
        if any(len({cards for cards, _ in pairs}) > 2 for pairs in runs.values())
    ]
    html = chart_html.html(chart and replace(chart, floor=0.0, summary="last") for chart in drawn)
    return f"<h2>Scaling</h2>{html}" if html else ""


def _rate(case: CaseResult) -> str:
    return case.outcomes[0].rate_unit


# -- a case --------------------------------------------------------------------------------------------------


def _case(page: ComparisonPage, case: Compared, page_dir: Path) -> str:
    verdict = page.verdicts[case.row.name]
    p_core = case.change("p_core")
    share = f"<span>p_core {p_core.share}</span>" if p_core and p_core.share else ""
    body = "".join(_body(page, case, page_dir))
    opened = " open" if verdict in BAD or len(page.cases) <= _MAX_OPEN else ""
    about = escape(f"{case.row.name} {verdict}")
    return (
        f'<details class="case" id="{anchor(case.row.name)}" data-state="{css_class(verdict)}" data-about="{about}"'
        f"{opened}><summary>{_labelled(verdict)}<strong>{escape(case.row.name)}</strong>{share}</summary>"
        f"<div>{body}</div></details>"
    )


def _body(page: ComparisonPage, case: Compared, page_dir: Path) -> Iterator[str]:
    yield items(case.row.regressions(case.changes), "bad")
    yield "".join(f'<p class="warning">{escape(f"different: {text}")}</p>' for text in case.row.differences)
    ended_early = (*case.row.failed, *case.row.interrupted)
    yield "".join(f'<p class="warning">{escape(text)}</p>' for text in ended_early)
    invalid = "".join(f'<p class="warning">{escape(text)}</p>' for text in case.row.invalid)
    yield (
        folded(f"{len(case.row.invalid)} invalid rounds", invalid) if len(case.row.invalid) > _MAX_INVALID else invalid
    )
    yield items(case.row.notes, "soft")
    yield _figures(case) if case.changes else ""
    if text := certainty(case.changes, page.threshold):
        yield f'<p class="soft">{escape(text)}</p>'
    yield _history(page, case, page_dir)
    yield _drawn(page, case)


def _history(page: ComparisonPage, case: Compared, page_dir: Path) -> str:
    """Return the trends of the case, where their levels changed, and the runs; empty without a trend."""
    if not case.trends:
        return ""
    beside = next(iter(page.directories.values())).resolve().parent

    def address(name: str) -> str:
        return page_of(page.directories.get(name, beside / name).resolve(), page_dir)

    return f"<h3>History</h3>{trend_html.html(case.trends, address)}"


def _figures(case: Compared) -> str:
    head = ("figure", *(case.row.chips or case.row.names), "change", "limit", "verdict", "better")
    rows = [
        (
            _named(change.name, case),
            *map(Number, (*change.texts, change.share, limit(change))),
            Markup(f"<strong>{escape(change.word)}</strong>"),
            Name(change.direction or ""),
        )
        for change in case.changes
    ]
    return table(head, rows, [change.word == noise.WORSE for change in case.changes])


def _named(name: str, case: Compared) -> str:
    """Return the name of a figure with its meaning below."""
    text = meaning(name, case.row.old.outcomes[0].target.name)
    return Markup(f'{escape(name)}<span class="spread">{escape(text)}</span>' if text else escape(name))


# -- the trainings ------------------------------------------------------------------------------------------


def _drawn(page: ComparisonPage, case: Compared) -> str:
    """Return the charts of the median round of each run."""
    shown = [(name, outcome) for name, run in case.row.runs if (outcome := _median_round(run)) is not None]
    numbers = _CHART_BYTES / max(len(page.cases), 1) / _BYTES_PER_POINT / 2
    points = max(min(int(numbers / 3 / max(len(shown), 1)), _MAX_POINTS), _MIN_POINTS)
    curves = _by_title((name, chart) for name, outcome in shown for chart in kind_of(outcome).charts([outcome], points))
    sampled = _sampled(page, shown, numbers)
    if not any(curves) and not sampled:
        return ""
    about = f"of each run the round with the median {case.row.old.first.main}"
    if sampled is None:
        about += "; without the charts of hosts and devices, because there are too many cases"
    title = case.row.old.kind.capitalize()
    drawn = f"{chart_html.html(curves)}{chart_html.html(sampled or ())}{time_parts.html(dict(shown))}"
    return f"<h3>{title} <small>({about})</small></h3>{drawn}"


def _by_title(named: Iterable[tuple[str, Chart | None]]) -> list[Chart | None]:
    """Lay the charts of the same title over each other."""
    groups: dict[str, list[tuple[str, Chart | None]]] = {}
    for name, chart in named:
        if chart is not None:
            groups.setdefault(chart.title, []).append((name, chart))
    return [_combined(group) for group in groups.values()]


def _median_round(case: CaseResult) -> Outcome | None:
    finished = [outcome for outcome in case.outcomes if outcome.ok]
    main = case.first.main
    measured = [outcome for outcome in finished if math.isfinite(outcome.value(main) or math.nan)]
    if not measured:
        return next(iter(finished), None)
    median = statistics.median_low(outcome.value(main) or math.nan for outcome in measured)
    return next(outcome for outcome in measured if outcome.value(main) == median)


def _sampled(page: ComparisonPage, shown: Iterable[tuple[str, Outcome]], numbers: float) -> list[Chart | None] | None:
    """Return the charts of hosts and devices with the lines of all runs; None if they have too few points."""
    monitored = {
        name: monitors.read(page.directories[name] / outcome.directory, sampled_charts.MAX_SERIES_BYTES)
        for name, outcome in shown
    }
    lines = sum(_number_of_lines(samples) for samples in monitored.values())
    points = min(int(numbers / max(lines, 1)), _MAX_POINTS)
    if points < _MIN_POINTS:
        return None
    return _by_title(
        (name, chart)
        for name, samples in monitored.items()
        for chart in (*sampled_charts.devices(samples, (), points), *sampled_charts.hosts(samples, (), points))
    )


def _number_of_lines(hosts: Mapping[str, Samples]) -> int:
    """Return the maximum number of lines in the five charts of devices and four charts of hosts."""
    devices = sum(len(samples.devices) for samples in hosts.values())
    return 5 * min(devices, chart_html.MAX_LINES) + 4 * min(len(hosts), chart_html.MAX_LINES)


def _combined(named: Sequence[tuple[str, Chart | None]]) -> Chart | None:
    """Combine the charts of both runs; the name of each line has its run."""
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
