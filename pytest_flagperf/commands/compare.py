"""Stored runs side by side: what got slower by more than its noise; exit code 1 if anything did.

The first run is the old one and the last run the new one; runs between them show how the values went, in the order of
their times. The runs of a folder are in the order of their times, too. A metric regressed when its median over the
rounds is worse by more than the larger of the threshold and its noise: measured from run to run on stored runs like the
old one, where there are enough beside it or among the runs between, else on the rounds of both sides. Runs with unlike
fingerprints are not compared without --unlike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flagperf.commands import stored
from pytest_flagperf.commands.stored import is_rate, width, wrapped
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.report.page.compared import Page, alone
from pytest_flagperf.report.terminal.table import NOTHING, aligned
from pytest_flagperf.results.comparing.comparable import unlike
from pytest_flagperf.results.comparing.comparison import (
    JUDGED,
    THRESHOLD,
    CaseRuns,
    Change,
    Compared,
    Matched,
    certainty,
    match,
)
from pytest_flagperf.results.comparing.stored_runs import Rounds, StoredRuns, without_copies
from pytest_flagperf.results.store import Run
from pytest_flagperf.results.units import count, quantity, signed
from pytest_flagperf.stored import write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_runs(parser)
    parser.add_argument(
        "--threshold",
        type=_share,
        default=THRESHOLD,
        metavar="PERCENT",
        help=f"how much worse is no regression (default: {THRESHOLD:.0%})".replace("%", " %%"),
    )
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help=f"judge this metric instead of {', '.join(JUDGED)}; may be given again",
    )
    parser.add_argument("--all", action="store_true", help="show every metric that was measured")
    parser.add_argument("--unlike", action="store_true", help="compare unlike fingerprints too, and say what differs")
    parser.add_argument("--common", action="store_true", help="a case that is missing in the new run is no regression")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the comparison as a page too, with charts")


def run(arguments: argparse.Namespace) -> int:
    runs = _load(arguments.runs)
    judged = tuple(dict.fromkeys(arguments.metric or JUDGED))
    _check_metrics(judged, runs)
    names, old, new = stored.names_of(runs), runs[0], runs[-1]
    matched = match(
        [(name, one.cases) for name, one in zip(names, runs, strict=True)], across_hardware=arguments.unlike
    )
    _check_comparable(old, new, matched, unlike_allowed=arguments.unlike)
    stored_runs = StoredRuns(old.directory.resolve().parent)
    cases = [
        Compared(row, row.changes(judged, arguments.threshold, _like(row, stored_runs), every=arguments.all))
        for row in matched.rows
    ]
    between = f" ({count(len(runs) - 2, 'run')} between)" if len(runs) > 2 else ""
    print(f"{old.directory} -> {new.directory}{between}")
    for case in cases:
        print("\n" + "\n".join(_case(case, arguments.threshold)))
    regressions = [
        f"{names[-1]}: {case.row.new.case}: {text}"
        for case in cases
        for text in case.row.regressions(case.changes, arguments.threshold)
    ]
    notes = [f"{case} is only in {new.directory}" for case in matched.fresh]
    (notes if arguments.common else regressions).extend(f"{case} is not in {new.directory}" for case in matched.lost)
    if arguments.html:
        where = dict(zip(names, (one.directory for one in runs), strict=True))
        page = Page(where, tuple(cases), tuple(regressions), tuple(notes), arguments.threshold)
        write_text(arguments.html, alone(page))
        notes.append(f"the page is {arguments.html}")
    print("\n".join(["", *(f"note: {text}" for text in notes)]))
    closing = [f"regression: {text}" for text in regressions] or [f"no regression{_unseen(cases, arguments.threshold)}"]
    print("\n".join(closing))
    return 1 if regressions else 0


def _load(paths: Sequence[Path]) -> list[Run]:
    """The old run, the runs between, each once and in the order of their times, and the new run."""
    runs = [run for path in paths for run in sorted(stored.load_all([path]), key=_started)]
    if len(runs) < 2:
        raise Problems([f"{runs[0].directory}: expected two or more runs, got 1; name the run to compare with, too"])
    old, *others, new = runs
    ends = {old.directory.resolve(), new.directory.resolve()}
    between = {path: run for run in others if (path := run.directory.resolve()) not in ends}
    return [old, *sorted(between.values(), key=_started), new]


def _started(run: Run) -> int:
    """When the first round started; runs without times come first, by their names."""
    times = [one.started_ms for case in run.cases for one in case.outcomes if one.started_ms is not None]
    return min(times, default=0)


def _like(row: CaseRuns, stored_runs: StoredRuns) -> list[Rounds]:
    """Runs like the old one: itself, those between, and those stored beside it, but not the new one."""
    first = row.old.outcomes[0]
    if first.hardware != row.new.outcomes[0].hardware:
        return []
    given = [tuple(one for one in case.outcomes if one.ok and not one.validity_warnings) for _, case in row.runs[:-1]]
    found = [*stored_runs.like(first), *(rounds for rounds in given if rounds and not unlike(first, rounds[0]))]
    new = {one.identity for one in row.new.outcomes}
    found = [rounds for rounds in found if not new & {one.identity for one in rounds}]
    return sorted(without_copies(found), key=lambda rounds: rounds[0].started_ms or 0)


def _unseen(cases: Sequence[Compared], threshold: float) -> str:
    """How much worse a metric may have become within the noise, where that is more than the threshold."""
    needed = [
        (change.judgement.needed, f"{change.name} of {case.row.new.case}")
        for case in cases
        for change in case.changes
        if change.judged and change.judgement.needed is not None
    ]
    most, what = max(needed, default=(threshold, ""))
    return f"; the noise hides anything up to {quantity(most, 'share')} ({what})" if most > threshold else ""


# -- a case --------------------------------------------------------------------------------------------------


def _case(case: Compared, threshold: float) -> Iterator[str]:
    """A row for each metric; of the runs between only the last ones where the terminal is too narrow for all."""
    row = case.row
    rounds = [str(sum(one.ok for one in side.outcomes)) for side in (row.old, row.new)]
    yield f"{row.name} (rounds: {' -> '.join(rounds)})"
    yield from (f"  unlike: {text}" for text in row.unlike)
    yield from (f"  note: {text}" for text in row.notes)
    between = len(row.names) - 2
    shown = between
    while shown and len(aligned(_rows(case, shown))[0]) > width():
        shown -= 1
    yield from aligned(_rows(case, shown))
    units = dict.fromkeys(change.unit for change in case.changes if is_rate(change.unit))
    if shown and units:
        yield f"  throughputs in {', '.join(units)}"
    if shown < between:
        yield f"  {shown} of {count(between, 'run')} between shown; --html shows all"
    if text := certainty(case.changes, threshold):
        yield from wrapped(f"  {text}", "    ")


def _rows(case: Compared, between: int) -> list[tuple[str, ...]]:
    """With runs between, the units of the rates stand below the table instead of in it."""
    old, *others = case.row.names
    rows = [("  metric", *stored.heads([old, *others[-1 - between :]]), "change", "", "noise")]
    for change in case.changes:
        first, *rest = (_value(text, change, units=not between) for text in change.texts)
        share, error = change.judgement.change, change.judgement.error
        signs = (NOTHING if share is None else signed(share), change.word)
        noise = "?" if error is None else quantity(error.limit, "share")
        rows.append((f"  {change.name}", first, *rest[-1 - between :], *signs, noise))
    empty = {place for place, column in enumerate(zip(*rows, strict=True)) if not any(column)}
    return [tuple(cell for place, cell in enumerate(row) if place not in empty) for row in rows]


def _value(text: str, change: Change, *, units: bool) -> str:
    return (text if units or not is_rate(change.unit) else text.removesuffix(f" {change.unit}")) or NOTHING


# -- what cannot be compared ---------------------------------------------------------------------------------


def _check_metrics(judged: Sequence[str], runs: Sequence[Run]) -> None:
    known = {metric.name for run in runs for case in run.cases for one in case.outcomes for metric in one.metrics}
    unknown = [f"--metric={name}: no round has it{near(name, known)}" for name in judged if name not in known]
    # Runs of which nothing ended well have no metric at all: the report says so of their cases.
    if unknown and known and set(judged) != set(JUDGED):
        raise Problems(unknown)


def _check_comparable(old: Run, new: Run, matched: Matched, *, unlike_allowed: bool) -> None:
    problems = []
    if not matched.rows:
        hint = "" if unlike_allowed else "; --unlike compares different hardware"
        problems.append(f"{old.directory} and {new.directory} have no case in common{hint}")
    if not unlike_allowed:
        found = [(row.name, row.unlike) for row in matched.rows if row.unlike]
        problems += [f"{name}: {text}" for name, texts in found for text in texts]
        if found:
            cases = count(len(found), "case")
            problems.append(f"{cases} cannot be compared, the fingerprints are unlike; --unlike does it all the same")
    if problems:
        raise Problems(problems)


def _share(text: str) -> float:
    """``5`` and ``5%`` are five per cent."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number; per cent is wanted, as in 5") from None
    if not 0 <= value < 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: from 0 to 1000 per cent is wanted")
    return value / 100
