"""The table of trainings at the end of a run; it fits 80 columns and uses a wider terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress

from pytest_flagperf.case import Case
from pytest_flagperf.report.terminal.table import NOISE, NOTHING, Row, aligned, all_rows, without_mfu
from pytest_flagperf.results.figures.units import compared
from pytest_flagperf.results.measured.outcome import Outcome
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
            " ".join([case.model, *compress(other, differ), str(case.shape)])
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
