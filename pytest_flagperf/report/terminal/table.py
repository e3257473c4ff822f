"""The table at the end of the terminal report; it is readable at 80 columns and uses what there is beyond."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.store import CaseResult, last_quality
from pytest_flagperf.results.units import compared, plain, quantity

NOTHING = "-"
_HEAD = ("case", "rounds", "converged", "metric", "p_whole", "p_train", "p_core", "MFU", "speedup", "e2e")
_MFU = _HEAD.index("MFU")
_GAP = "  "
_NOISE = "noise"


def console_table(cases: Sequence[CaseResult], width: int = 80) -> list[str]:
    """One line per case where it fits; else two, the second with the figures."""
    if not cases:
        return ["no case left a result"]
    wide = aligned(rows(cases))
    if max(map(len, wide)) <= width:
        return wide
    return _narrow(cases, width)


def rows(cases: Sequence[CaseResult]) -> list[tuple[str, ...]]:
    """The table's cells, its head first; a column that no case has anything for is left out."""
    found = [_HEAD, *(_row(case) for case in cases)]
    if all(row[_MFU] == NOTHING for row in found[1:]):
        return [(*row[:_MFU], *row[_MFU + 1 :]) for row in found]
    return found


def _row(case: CaseResult) -> tuple[str, ...]:
    return (
        case.case,
        f"{sum(outcome.ok for outcome in case.outcomes)}/{len(case.outcomes)}",
        converged(case),
        metric(case.outcomes) or NOTHING,
        *(_rate(case, name) for name in ("p_whole", "p_train")),
        _rate(case, "p_core", with_unit=True),
        _share(case, "mfu"),
        _speedup(case),
        _time(case),
    )


def _narrow(cases: Sequence[CaseResult], width: int) -> list[str]:
    """The case and what its figures are on a line of their own, of any length; the figures stand below."""
    figures = [("", *_HEAD[2:]), *(("", *_narrow_row(case)) for case in cases)]
    if all(row[_MFU - 1] == NOTHING for row in figures[1:]) or max(map(len, aligned(figures))) > width:
        figures = [(*row[: _MFU - 1], *row[_MFU:]) for row in figures]
    head_line, *lines = aligned(figures)
    found = ["case (rounds that finished, metric, unit of the throughputs)", head_line]
    for case, line in zip(cases, lines, strict=True):
        finished, first = _row(case)[1], case.outcomes[0] if case.outcomes else None
        about = [finished, first.target.name, first.rate_unit] if first else [finished]
        found += [f"{case.case} ({', '.join(filter(None, about))})", line]
    return found


def _narrow_row(case: CaseResult) -> tuple[str, ...]:
    """Without what the line above it says."""
    row = _row(case)
    mfu, speedup, time = row[_MFU:]
    speedup = _NOISE if speedup.endswith(_NOISE) else speedup
    figures = (*row[4:6], _rate(case, "p_core"), mfu, speedup, time)
    return (row[2], metric(case.outcomes, named=False) or NOTHING, *figures)


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


def converged(case: CaseResult) -> str:
    """Of the rounds that were meant to; a case for throughput only was not, nor one judged by its loss curve."""
    if case.converged is None:
        return "parity" if any(one.parity_samples is not None for one in case.outcomes) else "not asked"
    return f"{case.converged}/{case.meant}"


def metric(outcomes: Sequence[Outcome], *, named: bool = True) -> str:
    """What the metric came to against the target; empty where it was not to reach it, or no round ended well."""
    got = last_quality(outcomes)
    if got is None:
        return ""
    target = outcomes[0].target
    said, wanted = compared(got, target.value, target.unit)
    return f"{f'{target.name} ' if named else ''}{said} ({target.sign} {wanted})"


def _rate(case: CaseResult, name: str, *, with_unit: bool = False) -> str:
    value = case.median(name)
    if value is None:
        return NOTHING
    return quantity(value, case.outcomes[0].rate_unit) if with_unit else plain(value)


def _share(case: CaseResult, name: str) -> str:
    value = case.median(name)
    return NOTHING if value is None else quantity(value, "share")


def _speedup(case: CaseResult) -> str:
    """In as few words as a cell has room for; the warnings below the table have the sentences."""
    if case.speedup is None:
        return NOTHING
    return quantity(case.speedup, "x") + (f" {_NOISE}" if case.speedup > case.outcomes[0].cards else "")


def _time(case: CaseResult) -> str:
    value = case.median("e2e_time")
    return NOTHING if value is None else quantity(value, "s")
