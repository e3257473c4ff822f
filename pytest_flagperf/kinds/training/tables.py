"""The tables of trainings: at the end of a run, and in Markdown with the columns of FlagPerf's model READMEs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress

from pytest_flagperf.case import Case
from pytest_flagperf.report.export.markdown import NONE, configuration, deviations
from pytest_flagperf.report.terminal.table import NOISE, NOTHING, Row, aligned, all_rows, without_mfu
from pytest_flagperf.results.figures.units import compared, plain, quantity
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult, last_quality

_SHORTER: tuple[dict[str, bool], ...] = ({}, {"with_target": False}, {"named": False, "with_target": False})
"""What the metric of a case loses, one after the other, to fit."""


def lines(cases: Sequence[CaseResult], width: int) -> list[str]:
    """Return the table with the most columns that fits; if none fits, each name has its own line."""
    whole = all_rows(cases)
    for table in _narrower(cases, whole):
        lines = aligned(without_mfu(table))
        if max(map(len, lines)) <= width:
            return lines
    head, *lines = aligned(without_mfu([("", *row[1:]) for row in _brief(cases, whole, named=False)]))
    metrics = [f" ({case.outcomes[0].target.name})" if case.outcomes else "" for case in cases]
    names = [f"{case.case}{metric}" for case, metric in zip(cases, metrics, strict=True)]
    return ["case", head, *chain.from_iterable(zip(names, lines, strict=True))]


def _narrower(cases: Sequence[CaseResult], whole: list[Row]) -> Iterator[list[Row]]:
    """Yield the table, then narrower ones."""
    yield whole
    yield _brief(cases, whole)
    short = [(name, *row[1:]) for name, row in zip(_short_names(cases), whole, strict=True)]
    for options in _SHORTER:
        yield _brief(cases, short, **options)


def _brief(
    cases: Sequence[CaseResult], whole: Sequence[Row], *, named: bool = True, with_target: bool = True
) -> list[Row]:
    """Return the columns of the most important figures."""
    metrics = [metric(case.outcomes, named=named, with_target=with_target) or NOTHING for case in cases]
    return [
        (name, done, quality, p_core, mfu, NOISE if speedup.endswith(NOISE) else speedup, time)
        for (name, _, done, _, _, _, p_core, mfu, speedup, time), quality in zip(
            whole, ["metric", *metrics], strict=True
        )
    ]


def _short_names(cases: Sequence[CaseResult]) -> list[str]:
    """Return a head with what all names share, and each case's model and shape, with what differs between them."""
    parsed = [Case.parse(case.case) for case in cases]
    others = [(case.framework, case.hardware) for case in parsed]
    differ = [len(set(values)) > 1 for values in zip(*others, strict=True)]
    shared = ", ".join(compress(others[0], (not one for one in differ)))
    return [
        f"case ({shared})" if shared else "case",
        *(
            " ".join(filter(None, [case.model, *compress(other, differ), str(case.shape), case.variant_name]))
            for case, other in zip(parsed, others, strict=True)
        ),
    ]


def metric(outcomes: Sequence[Outcome], *, named: bool = True, with_target: bool = True) -> str:
    """Return each metric, with its target; empty if no finished round had a target to reach."""
    value = last_quality(outcomes)
    if value is None:
        return ""
    target = outcomes[0].target
    cells: list[str] = []
    for name, limit in target.values.items():
        last = value if name == target.name else last_quality(outcomes, name)
        got, expected = compared(last, limit, target.unit)
        goal = f" ({target.sign} {expected})" if with_target else ""
        cells.append(f"{f'{name} ' if named or cells else ''}{got}{goal}")
    return ", ".join(cells)


# -- Markdown ------------------------------------------------------------------------------------------------

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
    """Return the cells of a case in the order of ``figure_names``: the medians over the rounds that count."""
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
