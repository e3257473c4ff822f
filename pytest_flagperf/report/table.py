"""The table at the end of the terminal report; it is readable at 80 columns and uses what there is beyond."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flagperf.results.statistics import summarize
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.units import compared, plain, quantity

NOTHING = "-"
_HEAD = ("case", "rounds", "converged", "metric", "p_whole", "p_train", "p_core", "speedup", "e2e")
_NAMES = 2
"""Columns that are read from the left: the case and, in the wide table, nothing else."""
_GAP = "  "


def console_table(cases: Sequence[CaseResult], width: int = 80) -> list[str]:
    """One line per case where it fits; else two, the second with the figures."""
    if not cases:
        return ["no case left a result"]
    rows = [_row(case) for case in cases]
    wide = _lines([_HEAD, *rows])
    if max(map(len, wide)) <= width:
        return wide
    return _narrow(cases, rows)


def _row(case: CaseResult) -> tuple[str, ...]:
    return (
        case.case,
        f"{sum(outcome.ok for outcome in case.outcomes)}/{len(case.outcomes)}",
        _converged(case),
        _metric(case),
        *(_rate(case, name) for name in ("p_whole", "p_train")),
        _rate(case, "p_core", with_unit=True),
        NOTHING if case.speedup is None else quantity(case.speedup, "x"),
        _time(case),
    )


def _narrow(cases: Sequence[CaseResult], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The case on a line of its own, so that its name may be of any length; its figures stand below."""
    head = ("", *_HEAD[2:6], "p_core", *_HEAD[7:])
    # The unit goes to the case's line: a column of figures has no room for it.
    figures = [("", *row[2:6], _rate(case, "p_core"), *row[7:]) for case, row in zip(cases, rows, strict=True)]
    head_line, *lines = _lines([head, *figures], gap=" ")
    found = ["case (rounds that finished, unit)", head_line.rstrip()]
    for case, row, line in zip(cases, rows, lines, strict=True):
        unit = case.outcomes[0].rate_unit if case.outcomes else ""
        found += [f"{row[0]} ({row[1]}, {unit})", line]
    return found


def _lines(rows: Sequence[Sequence[str]], gap: str = _GAP) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _converged(case: CaseResult) -> str:
    """Of the rounds that were meant to; a case for throughput only was not."""
    if case.converged is None:
        return "not asked"
    return f"{case.converged}/{sum(not outcome.throughput_only for outcome in case.outcomes)}"


def _metric(case: CaseResult) -> str:
    """The median of the rounds' last evaluations against the target."""
    target = case.outcomes[0].target if case.outcomes else None
    got = summarize(outcome.quality.last for outcome in case.outcomes).median
    if target is None or got is None or case.converged is None:
        return NOTHING
    said, wanted = compared(got, target.value, target.unit)
    return f"{target.name} {said} ({'<=' if target.direction == 'lower' else '>='} {wanted})"


def _rate(case: CaseResult, name: str, *, with_unit: bool = False) -> str:
    value = case.median(name)
    if value is None:
        return NOTHING
    return quantity(value, case.outcomes[0].rate_unit) if with_unit else plain(value)


def _time(case: CaseResult) -> str:
    value = case.median("e2e_time")
    return NOTHING if value is None else quantity(value, "s")
