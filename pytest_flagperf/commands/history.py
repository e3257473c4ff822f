"""A case over stored runs: its trend, where the level changed; exit code 1 if the newest run is worse beyond noise.

Runs with unlike fingerprints stand in groups of their own, named by what differs; --across lets a field differ, as
suite_code and driver_code do from commit to commit. The newest run is judged by the like runs before it: against the
median of the last ones, by the noise that they show from run to run and from round to round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from pytest_flagperf.commands import stored
from pytest_flagperf.commands.stored import is_rate, short, wrapped
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.report.table import NOTHING, aligned
from pytest_flagperf.report.trends import Page, alone
from pytest_flagperf.results import history, jsons, store
from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.comparison import JUDGED, plain_name
from pytest_flagperf.results.comparing.noise import Judgement, Shift
from pytest_flagperf.results.history import Entry, Group, Trend
from pytest_flagperf.results.runs import find_runs
from pytest_flagperf.results.store import Run
from pytest_flagperf.results.units import compared, count, plain, quantity, signed
from pytest_flagperf.settings import read_settings

METRICS = tuple(reversed(JUDGED))
"""The first has the table."""
_ROWS, _POINTS = 20, 40
_BARS, _PLAIN_BARS, _GAP = "▁▂▃▄▅▆▇█", "_.-=+*%#", "x"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", metavar="CASE", help="with or without its number of rounds, which does not matter")
    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="*", help=f"{stored.RUNS} (default: the tree's folder of reports)"
    )
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help=f"judge this metric instead of {', '.join(METRICS)}; may be given again, the first has the table",
    )
    parser.add_argument(
        "--across", action="append", default=[], metavar="FIELD", help="this may differ in a group; may be given again"
    )
    parser.add_argument("--all", action="store_true", help=f"every run of a group, not only the last {_ROWS}")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the history as a page too, with charts")


def run(arguments: argparse.Namespace) -> int:
    paths = arguments.runs or [_reports()]
    runs = [stored.readable(store.load_run(path)) for path in find_runs(paths)]
    groups = history.groups(zip(stored.names_of(runs), runs, strict=True), arguments.case, arguments.across)
    metrics = tuple(dict.fromkeys(arguments.metric or METRICS))
    _check(arguments, runs, groups, metrics)
    trends = [tuple(history.trend(group, metric) for metric in metrics) for group in groups]
    told = [list(_group(*each, every=arguments.all)) for each in zip(groups, trends, strict=True)]
    print("\n\n".join("\n".join(lines) for lines in told))
    notes = [problem for one in runs if not one.cases for problem in one.problems]
    bad, said = _newest(groups[-1], trends[-1])
    if arguments.html:
        page = Page(tuple(zip(groups, trends, strict=True)), bad, said, tuple(notes), _shifts(groups, trends))
        jsons.write_text(arguments.html, alone(page))
        notes.append(f"the page is {arguments.html}")
    print("".join(f"\nnote: {note}" for note in notes), end="\n" if notes else "")
    print("\n" + "\n".join(wrapped(said)))
    return 1 if bad else 0


def _reports() -> Path:
    found = Path(read_settings({}, Path(), Path.cwd()).reports)
    if not found.is_dir():
        raise Problems([f"{found}: no such directory; name the runs, or the folder that holds them, after the case"])
    return found


def _shifts(groups: Sequence[Group], trends: Sequence[Sequence[Trend]]) -> dict[tuple[int, str], tuple[str, ...]]:
    return {
        (place, trend.metric): tuple(_shift(group, trend, shift) for shift in trend.shifts)
        for place, (group, each) in enumerate(zip(groups, trends, strict=True))
        for trend in each
    }


def _check(arguments: argparse.Namespace, runs: Sequence[Run], groups: list[Group], metrics: Sequence[str]) -> None:
    if not groups:
        names = sorted({plain_name(case) for one in runs for case in one.cases})
        hint = near(arguments.case, names) or f" (there is {', '.join(names) or 'none that can be read'})"
        raise Problems([f"{arguments.case}: no such case in {count(len(runs), 'run')}{hint}"])
    rounds = [one for group in groups for entry in group.entries for one in entry.case.outcomes]
    known = {metric.name for one in rounds for metric in one.metrics}
    fields = {name for one in rounds for name in (*one.fingerprint, *one.machine)}
    problems = [
        f"--metric={name}: no round has it{near(name, known)}"
        for name in (metrics if arguments.metric else ())
        if name not in known
    ]
    problems += [
        f"--across={name}: no fingerprint and no machine has it{near(name, fields)}"
        for name in arguments.across
        if name not in fields
    ]
    if problems:
        raise Problems(problems)


def _newest(group: Group, trends: Sequence[Trend]) -> tuple[bool, str]:
    """Whether the newest run is worse, and that in words."""
    newest = group.entries[-1]
    outcomes = newest.case.outcomes
    if not any(outcome.ok for outcome in outcomes):
        return True, f"worse: {newest.run}: none of {count(len(outcomes), 'round')} ended well"
    judged = {trend.metric: trend.judged[-1] for trend in trends}
    bad = [f"{name} ({_how(one)})" for name, one in judged.items() if one.word in (noise.WORSE, noise.MISSING)]
    if bad:
        return True, f"worse: {newest.run}: {', '.join(bad)}"
    few = any(one.word == noise.TOO_FEW for one in judged.values())
    return False, "too few runs to say whether the newest is worse" if few else "the newest run is not worse"


def _how(judged: Judgement) -> str:
    return judged.word if judged.change is None else signed(judged.change)


# -- a group -------------------------------------------------------------------------------------------------


def _group(group: Group, trends: Sequence[Trend], *, every: bool) -> Iterator[str]:
    entries = group.entries
    days = [_date(entry)[:10] for entry in (entries[0], entries[-1])]
    yield f"{plain_name(entries[-1].case)}: {count(len(entries), 'run')}, {' to '.join(dict.fromkeys(days))}"
    yield from (f"  unlike the newest run: {text}" for text in group.unlike)
    yield ""
    yield from _table(group, trends[0], every=every)
    for entry, texts in group.changed():
        yield from wrapped(f"  from {entry.run} on: {', '.join(texts)}")
    for trend in trends:
        yield ""
        yield from _trend(group, trend)


def _table(group: Group, trend: Trend, *, every: bool) -> Iterator[str]:
    rows = [_row(group.entries[number], trend, number) for number in range(len(group.entries))]
    shown = rows if every else rows[-_ROWS:]
    if len(shown) < len(rows):
        yield f"  the last {len(shown)} of {len(rows)} runs; --all shows all"
    head = ("  run", "date (UTC)", "rounds", trend.metric, "spread", "change", "")
    yield from aligned([head, *shown])


def _row(entry: Entry, trend: Trend, number: int) -> tuple[str, ...]:
    values, judged = trend.runs[number], trend.judged[number]
    spread = statistics.stdev(values) / abs(statistics.mean(values)) if len(values) > 1 and any(values) else None
    return (
        f"  {short(entry.run)}",
        _date(entry),
        str(len(values)),
        _value(statistics.median(values), trend.unit) if values else NOTHING,
        "?" if spread is None else quantity(spread, "share"),
        NOTHING if judged.change is None else signed(judged.change),
        "" if judged.word in (noise.WITHIN, noise.TOO_FEW) else judged.word,
    )


def _trend(group: Group, trend: Trend) -> Iterator[str]:
    measured, last = trend.noise, trend.judged[-1]
    unit = f" in {trend.unit}" if is_rate(trend.unit) else ""
    yield f"  {trend.metric}{unit}  {sparkline(trend.medians[-_POINTS:], _bars())}"
    shares = (("of a round", measured.within), ("from run to run", measured.between))
    known = [f"{quantity(value, 'share')} {what}" for what, value in shares if value is not None]
    yield f"    noise: {', '.join(known) or 'not known yet'}"
    for shift in trend.shifts:
        yield from wrapped(f"    {_shift(group, trend, shift)}", "      ")
    yield from wrapped(f"    newest: {last.word}: {last.sentence}", "      ")


def _shift(group: Group, trend: Trend, shift: Shift) -> str:
    old, new = compared(shift.before, shift.after, trend.unit)
    share = f" ({signed((shift.after - shift.before) / abs(shift.before))})" if shift.before else ""
    first, last = group.entries[shift.first], group.entries[shift.last]
    if shift.kind == noise.DRIFT:
        return f"drift: from {old} to {new}{share}, little by little from {first.run} to {last.run}"
    if shift.kind == noise.STEP:
        return f"step: from {old} to {new}{share} with {first.run}"
    return f"step or drift: from {old} to {new}{share} about {first.run}; the noise does not let tell which"


# -- words and signs -----------------------------------------------------------------------------------------


def sparkline(values: Sequence[float | None], bars: str = _BARS) -> str:
    """One sign per run, from the lowest to the highest; an x where there is no value."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    step = (high - low) / (len(bars) - 1) or 1.0
    return "".join(_GAP if value is None else bars[round((value - low) / step)] for value in values)


def _bars() -> str:
    try:
        _BARS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return _PLAIN_BARS
    return _BARS


def _date(entry: Entry) -> str:
    if entry.started_ms is None:
        return "date not known"
    return datetime.fromtimestamp(entry.started_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M")


def _value(value: float, unit: str) -> str:
    """Rates without their unit, which is said below the table."""
    return plain(value) if is_rate(unit) else quantity(value, unit)
