"""The table of cases at the end of a run; it fits 80 columns and uses a wider terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, compress
from typing import TypeAlias

from pytest_flagperf.case import Case
from pytest_flagperf.results.figures.statistics import SURE, Summary, few, summarize
from pytest_flagperf.results.figures.units import SCALED, compared, plain, quantity
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.case_result import CaseResult, last_quality

MAIN = ("e2e_time", "time_to_target", "p_whole", "p_train", "p_core", "step_time_p50", "step_time_p99", "mfu")
_ROUNDS_HEAD = ("", "median", "lowest", "highest", "variation", f"mean, {quantity(SURE, 'share', 3)} interval")

_LOWEST = _ROUNDS_HEAD.index("lowest")
NOTHING = "-"
Row: TypeAlias = tuple[str, ...]
_MFU = "MFU"
_HEAD: Row = ("case", "rounds", "converged", "metric", "p_whole", "p_train", "p_core", _MFU, "speedup", "e2e")
_MEASURED_HEAD = ("case", "figure", "median", "of peak", "rounds", "e2e")
_GAP = "  "
_NOISE = "noise"
_SHORTER: tuple[dict[str, bool], ...] = ({}, {"with_target": False}, {"named": False, "with_target": False})
"""What the metric of a case loses, one after the other, to fit."""


def console_table(cases: Sequence[CaseResult], width: int = 80) -> list[str]:
    """Return a table with one line per training, of the columns that fit; and one with the figures of measurements."""
    if not cases:
        return ["no results"]
    measurements = [case for case in cases if any(not outcome.is_training for outcome in case.outcomes)]
    trainings = [case for case in cases if case not in measurements]
    lines = _fitting(trainings, width) if trainings else []
    gap = [""] if trainings and measurements else []
    return [*lines, *gap, *(_figures(measurements, width) if measurements else [])]


def _fitting(cases: Sequence[CaseResult], width: int) -> list[str]:
    """Return the table with the most columns that fits; if none fits, each name has its own line."""
    whole = [_HEAD, *map(_row, cases)]
    for table in _narrower(cases, whole):
        lines = aligned(_without_mfu(table))
        if max(map(len, lines)) <= width:
            return lines
    head, *lines = aligned(_without_mfu([("", *row[1:]) for row in _brief(cases, whole, named=False)]))
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


def _figures(cases: Sequence[CaseResult], width: int) -> list[str]:
    """Return one line per figure of each measurement; the name of the case has its own line if they do not fit."""
    table = [_MEASURED_HEAD, *(row for case in cases for row in _figure_rows(case))]
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
    ends = f"{sum(outcome.ok for outcome in case.outcomes)}/{len(case.outcomes)}", _time(case)
    name = case.case
    for figure, value in [pair for pair in medians if pair[1] is not None] or medians[:1]:
        share = quantity(value / figure.peak, "share") if figure.peak and value is not None else NOTHING
        yield (name, figure.name, NOTHING if value is None else quantity(value, figure.unit), share, *ends)
        name, ends = "", ("", "")


def rows(cases: Sequence[CaseResult]) -> list[Row]:
    """Return the cells of the table, the head first; the MFU column is left out if it is empty."""
    return _without_mfu([_HEAD, *map(_row, cases)])


def _without_mfu(table: list[Row]) -> list[Row]:
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
        _time(case),
    )


def _brief(
    cases: Sequence[CaseResult], whole: Sequence[Row], *, named: bool = True, with_target: bool = True
) -> list[Row]:
    """Return the columns of the most important figures."""
    metrics = [metric(case.outcomes, named=named, with_target=with_target) or NOTHING for case in cases]
    return [
        (name, done, quality, p_core, mfu, _NOISE if speedup.endswith(_NOISE) else speedup, time)
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
    if not all(outcome.is_training for outcome in case.outcomes):
        return NOTHING
    if case.converged is None:
        return "parity" if any(outcome.parity_samples is not None for outcome in case.outcomes) else "not tested"
    return f"{case.converged}/{case.meant}"


def metric(outcomes: Sequence[Outcome], *, named: bool = True, with_target: bool = True) -> str:
    """Return each metric, with its target, or the first figure of a measurement with its share of the chip's peak.

    Empty if no finished round has the figure, or had a target to reach.
    """
    if outcomes and not outcomes[0].is_training:
        return _measured(outcomes, named=named)
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


def _measured(outcomes: Sequence[Outcome], *, named: bool) -> str:
    first = outcomes[0]
    value = summarize(outcome.value(first.main) for outcome in outcomes if outcome.ok).median
    if value is None:
        return ""
    peak = first.figures[0].peak
    share = f" ({quantity(value / peak, 'share')} of the peak)" if peak else ""
    return f"{f'{first.main} ' if named else ''}{quantity(value, first.rate_unit)}{share}"


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
    return quantity(case.speedup, "x") + (f" {_NOISE}" if case.speedup > case.outcomes[0].cards else "")


def _time(case: CaseResult) -> str:
    value = case.median("e2e_time")
    return NOTHING if value is None else quantity(value, "s")


def over_rounds(case: CaseResult, width: int, names: Collection[str] | None = None) -> Iterator[str]:
    """Yield a table of the named metrics, or of all metrics; then outliers, and a note if there are too few rounds."""
    outcomes = [outcome for outcome in case.outcomes if outcome.ok]
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
