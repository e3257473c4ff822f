"""One case's section of the page: verdicts, figures, charts, and for each round what hosts and devices did."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pytest_flagperf.report.page import charts, sampled_charts
from pytest_flagperf.report.page.html import Name, Number, anchor, css_class, figures, folded, items, state, table
from pytest_flagperf.report.terminal.summary import EXPECTED, FAILED, CaseSummary
from pytest_flagperf.report.terminal.table import metric
from pytest_flagperf.results.comparing.statistics import Summary, few, summarize
from pytest_flagperf.results.logs import monitors, step_times
from pytest_flagperf.results.logs.samples import Samples
from pytest_flagperf.results.measured.outcome import Failure, MetricValue, Outcome
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.units import compared, count, quantity
from pytest_flagperf.results.verdicts import Verdict
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import round_folder
from pytest_flagperf.stored.plan import StoredDeviation, StoredPlan, StoredValue
from pytest_flagperf.stored.round import RoundDir

FIRST = (
    "p_core", "p_train", "p_whole", "mfu", "e2e_time", "time_to_target", "step_time_p50", "step_time_p90",
    "step_time_p99", "peak_memory",
)  # fmt: skip
"""Figures that stand before the others, after the suite's own."""
SERIES_AT_MOST = 192 * 1024
_LEAST_OF_A_LOG = 8 * 1024
_AT_REST = "idle"
"""The one reason for low clocks that says nothing: they are high when there is work."""


@dataclass(frozen=True)
class Detail:
    """How much there is room and time for."""

    points: int = charts.MAX_POINTS
    """Of a line."""
    samples: int = 1200
    """Of all lines of a chart of hosts, devices or ranks."""
    bytes: int = SERIES_AT_MOST
    """Read of one file of samples, and of all ranks' logs of a round: of longer ones parts that show their course."""

    def per_line(self, lines: int) -> int:
        return max(min(self.points, self.samples // max(min(lines, charts.LINES_AT_MOST), 1)), 24)


def section(case: CaseResult, summary: CaseSummary, case_dir: Path, page_dir: Path, detail: Detail) -> str:
    """Opened by a click, or by a link to its anchor."""
    about = escape(f"{case.case} {case.outcomes[0].vendor} {summary.state}")
    body = "".join(_body(case, summary, case_dir, page_dir, detail))
    return (
        f'<details class="case" id="{anchor(case.case)}" data-state="{css_class(summary.state)}" '
        f'data-about="{about}"><summary>{_summary(case, summary)}</summary><div>{body}</div></details>'
    )


def _summary(case: CaseResult, summary: CaseSummary) -> str:
    p_core = case.median("p_core")
    said = [
        f"with {summary.vendor_code}" if summary.vendor_code else "",
        metric(case.outcomes),
        "" if p_core is None else f"p_core {quantity(p_core, case.outcomes[0].rate_unit)}",
        case.speedup_text and f"speed-up {case.speedup_text}",
    ]
    figures = "".join(f"<span>{escape(each)}</span>" for each in said if each)
    return f"{state(summary.state)}<strong>{escape(case.case)}</strong>{figures}"


def _body(case: CaseResult, summary: CaseSummary, case_dir: Path, page_dir: Path, detail: Detail) -> Iterator[str]:
    rounds = case.outcomes
    yield _about(rounds)
    yield from _broken(case)
    yield _warned(summary, rounds)
    yield _verdicts(case)
    per_line = detail.per_line(len(rounds) * 2)
    drawn = [draw(rounds, per_line) for draw in (charts.loss, charts.metric, charts.throughput)]
    yield f"<h3>Training</h3>{charts.html(drawn)}" if any(drawn) else ""
    yield _figures(rounds)
    for outcome in rounds:
        yield _round(case_dir / round_folder(outcome.round), outcome, page_dir, detail, only=len(rounds) == 1)
    yield _config(case_dir / round_folder(rounds[0].round))
    yield _over_rounds("Environment", [(one.round, one.environment) for one in rounds])
    yield _over_rounds("Machine", [(one.round, _flat(one.machine)) for one in rounds])
    yield _over_rounds(
        "Fingerprint: what makes figures comparable", [(one.round, _flat(one.fingerprint)) for one in rounds]
    )


def _about(rounds: Sequence[Outcome]) -> str:
    one = rounds[0]
    notes = [
        f"{one.vendor} {one.hardware}",
        f"{count(one.nnodes, 'host')} x {count(one.nproc, 'card')}",
        one.scale and f"{one.scale} scale",
        one.environment.get("precision", ""),
        "synthetic data" if one.synthetic else "",
        "throughput only" if one.throughput_only else "",
        "parity: judged by the reference's loss curve, not by the target" if one.parity_samples is not None else "",
        f"{sum(each.ok for each in rounds)} of {count(len(rounds), 'round')} ended well",
    ]
    return f'<p class="soft">{escape(", ".join(note for note in notes if note))}</p>'


def _broken(case: CaseResult) -> Iterator[str]:
    """Why rounds are not whole, with the last lines of the rank that broke first."""
    failures = [failure for outcome in case.outcomes for failure in outcome.failures]
    for failure in failures:
        yield _failure(failure)


def _failure(failure: Failure) -> str:
    lines = "\n".join(failure.last_lines)
    shown = f'<pre class="tail"><code>{escape(lines)}</code></pre>' if lines else ""
    return f'<p class="bad">{escape(failure.sentence)}</p>{shown}'


def _warned(summary: CaseSummary, rounds: Sequence[Outcome]) -> str:
    """Validity warnings, and other facts that a reader of the figures needs."""
    lines = [
        f"round {one.round}: {count(one.broken_lines, 'broken log line')} passed over"
        for one in rounds
        if one.broken_lines
    ]
    return "".join(f'<p class="warning">{escape(sentence)}</p>' for sentence in (*summary.warnings, *lines))


def _verdicts(case: CaseResult) -> str:
    """Each once, those that are not ok first: several tests judge the same round."""
    found = dict.fromkeys(verdict for verdicts in case.verdicts.values() for verdict in verdicts)
    if not found:
        return '<p class="warning">nothing was judged</p>'
    well = [verdict for verdict in found if verdict.ok]
    rows = "".join(_bad(verdict) for verdict in found if not verdict.ok)
    shown = f'<ul class="verdicts">{rows}</ul>' if rows else ""
    return shown + folded(f"{count(len(well), 'verdict')} ok", _well(well))


def _bad(verdict: Verdict) -> str:
    kind = EXPECTED if verdict.expected_failure is not None else FAILED
    why = f"; expected failure: {verdict.expected_failure}" if verdict.expected_failure is not None else ""
    measured = escape(f"{verdict.name}: got {verdict.got}, expected {verdict.expected}{why}")
    return f"<li>{state(kind)} {escape(verdict.sentence)} <small>{measured}</small></li>"


def _well(found: Sequence[Verdict]) -> str:
    """Those of one name and one measure in one row: rounds differ in what they got."""
    alike: dict[tuple[str, str], list[str]] = {}
    for verdict in found:
        alike.setdefault((verdict.name, verdict.expected), []).append(verdict.got)
    rows = [
        (Name(name), Number(f"{len(got)} x"), ", ".join(dict.fromkeys(got)), expected)
        for (name, expected), got in alike.items()
    ]
    return table(("verdict", "ok", "got", "expected"), rows) if rows else ""


# -- figures -------------------------------------------------------------------------------------------------


def _figures(rounds: Sequence[Outcome]) -> str:
    """The main ones at once, the others and how all were measured by a click."""
    names = _names(rounds)
    if not names:
        return ""
    first = [name for name in names if name in (rounds[0].target.name, *FIRST)]
    rest = [name for name in names if name not in first]
    warned = few(sum(one.ok for one in rounds)) if len(rounds) > 1 else None
    told = f'<p class="soft">{escape(warned)}</p>' if warned else ""
    more = f"{_compared(rest, rounds)}" if rest else ""
    measured = table(("figures", "better", "how they were measured"), _how(names, rounds))
    return (
        f"<h3>Figures</h3>{told}{_compared(first, rounds)}{folded(count(len(rest), 'more figure'), more)}"
        f"{folded('How the figures were measured', measured)}"
    )


def _names(rounds: Sequence[Outcome]) -> list[str]:
    there = dict.fromkeys(metric.name for outcome in rounds for metric in outcome.metrics)
    first = [name for name in (rounds[0].target.name, *FIRST) if name in there]
    return list(dict.fromkeys([*first, *there]))


def _compared(names: Sequence[str], rounds: Sequence[Outcome]) -> str:
    """Over the rounds that ended well the middle and the spread; then each round's own."""
    if len(rounds) == 1:
        return figures(("figure", "value"), [(name, _value(rounds[0], name)) for name in names])
    head = ("figure", "median", "mean", "95 % interval", "varies by", *(f"round {one.round}" for one in rounds))
    return figures(head, [_over(name, rounds) for name in names])


def _record(name: str, rounds: Sequence[Outcome]) -> MetricValue:
    return next(found for outcome in rounds if (found := outcome.metric(name)) is not None)


def _how(names: Sequence[str], rounds: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Figures that were measured the same way share a row."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name in names:
        found = _record(name, rounds)
        made_of = f" ({count(found.samples, 'measurement')})" if found.samples is not None else ""
        alike.setdefault((found.direction or "", f"{found.how}{made_of}"), []).append(name)
    return [(", ".join(mine), direction, how) for (direction, how), mine in alike.items()]


def _over(name: str, rounds: Sequence[Outcome]) -> tuple[str, ...]:
    well = [outcome for outcome in rounds if outcome.ok]
    summary = summarize(outcome.value(name) for outcome in well)
    apart = {well[place].round for place in summary.outliers}
    each = (_value(outcome, name, apart=outcome.round in apart) for outcome in rounds)
    unit = _record(name, rounds).unit
    cells = (*_middle(summary, unit), *each)
    if unit != rounds[0].rate_unit:
        return (name, *cells)
    # A rate's unit is long: it is said once.
    return (f"{name} [{unit}]", *(cell.replace(f" {unit}", "") for cell in cells))


def _middle(summary: Summary, unit: str) -> tuple[str, ...]:
    if summary.median is None:
        return "", "", "", ""
    interval = ""
    if summary.interval is not None:
        low, high = compared(*summary.interval, unit)
        interval = f"{low} to {high}"
    varies = "" if summary.variation is None else quantity(summary.variation, "share")
    return quantity(summary.median, unit), quantity(summary.mean, unit), interval, varies


def _value(outcome: Outcome, name: str, *, apart: bool = False) -> str:
    found = outcome.metric(name)
    if found is None:
        return ""
    return quantity(found.value, found.unit) + (" (outlier)" if apart else "")


# -- rounds --------------------------------------------------------------------------------------------------


def _round(round_dir: Path, outcome: Outcome, page_dir: Path, detail: Detail, *, only: bool) -> str:
    found = monitors.read(round_dir, detail.bytes)
    devices = sum(len(samples.devices) for samples in found.values())
    per_device, per_host = detail.per_line(devices), detail.per_line(len(found) * 2)
    drawn = [
        *sampled_charts.devices(found, outcome.phases, per_device),
        *sampled_charts.hosts(found, outcome.phases, per_host),
    ]
    words = step_times.read(round_dir, outcome, max(detail.bytes // max(len(outcome.logs), 1), _LEAST_OF_A_LOG))
    ranks = [charts.rank_steps(words, detail.per_line(len(words))), charts.rank_spread(words)]
    parts = [
        _ended(outcome),
        charts.html(drawn),
        charts.html(ranks),
        _notes(found),
        _logs(outcome, round_dir, page_dir),
    ]
    return folded(f"Round {outcome.round}: devices, hosts, ranks and logs", "".join(parts), open_=only)


def _ended(outcome: Outcome) -> str:
    said = [
        f"seed {outcome.seed}",
        "ended well" if outcome.ok else f"did not end well ({outcome.state})",
        f"stopped by: {outcome.stop_reason}" if outcome.stop_reason else "",
    ]
    if outcome.started_ms is not None and outcome.ended_ms is not None:
        said.append(f"took {quantity((outcome.ended_ms - outcome.started_ms) / 1000, 's')}")
    return f'<p class="soft">{escape(", ".join(each for each in said if each))}</p>'


def _notes(found: Mapping[str, Samples]) -> str:
    """What must be known of what was sampled."""
    notes = [f"{folder}: {note}" for folder, samples in found.items() for note in samples.notes]
    held = [line for folder, samples in found.items() for line in _held_back(folder, samples)]
    return items([*notes, *held], "soft")


def _held_back(folder: str, samples: Samples) -> Iterator[str]:
    """A line a reason; a device at rest is held back by nothing."""
    alike: dict[str, dict[int, float]] = {}
    for index, reasons in sorted(samples.throttle.items()):
        for reason, share in reasons.items():
            alike.setdefault(reason, {})[index] = share
    for reason, shares in alike.items():
        if reason != _AT_REST:
            who = f"device{'s' if len(shares) > 1 else ''} {', '.join(map(str, shares))}"
            said = " to ".join(dict.fromkeys(quantity(each(shares.values()), "share") for each in (min, max)))
            yield f"{folder}, {who}: clocks held back by {reason} {said} of the time"


def _logs(outcome: Outcome, round_dir: Path, page_dir: Path) -> str:
    if not outcome.logs:
        return ""
    base = Path(os.path.relpath(round_dir, page_dir))
    links = [f'<a href="{escape(quote((base / log).as_posix()))}">{escape(log)}</a>' for log in outcome.logs]
    return f"<p>Logs: {', '.join(links)}</p>"


# -- what it ran with ----------------------------------------------------------------------------------------


def _config(round_dir: Path) -> str:
    """The resolved config and where each value is from; what differs from the reference is marked."""
    try:
        plan = RoundDir(round_dir).read_plan()
    except FormatError as error:
        return f'<p class="bad">{escape(str(error))}</p>'
    values, deviations = plan.values, {item.key: item for item in plan.deviations}
    keys = sorted(values, key=lambda name: (name not in deviations, name))
    if not keys:
        return ""
    rows = [_setting(key, values[key], deviations.get(key)) for key in keys]
    title = f"Config: {count(len(rows), 'value')}, {count(len(deviations), 'deviation')} from the reference"
    marked = [key in deviations for key in keys]
    return folded(title, table(("key", "value", "reference", "from", "layer"), rows, marked)) + _additions(plan)


def _additions(plan: StoredPlan) -> str:
    """What the vendor has in place of the suite's own, beside its config."""
    rows = [(one.name, one.value, one.reference, _place(one.file, one.line)) for one in plan.additions]
    title = f"Vendor additions: {len(rows)} beside the config"
    return folded(title, table(("what", "here", "without it", "from"), rows)) if rows else ""


def _setting(key: str, setting: StoredValue, deviation: StoredDeviation | None) -> tuple[str, ...]:
    reference = "" if deviation is None else repr(deviation.reference)
    return key, repr(setting.value), reference, _place(setting.file, setting.line), setting.layer


def _place(file: str, line: int) -> str:
    return f"{file}:{line}" if file and line else file


def _over_rounds(title: str, rounds: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """What is the same in all rounds is said once; what differs, for each."""
    names = dict.fromkeys(name for _, facts in rounds for name in facts)
    rows = []
    for name in names:
        said = [(number, str(facts.get(name, "not said"))) for number, facts in rounds]
        same = len({text for _, text in said}) == 1
        rows.append((Name(name), said[0][1] if same else "; ".join(f"round {number}: {text}" for number, text in said)))
    return folded(title, table((), rows)) if rows else ""


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Facts within facts as one list of names and texts."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{key}, "))
        elif isinstance(value, list | tuple):
            found[key] = ", ".join(map(str, value))
        elif value is not None:
            found[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
