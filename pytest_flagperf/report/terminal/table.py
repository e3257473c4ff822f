"""The table of cases at the end of a run; it fits 80 columns and uses a wider terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

from pytest_flagperf.kind import kind_of
from pytest_flagperf.results.figures.statistics import SURE, Summary, few, summarize
from pytest_flagperf.results.figures.units import SCALED, plain, quantity
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored.plan import TRAINING

MAIN = ("e2e_time", "time_to_target", "p_whole", "p_train", "p_core", "step_time_p50", "step_time_p99", "mfu")
_ROUNDS_HEAD = ("", "median", "lowest", "highest", "variation", f"mean, {quantity(SURE, 'share', 3)} interval")

_LOWEST = _ROUNDS_HEAD.index("lowest")
NOTHING = "-"
Row: TypeAlias = tuple[str, ...]
_MFU = "MFU"
_HEAD: Row = ("case", "rounds", "converged", "metric", "p_whole", "p_train", "p_core", _MFU, "speedup", "e2e")
_GAP = "  "
NOISE = "noise"


def console_table(cases: Sequence[CaseResult], width: int = 80) -> list[str]:
    """Return a table for the cases of each kind of suites, first that of trainings."""
    if not cases:
        return ["no results"]
    groups: dict[str, list[CaseResult]] = {}
    for case in sorted(cases, key=lambda case: case.kind != TRAINING):
        groups.setdefault(case.kind, []).append(case)
    first, *others = [kind_of(group[0]).lines(group, width) for group in groups.values()]
    return [*first, *(line for lines in others for line in ("", *lines))]


def rows(cases: Sequence[CaseResult]) -> list[Row]:
    """Return the cells of the table, the head first; the MFU column is left out if it is empty."""
    return without_mfu(all_rows(cases))


def all_rows(cases: Sequence[CaseResult]) -> list[Row]:
    """Return the cells of all columns, the head first."""
    return [_HEAD, *map(_row, cases)]


def without_mfu(table: list[Row]) -> list[Row]:
    """Return the table without the column of the MFU if no case has an MFU."""
    at = table[0].index(_MFU)
    if all(row[at] == NOTHING for row in table[1:]):
        return [(*row[:at], *row[at + 1 :]) for row in table]
    return table


def _row(case: CaseResult) -> Row:
    return (
        case.case,
        f"{sum(outcome.ok for outcome in case.outcomes)}/{len(case.outcomes)}",
        converged(case),
        metric(case.outcomes) or NOTHING,
        *(_rate(case, name) for name in ("p_whole", "p_train")),
        _rate(case, "p_core", with_unit=True),
        _share(case, "mfu"),
        _speedup(case),
        time_of(case),
    )


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return the rows as aligned text, the first ``left`` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def converged(case: CaseResult) -> str:
    """Return how many of the rounds that should converge did; a parity or throughput-only case has none of them."""
    if not kind_of(case).converges:
        return NOTHING
    if case.converged is None:
        return "parity" if any(outcome.parity_samples is not None for outcome in case.outcomes) else "not tested"
    return f"{case.converged}/{case.meant}"


def metric(outcomes: Sequence[Outcome], *, named: bool = True, with_target: bool = True) -> str:
    """Return the result of a case in a few words; empty if no finished round has one."""
    return kind_of(outcomes[0]).metric(outcomes, named=named, with_target=with_target) if outcomes else ""


def _rate(case: CaseResult, name: str, *, with_unit: bool = False) -> str:
    value = case.median(name)
    if value is None:
        return NOTHING
    return quantity(value, case.outcomes[0].rate_unit) if with_unit else plain(value)


def _share(case: CaseResult, name: str) -> str:
    value = case.median(name)
    return NOTHING if value is None else quantity(value, "share")


def _speedup(case: CaseResult) -> str:
    """Return the speed-up in a few words; the warnings below the table have the sentences."""
    if case.speedup is None:
        return NOTHING
    return quantity(case.speedup, "x") + (f" {NOISE}" if case.speedup > case.outcomes[0].cards else "")


def time_of(case: CaseResult) -> str:
    """Return the median time of a round."""
    value = case.median("e2e_time")
    return NOTHING if value is None else quantity(value, "s")


def over_rounds(case: CaseResult, width: int, names: Collection[str] | None = None) -> Iterator[str]:
    """Yield a table of the named metrics, or of all metrics; then outliers, and a note if there are too few rounds."""
    outcomes = case.counted
    records: dict[str, MetricValue] = {}
    for outcome in outcomes:
        for metric in outcome.metrics:
            if names is None or metric.name in names or metric.name in (outcome.target.name, *outcome.judged):
                records.setdefault(metric.name, metric)
    summaries = {name: summarize(outcome.value(name) for outcome in outcomes) for name in records}
    yield f"{case.case}, over {len(outcomes)} of {len(case.outcomes)} rounds:"
    if not summaries:
        return
    rows = [_ROUNDS_HEAD, *(_figure_row(records[name], summary) for name, summary in summaries.items())]
    if max(map(len, aligned(rows))) + 2 > width:
        rows = [(*row[:_LOWEST], *row[_LOWEST + 2 :]) for row in rows]
    yield from (f"  {line}" for line in aligned(rows))
    for name, summary in summaries.items():
        rounds = [str(outcomes[index].round) for index in summary.outliers]
        if rounds:
            yield f"  {name}: {'outlier' if len(rounds) == 1 else 'outliers'}: round {', '.join(rounds)}"
    too_few = few(len(outcomes))
    if too_few:
        yield f"  {too_few}"


def _figure_row(metric: MetricValue, summary: Summary) -> tuple[str, ...]:
    median = NOTHING if summary.median is None else quantity(summary.median, metric.unit)
    lowest, highest = _value(metric, summary.lowest), _value(metric, summary.highest)
    variation = NOTHING if summary.variation is None else quantity(summary.variation, "share")
    return (metric.name, median, lowest, highest, variation, _interval(metric, summary))


def _interval(metric: MetricValue, summary: Summary) -> str:
    if summary.interval is None or not summary.mean:
        return NOTHING
    low, high = summary.interval
    return f"{_value(metric, summary.mean)} ± {quantity((high - low) / 2 / abs(summary.mean), 'share')}"


def _value(metric: MetricValue, value: float | None) -> str:
    """Return the value without its unit, which is shown with the median, unless the unit scales the number."""
    if value is None:
        return NOTHING
    return plain(value) if metric.unit not in SCALED else quantity(value, metric.unit)
