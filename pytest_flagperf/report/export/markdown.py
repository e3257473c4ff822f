"""Cells and rows of performance tables in Markdown, as in FlagPerf's model READMEs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pytest_flagperf.case import variant_of
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.round_dir import RoundDir

NONE = "/"
"""FlagPerf's sign for a figure that was not measured."""


def configuration(outcome: Outcome) -> str:
    """Return the cell with the chip and the shape."""
    hosts = "1 host" if outcome.nnodes == 1 else f"{outcome.nnodes} hosts"
    shape = ", ".join(filter(None, [str(outcome.shape), variant_of(outcome.case)]))
    return f"{outcome.hardware} {hosts} x {outcome.nproc} ({shape})"


def deviations(run: StoredRun, case: CaseResult) -> str:
    """Return the values that differ from the suite's; the sign for "not measured" if the plan is unreadable."""
    try:
        plan = RoundDir(run.directory / case.first.directory).read_plan()
    except FormatError:
        return NONE
    texts = [f"{item.key}={item.value}" for item in plan.deviations if item.key != "data_dir"]
    texts += [f"own {item.name.partition(' ')[2]}" for item in plan.additions if item.name.startswith("step ")]
    return " ".join(texts) or NONE


def row(cells: Sequence[str]) -> str:
    """Return a row of a table; separators, line breaks and HTML in cells are escaped."""
    flat = (escape(" ".join(cell.split()), quote=False).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(flat)} |"
