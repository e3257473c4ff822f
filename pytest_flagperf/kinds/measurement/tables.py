"""The tables of measurements: at the end of a run a line for each figure, in Markdown a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_flagperf.report.export.markdown import NONE, configuration, deviations
from pytest_flagperf.report.terminal.table import NOTHING, aligned, time_of
from pytest_flagperf.results.figures.statistics import summarize
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.outcome import Outcome, counted
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult

_HEAD = ("case", "figure", "median", "of peak", "rounds", "e2e")


def lines(cases: Sequence[CaseResult], width: int) -> list[str]:
    """Return one line per figure of each measurement; the name of the case has its own line if they do not fit."""
    table = [_HEAD, *(row for case in cases for row in _figure_rows(case))]
    wide = aligned(table, left=2)
    if max(map(len, wide)) <= width:
        return wide
    head, *lines = aligned([row[1:] for row in table])
    lines = [f"  {line}" for line in lines]
    for case in reversed(cases):
        at = next(number for number, row in enumerate(table[1:]) if row[0] == case.case)
        lines.insert(at, case.case)
    return [f"  {head}", *lines]


def _figure_rows(case: CaseResult) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a measurement; its name, rounds and time are in the first one."""
    first = case.outcomes[0]
    medians = [(figure, case.median(figure.name)) for figure in first.figures]
    ends = f"{sum(outcome.ok for outcome in case.outcomes)}/{len(case.outcomes)}", time_of(case)
    name = case.case
    for figure, value in [pair for pair in medians if pair[1] is not None] or medians[:1]:
        share = quantity(value / figure.peak, "share") if figure.peak and value is not None else NOTHING
        yield (name, figure.name, NOTHING if value is None else quantity(value, figure.unit), share, *ends)
        name, ends = "", ("", "")


def metric(outcomes: Sequence[Outcome], *, named: bool) -> str:
    """Return the first figure, with its share of the chip's peak; empty if no finished round has it."""
    first = outcomes[0]
    value = summarize(outcome.value(first.main) for outcome in counted(outcomes)).median
    if value is None:
        return ""
    peak = first.figures[0].peak
    share = f" ({quantity(value / peak, 'share')} of the peak)" if peak else ""
    return f"{f'{first.main} ' if named else ''}{quantity(value, first.rate_unit)}{share}"


# -- Markdown ------------------------------------------------------------------------------------------------


def rows(entries: Sequence[tuple[StoredRun, CaseResult]]) -> Iterator[list[str]]:
    """Yield the head and a row for each case, with the figures that any case has."""
    every = {figure.name: figure for _, case in entries for figure in case.first.figures}
    shown = [one for one in every.values() if any(case.median(one.name) is not None for _, case in entries)]
    yield ["configuration", *(figure.name for figure in shown), "fix_hp"]
    for run, case in entries:
        medians = [(case.median(figure.name), figure.unit) for figure in shown]
        cells = [NONE if value is None else quantity(value, unit) for value, unit in medians]
        yield [configuration(case.first), *cells, deviations(run, case)]
