"""A run against others: what got slower by more than its noise; exit code 1 if anything did.

The first run is the old one, each further one is compared with it. A figure regressed when its median over the
rounds is worse by more than the larger of the threshold and its noise, which is twice the standard error of the
difference. Runs with unlike fingerprints are not compared unless --unlike says that they may be.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flagperf.commands import stored
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.report.table import NOTHING, aligned
from pytest_flagperf.results.comparison import JUDGED, THRESHOLD, Change, Matched, Pair, match
from pytest_flagperf.results.store import Run
from pytest_flagperf.results.units import compared, count, quantity


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


def run(arguments: argparse.Namespace) -> int:
    old, runs = stored.load_one(arguments.old), stored.load_all(arguments.new)
    judged = tuple(dict.fromkeys(arguments.metric or JUDGED))
    _check_metrics(judged, [old, *runs])
    matched = [match(old.cases, new.cases, across_hardware=arguments.unlike) for new in runs]
    _check_comparable(old, runs, matched, arguments)
    regressions: list[str] = []
    for new, found in zip(runs, matched, strict=True):
        print(f"{old.directory} -> {new.directory}")
        for pair in found.pairs:
            changes = pair.changes(judged, every=arguments.all)
            print("\n" + "\n".join(_table(pair, changes, arguments.threshold)))
            worse = pair.regressions(changes, arguments.threshold)
            regressions += [f"{new.directory}: {pair.new.case}: {text}" for text in worse]
        missing = [f"{case} is not in {new.directory}" for case in found.lost]
        regressions += [] if arguments.common else missing
        told = [f"note: {text}" for text in missing] if arguments.common else []
        told += [f"note: {case} is only in {new.directory}" for case in found.fresh]
        print("\n".join(["", *told]) if told else "")
    print("\n".join(f"regression: {text}" for text in regressions) if regressions else "no regression")
    return 1 if regressions else 0


def _table(pair: Pair, changes: Sequence[Change], threshold: float) -> Iterator[str]:
    rounds = " -> ".join(str(sum(one.ok for one in case.outcomes)) for case in (pair.old, pair.new))
    yield f"{pair.name} (rounds: {rounds})"
    yield from (f"  unlike: {text}" for text in pair.unlike)
    yield from (f"  note: {text}" for text in pair.notes)
    yield from aligned([("  metric", "old", "new", "change", "spread", ""), *(_row(one, threshold) for one in changes)])
    if any(change.judged and change.noise is None and change.relative is not None for change in changes):
        yield "  one round on each side: the noise is not known, the threshold alone is judged by"


def _row(change: Change, threshold: float) -> tuple[str, ...]:
    old, new = compared(change.old.median, change.new.median, change.unit)
    return (
        f"  {change.name}",
        NOTHING if change.old.median is None else old,
        NOTHING if change.new.median is None else new,
        NOTHING if change.relative is None else f"{change.relative * 100:+.1f} %",
        "?" if change.spread is None else quantity(change.spread, "share"),
        _word(change, threshold),
    )


def _word(change: Change, threshold: float) -> str:
    if change.regression(threshold):
        return "REGRESSION"
    worse = change.worse_by()
    return "better" if change.judged and worse is not None and -worse > change.allowed(threshold) else ""


def _check_metrics(judged: Sequence[str], runs: Sequence[Run]) -> None:
    known = {metric.name for run in runs for case in run.cases for one in case.outcomes for metric in one.metrics}
    unknown = [f"--metric={name}: no round has it{near(name, known)}" for name in judged if name not in known]
    # Runs of which nothing ended well have no figure at all: that is told of their cases.
    if unknown and known and set(judged) != set(JUDGED):
        raise Problems(unknown)


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
