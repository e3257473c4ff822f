"""The Markdown of measurements: a column for each figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_flagperf.report.export.markdown import NONE, configuration, deviations
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult


def rows(entries: Sequence[tuple[StoredRun, CaseResult]]) -> Iterator[list[str]]:
    """Yield the head and a row for each case, with the figures that any case has."""
    every = {figure.name: figure for _, case in entries for figure in case.first.figures}
    shown = [one for one in every.values() if any(case.median(one.name) is not None for _, case in entries)]
    yield ["configuration", *(figure.name for figure in shown), "fix_hp"]
    for run, case in entries:
        medians = [(case.median(figure.name), figure.unit) for figure in shown]
        cells = [NONE if value is None else quantity(value, unit) for value, unit in medians]
        yield [configuration(case.first), *cells, deviations(run, case)]
