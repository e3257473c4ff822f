"""A run against others: what got slower by more than its noise; exit code 1 if anything did.

The first run is the old one, each further one is compared with it, all in one table a case. A figure regressed when
its median over the rounds is worse by more than the larger of the threshold and its noise: measured from run to run on
stored runs like the old one where there are enough beside it (or in the folder that --noise names), else on the rounds
of both sides. Runs with unlike fingerprints are not compared unless --unlike says that they may be.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_flagperf.commands import stored
from pytest_flagperf.commands.stored import is_rate, width, wrapped
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.report.compared import Page, alone
from pytest_flagperf.report.table import NOTHING, aligned
from pytest_flagperf.results import jsons
from pytest_flagperf.results.comparing.comparison import (
    JUDGED,
    THRESHOLD,
    Change,
    Matched,
    Pair,
    Side,
    Together,
    certainty,
    match,
    together,
)
from pytest_flagperf.results.earlier import Earlier, Rounds
from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.store import Run
from pytest_flagperf.results.units import compared, count, quantity, signed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD", type=Path, help=f"{stored.RUN}: what is compared with")
    parser.add_argument("new", metavar="NEW", type=Path, nargs="+", help=stored.RUNS)
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
    parser.add_argument(
        "--common",
        action="store_true",
        help="a case that is missing in a new run is no regression",
    )
    parser.add_argument(
        "--noise",
        metavar="DIR",
        type=Path,
        help="the folder of runs whose like ones tell the noise from run to run (default: the one that OLD lies in)",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the comparison as a page too, with charts")


def run(arguments: argparse.Namespace) -> int:
    old, runs = stored.load_one(arguments.old), stored.load_all(arguments.new)
    judged = tuple(dict.fromkeys(arguments.metric or JUDGED))
    _check(judged, [old, *runs], arguments)
    matched = [match(old.cases, new.cases, across_hardware=arguments.unlike) for new in runs]
    _check_comparable(old, runs, matched, arguments)
    sides = list(_sides(old, runs, matched, judged, arguments))
    cases = together(sides)
    print(f"{old.directory} -> {', '.join(str(new.directory) for new in runs)}")
    for case in cases:
        print("\n" + "\n".join(_case(stored.name_of(old), case, arguments.threshold)))
    regressions, notes = _wrong(sides, arguments.threshold), _notes(runs, matched)
    regressions += [] if arguments.common else _missing(runs, matched)
    notes += _missing(runs, matched) if arguments.common else []
    if arguments.html:
        where = dict(zip(stored.names_of([old, *runs]), [old.directory, *(new.directory for new in runs)], strict=True))
        page = Page(where, tuple(cases), tuple(regressions), tuple(notes), arguments.threshold)
        jsons.write_text(arguments.html, alone(page))
        notes.append(f"the page is {arguments.html}")
    print("\n".join(["", *(f"note: {text}" for text in notes)]))
    closing = [f"regression: {text}" for text in regressions] or [f"no regression{_unseen(sides, arguments.threshold)}"]
    print("\n".join(closing))
    return 1 if regressions else 0


def _sides(
    old: Run, runs: Sequence[Run], matched: Sequence[Matched], judged: Sequence[str], arguments: argparse.Namespace
) -> Iterator[Side]:
    earlier = Earlier(arguments.noise or old.directory.resolve().parent, "")
    for name, found in zip(stored.names_of([old, *runs])[1:], matched, strict=True):
        for pair in found.pairs:
            like = _like(pair, earlier)
            yield Side(name, pair, pair.changes(judged, arguments.threshold, like, every=arguments.all))


def _like(pair: Pair, earlier: Earlier) -> list[Rounds]:
    """Runs like the old one, itself among them and not the new one; none tell of other hardware's noise."""
    if pair.old.outcomes[0].hardware != pair.new.outcomes[0].hardware:
        return []
    new, old = (_identities(case.outcomes) for case in (pair.new, pair.old))
    found = [rounds for rounds in earlier.like(pair.old.outcomes[0]) if not new & _identities(rounds)]
    there = any(old & _identities(rounds) for rounds in found)
    return found if there else [*found, tuple(one for one in pair.old.outcomes if one.ok)]


def _identities(outcomes: Iterable[Outcome]) -> set[object]:
    return {outcome.identity for outcome in outcomes}


def _wrong(sides: Iterable[Side], threshold: float) -> list[str]:
    return [
        f"{side.run}: {side.pair.new.case}: {text}"
        for side in sides
        for text in side.pair.regressions(side.changes, threshold)
    ]


def _unseen(sides: Iterable[Side], threshold: float) -> str:
    """How much worse a figure could have become in the noise without being called so, where that is more than asked."""
    needed = [
        (change.judgement.needed, f"{change.name} of {side.pair.new.case}")
        for side in sides
        for change in side.changes
        if change.judged and change.judgement.needed is not None
    ]
    most, what = max(needed, default=(threshold, ""))
    return f"; the noise hides anything up to {quantity(most, 'share')} ({what})" if most > threshold else ""


def _missing(runs: Sequence[Run], matched: Sequence[Matched]) -> list[str]:
    return [
        f"{case} is not in {run.directory}" for run, found in zip(runs, matched, strict=True) for case in found.lost
    ]


def _notes(runs: Sequence[Run], matched: Sequence[Matched]) -> list[str]:
    return [
        f"{case} is only in {run.directory}" for run, found in zip(runs, matched, strict=True) for case in found.fresh
    ]


# -- a case --------------------------------------------------------------------------------------------------


def _case(old: str, case: Together, threshold: float) -> Iterator[str]:
    """One table, a column a run; of more runs than fit side by side several, one below the other."""
    rounds = [str(sum(one.ok for one in each.outcomes)) for each in (case.old, *(side.pair.new for side in case.sides))]
    name = case.sides[0].pair.name if len(case.sides) == 1 else case.old.case
    yield f"{name} (rounds: {rounds[0]} -> {', '.join(rounds[1:])})"
    for side in case.sides:
        of = "" if len(case.sides) == 1 else f"{side.run}: "
        told = [side.pair.name] if of and side.pair.name != case.old.case else []
        told += [f"unlike: {text}" for text in side.pair.unlike] + [f"note: {text}" for text in side.pair.notes]
        yield from (f"  {of}{text}" for text in told)
    portions = list(_fitting(old, case))
    for sides in portions:
        yield from aligned(_rows(old, case.metrics, sides))
    units = dict.fromkeys(change.unit for side in case.sides for change in side.changes if is_rate(change.unit))
    if units and len(portions) < len(case.sides):
        yield f"  throughputs in {', '.join(units)}"
    sentences = dict.fromkeys(certainty(side, threshold) for side in case.sides)
    for text in filter(None, sentences):
        yield from wrapped(f"  {text}", "    ")


def _fitting(old: str, case: Together) -> Iterator[Sequence[Side]]:
    """The sides in portions that the terminal is wide enough for, one by one if need be."""
    left = list(case.sides)
    while left:
        fit = len(left)
        while fit > 1 and len(aligned(_rows(old, case.metrics, left[:fit]))[0]) > width():
            fit -= 1
        yield left[:fit]
        left = left[fit:]


def _rows(old: str, metrics: Sequence[str], sides: Sequence[Side]) -> list[tuple[str, ...]]:
    """Of several runs the rates have no units, which are said below."""
    head, *heads = stored.heads([old, *(side.run for side in sides)])
    rows = [("  metric", head, *(cell for each in heads for cell in (each, "change", "")), "noise")]
    for name in metrics:
        changes = [side.change(name) for side in sides]
        cells = [cell for change in changes for cell in _cells(change, units=len(sides) == 1)]
        rows.append((f"  {name}", _old(changes, units=len(sides) == 1), *cells, _noise(changes)))
    empty = {place for place, column in enumerate(zip(*rows, strict=True)) if not any(column)}
    return [tuple(cell for place, cell in enumerate(row) if place not in empty) for row in rows]


def _cells(change: Change | None, *, units: bool) -> tuple[str, str, str]:
    """What it is now, by how much that is more or less, and whether that is worse or better."""
    if change is None or change.medians[1] is None:
        return NOTHING, NOTHING, ""
    share = change.judgement.change
    return _said(change, units)[1], NOTHING if share is None else signed(share), change.word


def _old(changes: Sequence[Change | None], *, units: bool) -> str:
    change = next((each for each in changes if each is not None), None)
    return NOTHING if change is None or change.medians[0] is None else _said(change, units)[0]


def _said(change: Change, units: bool) -> tuple[str, str]:
    old, new = compared(*change.medians, change.unit)
    if units or not is_rate(change.unit):
        return old, new
    return old.removesuffix(f" {change.unit}"), new.removesuffix(f" {change.unit}")


def _noise(changes: Sequence[Change | None]) -> str:
    """What noise alone does; of several runs the most."""
    errors = [change.judgement.error for change in changes if change is not None]
    limits = [error.limit for error in errors if error is not None]
    return quantity(max(limits), "share") if limits else "?"


# -- what cannot be compared ---------------------------------------------------------------------------------


def _check(judged: Sequence[str], runs: Sequence[Run], arguments: argparse.Namespace) -> None:
    known = {metric.name for run in runs for case in run.cases for one in case.outcomes for metric in one.metrics}
    unknown = [f"--metric={name}: no round has it{near(name, known)}" for name in judged if name not in known]
    # Runs of which nothing ended well have no figure at all: that is told of their cases.
    problems = unknown if known and set(judged) != set(JUDGED) else []
    if arguments.noise and not arguments.noise.is_dir():
        problems.append(f"--noise={arguments.noise}: is no folder of runs")
    if problems:
        raise Problems(problems)


def _check_comparable(old: Run, runs: Sequence[Run], matched: Sequence[Matched], arguments: argparse.Namespace) -> None:
    problems = []
    for new, found in zip(runs, matched, strict=True):
        if not found.pairs:
            wanted = "" if arguments.unlike else "; --unlike compares different hardware"
            problems.append(f"{old.directory} and {new.directory} have no case in common{wanted}")
        if not arguments.unlike:
            unlike = [(pair.name, pair.unlike) for pair in found.pairs if pair.unlike]
            problems += [f"{name}: {text}" for name, texts in unlike for text in texts]
            if unlike:
                what = f"{count(len(unlike), 'case')} of {new.directory}"
                problems.append(
                    f"{what} cannot be compared, the fingerprints are unlike; --unlike does it all the same"
                )
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
