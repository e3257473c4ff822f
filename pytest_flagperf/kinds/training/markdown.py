"""The Markdown of trainings: the columns of FlagPerf's model READMEs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_flagperf.report.export.markdown import NONE, configuration, deviations
from pytest_flagperf.results.figures.units import plain, quantity
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult

_FIGURES = ("precision", "e2e_time", "p_whole", "p_train", "p_core", "acc", "mem", "MFU")
"""The figures of a case; the name of the suite's metric replaces ``acc``."""
_GIB = 2**30


def rows(entries: Sequence[tuple[StoredRun, CaseResult]]) -> Iterator[list[str]]:
    """Yield the head and a row for each case, without the MFU if no case has it."""
    end = None if any(case.median("mfu") is not None for _, case in entries) else -1
    precision, *others = figure_names(entries[0][1].first.target.name)
    yield ["configuration", precision, "fix_hp", *others][:end]
    for run, case in entries:
        precision, *others = figures(case)
        yield [configuration(case.first), precision, deviations(run, case), *others][:end]


def figure_names(metric: str) -> list[str]:
    """Return the names of ``figures``, including that of the suite's metric."""
    return [metric or name if name == "acc" else name for name in _FIGURES]


def figures(case: CaseResult) -> list[str]:
    """Return the cells of a case in the order of ``figure_names``: the medians over the finished rounds."""
    first = case.first
    return [
        (case.finished or [first])[0].environment.get("precision") or str(first.fingerprint.get("precision") or NONE),
        NONE if first.throughput_only else _number(case.median("e2e_time"), 4),
        *(_number(case.median(name), 4) for name in ("p_whole", "p_train", "p_core")),
        NONE if case.quality is None else quantity(case.quality, first.target.unit).replace(" ", ""),
        _memory(case),
        _mfu(case),
    ]


def _memory(case: CaseResult) -> str:
    """Return the peak memory of a device and its size; without samples the peak memory of tensors."""
    most, size = case.median("device_memory"), case.median("device_memory_total")
    most = case.median("peak_memory") if most is None else most
    if most is None:
        return NONE
    return f"{most / _GIB:.1f}" + (f"/{size / _GIB:.1f}" if size else "")


def _mfu(case: CaseResult) -> str:
    value = case.median("mfu")
    return NONE if value is None else quantity(value, "share").replace(" ", "")


def _number(value: float | None, digits: int) -> str:
    """Return a number without thousands separators, as in FlagPerf's tables."""
    return NONE if value is None else plain(value, digits).replace(",", "")
