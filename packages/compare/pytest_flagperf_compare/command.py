"""Compare two stored runs, the old one first; exit code 1 if a metric is worse by more than its noise.

Also if more rounds failed, fewer reached the target, or the new run lacks a case. Exit code 2 if nothing regressed, but
a case could not be judged.

Of more runs, or of a folder of runs in the order of their start, the first and the last one are compared. The first
table has the verdict of each case. A metric regressed if its median over the valid rounds is worse by more than the
threshold and by more than its noise. The noise is measured from run to run, on the runs in the old run's folder with
the same config and machine that did not regress against a baseline; where there are too few of them, on the rounds of
the old and the new run. Runs of different commits are compared, and the changed code is noted. Runs with another config
or machine are compared only with --ignore-differences; two chips are never a regression: the verdict is the ratio of
their main figures. A case is not judged if a run has no valid round of it, or if chance alone changes a metric by more
than half. A round that was interrupted decides nothing, and neither does a case that an interrupted run lacks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_flagperf.commands import common
from pytest_flagperf.commands.common import width, wrapped
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.report.terminal.table import NOTHING, aligned
from pytest_flagperf.results.comparing.stored_runs import NamedRounds, StoredRuns, without_copies
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.measured import limits
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.stored import FormatError, write_text
from pytest_flagperf.stored.plan import THROUGHPUTS
from pytest_flagperf.stored.round_dir import RoundDir
from pytest_flagperf_page.trend import trends_of

from . import comment
from .case_table import (
    HEAD,
    NOT_JUDGED,
    CaseRow,
    case_rows,
    gone,
    headline,
    implausible,
    limit,
    not_judged,
)
from .comparison import (
    CaseRuns,
    Compared,
    Matched,
    certainty,
    match,
)
from .machines import explained
from .page import ComparisonPage, standalone

EXAMPLE = "reports/run20261121061129 reports/run20261121063131"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_runs(parser)
    parser.add_argument(
        "--threshold",
        type=_share,
        default=noise.THRESHOLD,
        metavar="PERCENT",
        help=f"smallest change for the worse that counts as a regression (default: {noise.THRESHOLD:.0%})".replace(
            "%", " %%"
        ),
    )
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help=f"judge this metric instead of {', '.join(THROUGHPUTS)}, or the figures of a measurement; may be repeated",
    )
    parser.add_argument("--all", action="store_true", help="show all measured metrics")
    parser.add_argument(
        "--ignore-differences",
        action="store_true",
        help="also compare runs with different fingerprints, and print the differences",
    )
    parser.add_argument(
        "--common", action="store_true", help="do not count a case that is missing in the new run as a regression"
    )
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="also write the comparison as an HTML page with charts"
    )
    parser.add_argument(
        "--markdown",
        metavar="FILE",
        type=Path,
        help="also write the comparison in Markdown, as the comment of a pull request",
    )


def run(arguments: argparse.Namespace) -> int:
    runs = [run for path in arguments.runs for run in sorted(common.load_runs([path]), key=lambda run: run.started_ms)]
    if len(runs) < 2:
        raise Problems([f"{runs[0].directory}: expected two runs, got 1; also pass the run to compare with"])
    old, *between, new = runs
    page = _compare(old, new, arguments)
    written = []
    if between:
        where = old.directory.parent
        written.append(f"{count(len(between), 'run')} between not compared; flagperf report --all {where} shows all")
    if arguments.html:
        write_text(arguments.html, standalone(page, arguments.html))
        written.append(f"wrote the page {arguments.html}")
    if arguments.markdown:
        write_text(arguments.markdown, comment.of_comparison(page))
        written.append(f"wrote the comment {arguments.markdown}")
    print("\n".join(_lines(page, written)))
    return page.exit_code


def _compare(old: StoredRun, new: StoredRun, arguments: argparse.Namespace) -> ComparisonPage:
    judged = tuple(dict.fromkeys(arguments.metric or ()))
    _check_metrics(judged, (old, new))
    first, last = common.unique_names((old, new))
    matched = match((first, last), old.cases, new.cases, across_hardware=arguments.ignore_differences)
    matched = replace(matched, is_interrupted=new.is_interrupted)
    try:
        _check_comparable(old, new, matched, ignore_differences=arguments.ignore_differences)
    except Problems as problems:
        if arguments.markdown:
            write_text(arguments.markdown, comment.of_refusal(first, last, problems.problems))
        raise
    stored_runs = StoredRuns(old.directory.resolve().parent)
    cases = [_compared(row, stored_runs, judged, arguments) for row in matched.rows]
    rows = case_rows(cases, matched, common=arguments.common)
    regressions = [
        f"{last}: {case.row.new.case}: {text}" for case in cases for text in case.row.regressions(case.changes)
    ]
    notes = [f"{case} is only in {new.directory}" for case in matched.fresh]
    notes += [f"{row.name}: {text}" for row in matched.rows if (text := _explained(row, old, new))]
    notes += [f"{row.name}: {text}" for row in matched.rows for text in _changed_values(row, old, new)]
    suspect, lost = [*implausible(cases), *not_judged(cases)], gone(matched, new.directory)
    if lost and arguments.common:
        notes.append(lost.partition("; ")[0])
    elif lost and matched.is_interrupted:
        suspect += [f"{case}: {NOT_JUDGED}: {last} was interrupted and does not have the case" for case in matched.lost]
        lost = ""
    return ComparisonPage(
        {first: old.directory, last: new.directory},
        tuple(cases),
        tuple(rows),
        tuple(regressions),
        "" if arguments.common else lost,
        tuple(suspect),
        tuple(notes),
        arguments.threshold,
        headline(cases, rows),
    )


def _lines(page: ComparisonPage, written: Sequence[str]) -> Iterator[str]:
    """Yield the table of all cases, a table for each case, and the notes, warnings and regressions."""
    yield " -> ".join(map(str, page.directories.values()))
    yield ""
    yield from _case_table(page.rows)
    for case in page.cases:
        yield ""
        yield from _case(case, page.threshold)
    yield ""
    yield from (f"note: {text}" for text in (*page.notes, *written))
    yield from (f"warning: {text}" for text in page.suspect)
    yield from (f"regression: {text}" for text in page.regressions)
    yield from (f"missing: {text}" for text in (page.gone,) if text)
    yield from wrapped(page.title)


def _first_start_ms(rounds: Iterable[Outcome]) -> int:
    """Return when the first of the rounds started, in ms; 0 if it is unknown."""
    return min((outcome.started_ms for outcome in rounds if outcome.started_ms is not None), default=0)


def _compared(row: CaseRuns, stored_runs: StoredRuns, judged: Sequence[str], arguments: argparse.Namespace) -> Compared:
    like = _comparable_runs(row, stored_runs)
    steady = [rounds for name, rounds in like if not stored_runs.has_regressed(name, rounds)]
    changes = row.changes(judged, arguments.threshold, steady, every=arguments.all)
    given = [(name, case.outcomes) for name, case in row.runs]
    names, last = {name for name, _ in given}, max(_first_start_ms(rounds) for _, rounds in given)
    runs = [*(named for named in like if named[0] not in names and _first_start_ms(named[1]) <= last), *given]
    return Compared(row, changes, trends_of(runs))


def _comparable_runs(row: CaseRuns, stored_runs: StoredRuns) -> list[NamedRounds]:
    """Return the old run and those stored beside it with its fingerprint, without the new run."""
    first = row.old.outcomes[0]
    if first.hardware != row.new.outcomes[0].hardware:
        return []
    old = tuple(outcome for outcome in row.old.outcomes if outcome.valid)
    given = [(row.names[0], old)] if old else []
    new = {outcome.identity for outcome in row.new.outcomes}
    runs = [named for named in (*given, *stored_runs.named(first)) if not new & {one.identity for one in named[1]}]
    return sorted(without_copies(runs), key=lambda named: named[1][0].started_ms or 0)


def _changed_values(row: CaseRuns, old: StoredRun, new: StoredRun) -> Iterator[str]:
    """Yield the values of the config that only the hash of the suite's code shows, if both plans can be read."""
    first = (old.directory / row.old.first.directory, new.directory / row.new.first.directory)
    try:
        then, now = (RoundDir(directory).read_plan().config for directory in first)
    except FormatError:
        return
    known = [text.partition(" ")[0] for text in row.notes]
    if not row.differences and any(text == "suite_code:" for text in known):
        yield from (
            f"{key}: {then[key]} -> {now[key]}"
            for key in then
            if key in now and then[key] != now[key] and key not in known
        )


def _explained(row: CaseRuns, old: StoredRun, new: StoredRun) -> str:
    """Return which part of the difference the machines explain, if both runs have measured theirs."""
    works = [limits.work_of(case.outcomes) for case in (row.old, row.new)]
    before, after = ([one for case in run.cases for one in case.outcomes] for run in (old, new))
    if works[0] is None or works[1] is None or (found := limits.limits_of(works[0], before)) is None:
        return ""
    return explained(found, works[1], after)


# -- all cases -----------------------------------------------------------------------------------------------


def _case_table(rows: Sequence[CaseRow]) -> list[str]:
    """Return the table of all cases; on a narrow terminal without the units of rates, or with two lines per case."""
    cells = [tuple(cell or NOTHING for cell in row.cells) for row in rows]
    short = [tuple(_without_rate(cell, row.unit) for cell in line) for row, line in zip(rows, cells, strict=True)]
    if max(map(len, lines := aligned([HEAD, *cells]))) <= width():
        return lines
    units = dict.fromkeys(row.unit for row in rows if _is_rate(row.unit))
    below = wrapped(f"throughputs in {', '.join(units)}") if units else []
    if max(map(len, lines := aligned([HEAD, *short]))) <= width():
        return [*lines, *below]
    head, *rest = aligned([("  metric", *HEAD[2:]), *(("  " + line[1], *line[2:]) for line in short)])
    return [HEAD[0], head, *(text for row, line in zip(rows, rest, strict=True) for text in (row.case, line)), *below]


def _without_rate(cell: str, unit: str) -> str:
    return cell.removesuffix(f" {unit}") if unit and _is_rate(unit) else cell


# -- a case --------------------------------------------------------------------------------------------------


def _case(case: Compared, threshold: float) -> Iterator[str]:
    """Return a table with a row per metric."""
    row = case.row
    rounds = [str(sum(outcome.valid for outcome in side.outcomes)) for side in (row.old, row.new)]
    yield f"{row.name} (valid rounds: {' -> '.join(rounds)})"
    yield from (f"  different: {text}" for text in row.differences)
    yield from (f"  note: {text}" for text in row.notes)
    yield from (line for text in row.failed for line in wrapped(f"  failed: {text}", "    "))
    yield from (line for text in row.interrupted for line in wrapped(f"  interrupted: {text}", "    "))
    yield from (line for text in row.invalid for line in wrapped(f"  invalid: {text}", "    "))
    if not case.changes:
        return
    yield from aligned(_rows(case))
    if text := certainty(case.changes, threshold):
        yield from wrapped(f"  {text}", "    ")
    for text in (text for trend in case.trends for text in trend.sentences()):
        yield from wrapped(f"  {text}", "    ")


def _rows(case: Compared) -> list[tuple[str, ...]]:
    rows = [("  metric", *case.row.columns, "change", "", "limit")]
    for change in case.changes:
        values = (text or NOTHING for text in (*change.texts, change.share))
        rows.append((f"  {change.name}", *values, change.word, limit(change)))
    empty = {place for place, column in enumerate(zip(*rows, strict=True)) if not any(column)}
    return [tuple(cell for place, cell in enumerate(row) if place not in empty) for row in rows]


# -- checks --------------------------------------------------------------------------------------------------


def _check_metrics(judged: Sequence[str], runs: Sequence[StoredRun]) -> None:
    known = {
        metric.name for run in runs for case in run.cases for outcome in case.outcomes for metric in outcome.metrics
    }
    unknown = [f"--metric={name}: no round has this metric{near(name, known)}" for name in judged if name not in known]
    # Runs without a successful round have no metrics; the report shows why.
    if unknown and known:
        raise Problems(unknown)


def _check_comparable(old: StoredRun, new: StoredRun, matched: Matched, *, ignore_differences: bool) -> None:
    problems = []
    if not matched.rows:
        hint = "" if ignore_differences else "; --ignore-differences compares different hardware"
        problems.append(f"{old.directory} and {new.directory} have no case in common{hint}")
    if not ignore_differences:
        different = [(row.name, row.differences) for row in matched.rows if row.differences]
        problems += [f"{name}: {text}" for name, texts in different for text in texts]
        if different:
            cases = count(len(different), "case")
            problems.append(f"{cases} not compared, the fingerprints differ; --ignore-differences compares them anyway")
    if problems:
        raise Problems(problems)


def _share(text: str) -> float:
    """Return the fraction that a percentage gives: ``5`` and ``5%`` give 0.05."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a percentage, as in 5") from None
    if not 0 <= value < 1000:
        raise argparse.ArgumentTypeError(f"got {text}; expected at least 0 and less than 1000 percent")
    return value / 100


def _is_rate(unit: str) -> bool:
    return unit.endswith("/s") and unit != "B/s"
