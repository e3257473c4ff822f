"""The table at the end of the terminal report; it is readable at 80 columns and uses what there is beyond."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flagperf.results.statistics import summarize
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.units import compared, plain, quantity

NOTHING = "-"
_HEAD = ("case", "rounds", "converged", "metric", "p_whole", "p_train", "p_core", "speedup", "e2e")
_GAP = "  "


def console_table(cases: Sequence[CaseResult], width: int = 80) -> list[str]:
    """One line per case where it fits; else two, the second with the figures."""
    if not cases:
        return ["no case left a result"]
    rows = [_row(case) for case in cases]
    wide = aligned([_HEAD, *rows])
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
    """The case and what its figures are on a line of their own, of any length; the figures stand below."""
    head = ("", *_HEAD[2:])
    figures = [
        ("", row[2], _metric(case, name=""), *row[4:6], _rate(case, "p_core"), *row[7:])
        for case, row in zip(cases, rows, strict=True)
    ]
    head_line, *lines = aligned([head, *figures])
    found = ["case (rounds that finished, metric, unit of the throughputs)", head_line]
    for case, row, line in zip(cases, rows, lines, strict=True):
        first = case.outcomes[0] if case.outcomes else None
        about = [row[1], first.target.name, first.rate_unit] if first else [row[1]]
        found += [f"{row[0]} ({', '.join(filter(None, about))})", line]
    return found


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell: the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
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


def _metric(case: CaseResult, name: str | None = None) -> str:
    """The median of the rounds' last evaluations against the target."""
    target = case.outcomes[0].target if case.outcomes else None
    got = summarize(outcome.quality.last for outcome in case.outcomes).median
    if target is None or got is None or case.converged is None:
        return NOTHING
    said, wanted = compared(got, target.value, target.unit)
    sign = "<=" if target.direction == "lower" else ">="
    return f"{target.name if name is None else name} {said} ({sign} {wanted})".lstrip()


def _rate(case: CaseResult, name: str, *, with_unit: bool = False) -> str:
    value = case.median(name)
    if value is None:
        return NOTHING
    return quantity(value, case.outcomes[0].rate_unit) if with_unit else plain(value)


def _time(case: CaseResult) -> str:
    value = case.median("e2e_time")
    return NOTHING if value is None else quantity(value, "s")
