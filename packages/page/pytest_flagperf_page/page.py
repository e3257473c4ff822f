"""The HTML page of a run, made from the run directory: a verdict, a table of all cases, and a section for each case.

``body`` is the content that extends the report of pytest-html; ``standalone`` returns a complete page.
Cases are read one after the other, and long logs and series only in part, so memory does not grow with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from flagperf_driver.layout import rank_log
from flagperf_driver.node.logs.samples import Samples
from pytest_flagperf.kind import kind_of
from pytest_flagperf.report import charts
from pytest_flagperf.report.case_cell import anchor
from pytest_flagperf.report.terminal.table import metric
from pytest_flagperf.results.comparing.stored_runs import NamedRounds, StoredRuns
from pytest_flagperf.results.figures.kinds import meaning
from pytest_flagperf.results.figures.statistics import Summary, few, finite, summarize
from pytest_flagperf.results.figures.units import SCALED, compared, count, quantity
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.measured import marks
from pytest_flagperf.results.measured.outcome import MetricValue, Outcome, counted
from pytest_flagperf.results.measured.starts import DrilledFault
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import Verdict
from pytest_flagperf.results.verdicts.case_result import BAD, KNOWN_PROBLEM, CaseResult, CaseSummary, summarize_case
from pytest_flagperf.stored import FormatError, layout
from pytest_flagperf.stored.layout import OUTCOME, PLAN, round_folder
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import RoundDir, case_folders, rounds_of

from . import (
    chart_html,
    drawings,
    limits,
    machine,
    pairs,
    points,
    profile,
    sampled_charts,
    step_times,
    sweeps,
    time_parts,
    trend_html,
)
from .comparisons import comparisons
from .failures import excerpts, failures, logs_shown
from .headline import headline, machine_and_run
from .html import (
    Name,
    Number,
    address,
    css_class,
    document,
    figures,
    folded,
    items,
    linked,
    page_of,
    script,
    state,
    style,
    table,
)
from .rows import RATES, Row, overview, row_of
from .trend import Trend

TARGET_BYTES = 2_500_000
"""The target size of the page; with many cases the charts have fewer points."""
_BYTES_PER_CASE, _BYTES_PER_ROUND, _BYTES_PER_NUMBER = 27_000, 6_500, 6
"""Sizes without the charts."""
_CHARTS, _CURVES = 9, 18
"""The number of sampled charts of a round, and of lines in all its charts."""
_MAX_READ_BYTES = 16_000_000
"""The maximum number of bytes of series that are read for all rounds together."""
_MAX_EARLIER_RUNS, _MAX_EARLIER_ROUNDS = 20, 1500
"""The maximum number of earlier runs in the trend of a case, and of their rounds that are read for all cases."""
_MAX_OPEN = 20
"""The maximum number of failed cases that are open at first."""
FIRST = (
    "p_whole", "p_train", "p_core", "mfu", "padding_share", "e2e_time", "time_to_target", "step_time_p50",
    "step_time_p90", "step_time_p99", "peak_memory", "energy_to_target", "carbon_to_target", "cost_to_target",
    "cost_per_million",
)  # fmt: skip
"""The figures after the metric of the suite; all others are folded."""
_MIN_LOG_BYTES = 8 * 1024


@dataclass(frozen=True)
class Detail:
    """The level of detail of the charts."""

    points: int = charts.MAX_POINTS
    """The maximum number of points of a line."""
    samples: int = 1200
    """The maximum number of points of all lines in a chart of hosts, devices or ranks."""
    bytes: int = sampled_charts.MAX_SERIES_BYTES
    """The bytes that are read of a file of samples, and of all rank logs of a round; of longer files, parts."""

    def per_line(self, lines: int) -> int:
        return max(min(self.points, self.samples // max(min(lines, chart_html.MAX_LINES), 1)), 24)


def standalone(run_dir: Path, page: Path, problems: list[str] | None = None) -> str:
    """Return a complete page; its links to logs are relative to ``page``. What could not be read is in ``problems``."""
    return document(f"flagperf {run_dir.resolve().name}", body(run_dir, page.resolve().parent, problems))


def extension(run_dir: Path, page: Path) -> str:
    """Return the body with style and script, for the report of pytest-html."""
    return style() + body(run_dir, page.resolve().parent) + script()


def body(run_dir: Path, page_dir: Path, problems: list[str] | None = None) -> str:
    """Return the content of the page, which needs the style before it and the script after it."""
    problems = [] if problems is None else problems
    run_dir = run_dir.resolve()
    info = store.load_info(run_dir, problems) if (run_dir / layout.RESULTS).is_file() else None
    detail = _detail(run_dir)
    earlier = _Earlier(run_dir)
    opened, is_only = 0, len(case_folders(run_dir)) == 1
    sections: list[tuple[Row, str]] = []
    measurements: list[Outcome] = []
    for case in store.iterate_cases(run_dir, problems):
        summary = summarize_case(case, interrupted=info is not None and info.is_interrupted)
        case_dir = run_dir / case.outcomes[0].directory.parent
        row = row_of(case, summary, earlier.runs(case, problems), run_dir.name)
        measurements += [outcome for outcome in case.outcomes if outcome.points]
        opened += summary.state in BAD
        opened_here = is_only or (summary.state in BAD and opened <= _MAX_OPEN)
        sections.append((row, section(case, summary, row.trends, case_dir, page_dir, detail, opened_here)))
    sections.sort(key=lambda pair: pair[0].order)
    rows = [row for row, _ in sections]
    of_rows = limits.of_rows(rows, measurements)
    parts = [
        headline(rows, info),
        machine_and_run(rows, info, run_dir, page_dir),
        "".join(f'<p class="warning">{escape(problem)}</p>' for problem in problems),
        overview(rows, of_rows),
        sweeps.html(row.swept for row in rows),
        comparisons(rows),
        limits.html(rows, of_rows),
        '<h2 id="cases">Cases <button class="plain" data-all="open">open all</button> '
        '<button class="plain" data-all="close">close all</button> <small>Paper has those that you open.</small></h2>',
        *(text for _, text in sections),
    ]
    text = f'<main class="flagperf">{"".join(parts)}</main>'
    # Logs may contain characters that cannot be encoded.
    return text.encode("utf-8", "replace").decode("utf-8")


class _Earlier:
    """The comparable runs beside this one; with many cases fewer of them are read."""

    def __init__(self, run_dir: Path) -> None:
        rounds = sum(len(rounds_of(folder)) for folder in case_folders(run_dir))
        self._most = min(_MAX_EARLIER_RUNS, _MAX_EARLIER_ROUNDS // max(rounds, 1))
        self._run_dir = run_dir

    def runs(self, case: CaseResult, problems: list[str]) -> list[NamedRounds]:
        """Return the earlier runs, the oldest first."""
        first = case.outcomes[0]
        if self._most < 1 or first.started_ms is None:
            return []
        try:
            return self._runs(first, first.started_ms)
        except Exception as error:  # unforeseen content of other runs must not affect the page
            problems.append(f"{case.case}: cannot read earlier runs: {type(error).__name__}: {error}")
            return []

    def _runs(self, first: Outcome, started_ms: int) -> list[NamedRounds]:
        # A new object for each case, so that the rounds of other cases are not kept in memory.
        stored_runs = StoredRuns(self._run_dir.parent, self._run_dir.name, newest=2 * _MAX_EARLIER_RUNS)
        return [
            (name, rounds)
            for name, rounds in stored_runs.named(first, self._most)
            if finite(outcome.value(first.main) for outcome in rounds) and (rounds[0].started_ms or 0) < started_ms
        ]


def _detail(run_dir: Path) -> Detail:
    """Return the detail of the charts for the number of rounds."""
    folders = case_folders(run_dir)
    cases, rounds = len(folders), sum(len(rounds_of(folder)) for folder in folders)
    if not rounds:
        return Detail()
    full = Detail()
    numbers = max(TARGET_BYTES - _BYTES_PER_CASE * cases - _BYTES_PER_ROUND * rounds, 0) // rounds // _BYTES_PER_NUMBER
    return Detail(
        points=min(max(numbers // _CURVES, 30), full.points),
        samples=min(max(numbers // _CHARTS, 80), full.samples),
        bytes=min(_MAX_READ_BYTES // rounds, full.bytes),
    )


# -- the section of a case ------------------------------------------------------------------------------------


def section(
    case: CaseResult,
    summary: CaseSummary,
    history: Sequence[Trend],
    case_dir: Path,
    page_dir: Path,
    detail: Detail,
    opened: bool,
) -> str:
    """Return the section of a case, which opens on a click or by a link to its anchor."""
    about = escape(f"{case.case} {case.outcomes[0].vendor} {summary.state}")
    try:
        head = _summary(case, summary)
        body = "".join(_body(case, summary, history, case_dir, page_dir, detail))
    except Exception as error:  # unforeseen content of files must not affect other cases
        reason = f"{case_dir}: cannot show the details: {type(error).__name__}: {error}"
        return f'<p class="bad" id="{anchor(case.case)}">{escape(reason)}</p>'
    state_class, is_open = css_class(summary.state), " open" if opened else ""
    return (
        f'<details class="case" id="{anchor(case.case)}" data-state="{state_class}" data-about="{about}"{is_open}>'
        f"<summary>{head}</summary><div>{body}</div></details>"
    )


def _summary(case: CaseResult, summary: CaseSummary) -> str:
    rates = [(title, value) for name, title in RATES.items() if (value := case.median(name)) is not None]
    parts = [
        *summary.marks,
        f"with {summary.vendor_code}" if summary.vendor_code else "",
        metric(case.outcomes),
        *(f"{title} {quantity(value, case.outcomes[0].rate_unit)}" for title, value in rates),
        case.speedup_text and f"speed-up {case.speedup_text}",
    ]
    figures = "".join(f"<span>{escape(part)}</span>" for part in parts if part)
    return f"{state(summary.state)}<strong>{escape(case.case)}</strong>{figures}"


def _body(
    case: CaseResult, summary: CaseSummary, found: Sequence[Trend], case_dir: Path, page_dir: Path, detail: Detail
) -> Iterator[str]:
    rounds = case.outcomes
    plan, problem = _read_plan(case_dir / round_folder(rounds[0].round))
    yield _about(rounds)
    yield f"<p>Run this case again: {machine.command(machine.of_case(rounds[0], plan))}</p>{problem}"
    yield from _verdicts(case, _warnings(summary, rounds))
    per_line = detail.per_line(len(rounds) * 2)
    drawn = list(kind_of(rounds[0]).charts(rounds, per_line))
    yield f"<h3>{rounds[0].kind.capitalize()}</h3>{chart_html.html(drawn)}" if any(drawn) else ""
    yield drawings.html(rounds)
    run_dir = case_dir.parent

    def address(name: str) -> str:
        return page_of(run_dir.parent / name, page_dir) if name != run_dir.name else ""

    history = trend_html.html(found, address)
    yield f"<h3>History</h3>{history}" if history else ""
    yield time_parts.html({f"round {outcome.round}": outcome for outcome in rounds})
    yield _drill(rounds)
    yield _memory(rounds, plan.memory) if plan else ""
    yield _differences(plan) if plan else ""
    yield _figures(rounds)
    yield "".join(map(points.html, rounds))
    yield pairs.html(rounds)
    yield profile.html(rounds)
    shown = logs_shown(rounds)
    for outcome in rounds:
        listed = frozenset(rank_log(rank) for number, rank in shown if number == outcome.round and rank is not None)
        round_dir = case_dir / round_folder(outcome.round)
        yield _round(round_dir, outcome, page_dir, detail, listed, only=len(rounds) == 1)
    yield _config(plan) if plan else ""
    yield _facts("Environment", [(outcome.round, outcome.environment) for outcome in rounds])
    yield _facts("Machine", [(outcome.round, _flat(outcome.machine)) for outcome in rounds])
    fingerprints = [(outcome.round, _flat(outcome.fingerprint)) for outcome in rounds]
    yield _facts("Fingerprint: settings that must be the same to compare figures", fingerprints)


def _about(rounds: Sequence[Outcome]) -> str:
    first = rounds[0]
    notes = [
        machine.named(first.vendor, first.hardware),
        f"{count(first.nnodes, 'host')} x {count(first.nproc, 'card')}",
        *marks.of_rounds(rounds),
        first.scale and f"{first.scale} scale",
        first.environment.get("precision", ""),
        "synthetic data" if first.synthetic else "",
        "throughput only" if first.throughput_only else "",
        "parity: judged by the reference's loss curve, not by the target" if first.parity_samples is not None else "",
        f"{sum(outcome.ok for outcome in rounds)} of {count(len(rounds), 'round')} finished",
        _validity(rounds),
    ]
    return f'<p class="soft">{escape(", ".join(note for note in notes if note))}</p>'


def _validity(rounds: Sequence[Outcome]) -> str:
    """Return how many of the finished rounds are valid; a round with a validity warning is invalid."""
    finished = [outcome for outcome in rounds if outcome.ok]
    invalid = [str(outcome.round) for outcome in finished if outcome.validity_warnings]
    if not invalid:
        return "all valid" if len(finished) > 1 else "valid" if finished else ""
    return f"invalid: round{'s' if len(invalid) > 1 else ''} {', '.join(invalid)} (see the warnings)"


def _warnings(summary: CaseSummary, rounds: Sequence[Outcome]) -> str:
    """Return the marks but that of a warning, known problems, warnings, and the number of skipped log lines."""
    lines = [
        f"round {outcome.round}: {count(outcome.broken_lines, 'broken log line')} skipped"
        for outcome in rounds
        if outcome.broken_lines
    ]
    stated = [f"{phrase}: {sentence}" for phrase, sentence in summary.marks.items() if phrase != marks.NOT_VALID]
    stated += [f"{KNOWN_PROBLEM}: {text}" for text in summary.known_problems]
    return "".join(f'<p class="warning">{escape(sentence)}</p>' for sentence in (*stated, *summary.warnings, *lines))


def _verdicts(case: CaseResult, warnings: str) -> Iterator[str]:
    """Yield the failures as a list, the warnings, and the passed verdicts as a table."""
    verdicts = list(dict.fromkeys(case.all_verdicts))
    yield failures(case.outcomes, verdicts)
    yield warnings
    if not verdicts:
        yield '<p class="warning">no verdicts</p>'
    passed = [verdict for verdict in verdicts if verdict.ok]
    yield folded(f"{count(len(passed), 'passed verdict')}", _passed_verdicts(passed))


def _drill(rounds: Sequence[Outcome]) -> str:
    """Return a table of the faults of --drill and what followed; empty without."""
    rows = [
        (
            Name(f"round {outcome.round}"),
            fault.what,
            Number(f"{fault.step:,}"),
            *(Number("" if after is None else quantity(after, "s")) for after in fault.times.values()),
            Number(f"{fault.steps_repeated:,}"),
        )
        for outcome in rounds
        for fault in outcome.struck
    ]
    head = ("", "fault", "at step", *DrilledFault.TIMES, "steps done again")
    return f"<h3>Drill</h3>{table(head, rows)}" if rows else ""


def _passed_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Return a table with one row for the verdicts of all rounds with the same name and expected value."""
    groups: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.name, verdict.expected), []).append(verdict.got)
    rows = [
        (Name(name), Number(f"{len(got)} x"), ", ".join(dict.fromkeys(got)), expected)
        for (name, expected), got in groups.items()
    ]
    return table(("verdict", "passed", "got", "expected"), rows) if rows else ""


# -- figures -------------------------------------------------------------------------------------------------


def _figures(rounds: Sequence[Outcome]) -> str:
    """Return the main figures, and folded the other figures and the methods of measurement."""
    first, rest = _names(rounds)
    if not first and not rest:
        return ""
    text = few(len(counted(rounds))) if len(rounds) > 1 else None
    note = f'<p class="soft">{escape(text)}</p>' if text else ""
    more = _figures_table(rest, rounds) if rest else ""
    methods = table(("figures", "better", "method"), _methods([*first, *rest], rounds))
    return (
        f"<h3>Figures</h3>{note}{_figures_table(first, rounds)}{folded(count(len(rest), 'more figure'), more)}"
        f"{folded('Methods of measurement', methods)}"
    )


def _names(rounds: Sequence[Outcome]) -> tuple[list[str], list[str]]:
    """Return the names of the main figures and of the others."""
    names = dict.fromkeys(metric.name for outcome in rounds for metric in outcome.metrics)
    first = dict.fromkeys(name for name in (rounds[0].target.name, *rounds[0].judged, *FIRST) if name in names)
    return list(first), [name for name in names if name not in first]


def _figures_table(names: Sequence[str], rounds: Sequence[Outcome]) -> str:
    """Return a table of median, mean and variation over the rounds that count, and the value of each round."""
    metric, of_suite = rounds[0].target.name, {figure.name: figure.about for figure in rounds[0].figures}
    meanings = [meaning(name, metric, of_suite) for name in names]
    if len(rounds) == 1:
        return figures(("figure", "value"), [(name, _value(rounds[0], name)) for name in names], meanings)
    head = ("figure", *_STATISTICS, *(f"round {outcome.round}" for outcome in rounds))
    return figures(head, [_figures_row(name, rounds) for name in names], meanings)


_STATISTICS = ("median", "mean", "95 % confidence interval of the mean", "coefficient of variation")


def _record(name: str, rounds: Sequence[Outcome]) -> MetricValue:
    return next(metric for outcome in rounds if (metric := outcome.metric(name)) is not None)


def _methods(names: Sequence[str], rounds: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return a row for the figures that were measured in the same way."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        record = _record(name, rounds)
        samples = f" ({count(record.samples, 'measurement')})" if record.samples is not None else ""
        groups.setdefault((record.direction or "", f"{record.how}{samples}"), []).append(name)
    return [(", ".join(group), direction, method) for (direction, method), group in groups.items()]


def _figures_row(name: str, rounds: Sequence[Outcome]) -> tuple[str, ...]:
    counting = counted(rounds)
    summary = summarize(outcome.value(name) for outcome in counting)
    outliers = {counting[index].round for index in summary.outliers}
    values = (_value(outcome, name, outlier=outcome.round in outliers) for outcome in rounds)
    unit = _record(name, rounds).unit
    cells = (*_statistics(summary, unit), *values)
    if unit != rounds[0].rate_unit or unit in SCALED:
        return (name, *cells)
    # The unit of a throughput is long, so only the first cell has it.
    return (f"{name} [{unit}]", *(cell.replace(f" {unit}", "") for cell in cells))


def _statistics(summary: Summary, unit: str) -> tuple[str, ...]:
    if summary.median is None:
        return "", "", "", ""
    interval = "" if summary.interval is None else " to ".join(compared(*summary.interval, unit))
    variation = "" if summary.variation is None else quantity(summary.variation, "share")
    return quantity(summary.median, unit), quantity(summary.mean, unit), interval, variation


def _value(outcome: Outcome, name: str, *, outlier: bool = False) -> str:
    metric = outcome.metric(name)
    if metric is None:
        return ""
    return quantity(metric.value, metric.unit) + (" (outlier)" if outlier else "")


def _memory(rounds: Sequence[Outcome], parts: Mapping[str, float]) -> str:
    """Return the parts of a rank's memory as estimated before the run, beside the measured peak; empty without them."""
    peaks = [peak for outcome in rounds if (peak := outcome.value("peak_memory")) is not None]
    if not parts or not sum(parts.values()):
        return ""
    whole = sum(parts.values())
    measured = f", measured peak {quantity(max(peaks), 'bytes')}" if peaks else ""
    bar = chart_html.stacked(f"estimate{measured}", parts, "bytes", max([whole, *peaks]), list(parts))
    return f"<h3>Memory of a rank</h3>{bar}"


# -- rounds --------------------------------------------------------------------------------------------------


def _round(
    round_dir: Path, outcome: Outcome, page_dir: Path, detail: Detail, listed: frozenset[str], *, only: bool
) -> str:
    """Return the charts and logs of a round; ``listed``: the logs whose last lines are among the failures."""
    monitored = monitors.read(round_dir, detail.bytes)
    devices = sum(len(samples.devices) for samples in monitored.values())
    per_device, per_host = detail.per_line(devices), detail.per_line(len(monitored) * 2)
    drawn = [
        *sampled_charts.devices(monitored, outcome.phases, per_device),
        *sampled_charts.hosts(monitored, outcome.phases, per_host),
    ]
    ranks = step_times.read(round_dir, outcome, max(detail.bytes // max(len(outcome.logs), 1), _MIN_LOG_BYTES))
    parts = [
        _course(outcome),
        chart_html.html(drawn),
        chart_html.html([chart_html.rank_steps(ranks, detail.per_line(len(ranks)))]),
        chart_html.rank_bars(ranks),
        _notes(monitored),
        "" if outcome.ok else excerpts(round_dir, outcome, listed),
        _files(outcome, round_dir, page_dir),
    ]
    return folded(f"Round {outcome.round}: devices, hosts, ranks and logs", "".join(parts), open_=only)


def _course(outcome: Outcome) -> str:
    parts = [
        f"seed {outcome.seed}",
        "finished" if outcome.ok else f"not finished ({outcome.state})",
        ("; ".join(one.sentence for one in outcome.validity_warnings) or "valid") if outcome.ok else "",
        f"stopped by: {outcome.stop_reason}" if outcome.stop_reason else "",
    ]
    if outcome.started_ms is not None and outcome.ended_ms is not None:
        parts.append(f"took {quantity((outcome.ended_ms - outcome.started_ms) / 1000, 's')}")
    return f'<p class="soft">{escape(", ".join(part for part in parts if part))}</p>'


def _notes(monitored: Mapping[str, Samples]) -> str:
    """Return the notes of the samplers, and the devices whose clocks were throttled."""
    notes = [f"{folder}: {note}" for folder, samples in monitored.items() for note in monitors.notes(samples)]
    throttled = [line for folder, samples in monitored.items() for line in _throttled(folder, samples)]
    return items([*notes, *throttled], "soft")


def _throttled(folder: str, samples: Samples) -> Iterator[str]:
    """Yield a line for each reason of throttling, with its devices."""
    by_reason: dict[str, dict[int, float]] = {}
    for index, reasons in sorted(samples.throttle.items()):
        for reason, share in reasons.items():
            by_reason.setdefault(reason, {})[index] = share
    for reason, shares in by_reason.items():
        if reason != "idle":  # a device without work
            devices = f"device{'s' if len(shares) > 1 else ''} {', '.join(map(str, shares))}"
            extremes = min(shares.values()), max(shares.values())
            times = " to ".join(dict.fromkeys(quantity(share, "share") for share in extremes))
            yield f"{folder}, {devices}: clocks throttled by {reason} for {times} of the time"


def _files(outcome: Outcome, round_dir: Path, page_dir: Path) -> str:
    """Return links to the logs, by host, and to the raw files of a round."""
    folders: dict[str, list[str]] = {}
    for name in [*outcome.logs, *(name for name in (PLAN, OUTCOME) if (round_dir / name).is_file())]:
        folder, _, file = name.rpartition("/")
        folders.setdefault(folder, []).append(linked(file, address(round_dir / name, page_dir)))
    listed = [f"{escape(folder)}{folder and ': '}{', '.join(links)}" for folder, links in folders.items()]
    return f"<p>Files: {'; '.join(listed)}</p>" if listed else ""


# -- configuration -------------------------------------------------------------------------------------------


def _read_plan(round_dir: Path) -> tuple[StoredPlan | None, str]:
    """Return the plan of a round, or what is wrong with its file."""
    try:
        return RoundDir(round_dir).read_plan(), ""
    except FormatError as error:
        return None, f'<p class="bad">{escape(str(error))}</p>'


def _differences(plan: StoredPlan) -> str:
    """Return the values of the config that differ from the suite's, each with its source."""
    rows = [
        (item.key, repr(item.value), repr(item.reference), f"{item.file}:{item.line}" if item.line else item.file)
        for item in plan.deviations
    ]
    verb = "differs" if len(rows) == 1 else "differ"
    title = f"Config: {count(len(rows), 'value')} {verb} from the suite's"
    return f"<h3>{title}</h3>{table(('key', 'value', 'suite', 'source'), rows)}" if rows else ""


def _config(plan: StoredPlan) -> str:
    """Return the other values of the resolved config by their files, and what the vendor adds."""
    shown = {item.key for item in plan.deviations}
    files: dict[str, list[tuple[str, ...]]] = {}
    for key, value in sorted(plan.values.items()):
        if key not in shown:
            files.setdefault(value.file, []).append((key, repr(value.value), str(value.line or "")))
    tables = [f"<h4>{escape(file)}</h4>{table(('key', 'value', 'line'), rows)}" for file, rows in files.items()]
    title = f"Config: {count(sum(map(len, files.values())), 'value')} as in the suite"
    return folded(title, "".join(tables)) + _additions(plan)


def _additions(plan: StoredPlan) -> str:
    """What the vendor has in place of the suite's own, beside its config."""
    rows = [(item.name, item.value, item.reference, item.where) for item in plan.additions]
    title = f"Vendor additions: {len(rows)} beside the config"
    return folded(title, table(("what", "here", "without it", "from"), rows)) if rows else ""


def _facts(title: str, rounds: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """Return a table of facts; facts that differ between rounds are listed for each round."""
    names = dict.fromkeys(name for _, facts in rounds for name in facts)
    rows = []
    for name in names:
        texts = [str(facts.get(name, "unknown")) for _, facts in rounds]
        if len(set(texts)) > 1:
            texts = [f"round {number}: {text}" for (number, _), text in zip(rounds, texts, strict=True)]
        rows.append((name, "; ".join(dict.fromkeys(texts))))
    return folded(title, table((), rows)) if rows else ""


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested facts to names and texts."""
    texts: dict[str, str] = {}
    for name, value in facts.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            texts.update(_flat(value, f"{key}, "))
        elif isinstance(value, list | tuple):
            texts[key] = ", ".join(map(str, value))
        elif value is not None:
            texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts
