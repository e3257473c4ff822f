"""The table of a case's figures over its rounds: median, variation and confidence interval."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pytest_flagperf.report.terminal.table import NOTHING, aligned
from pytest_flagperf.results.figures.statistics import SURE, Summary, few, summarize
from pytest_flagperf.results.figures.units import SCALED, plain, quantity
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.verdicts.case_result import CaseResult

MAIN = ("e2e_time", "time_to_target", "p_whole", "p_train", "p_core", "step_time_p50", "step_time_p99", "mfu")
_HEAD = ("", "median", "lowest", "highest", "variation", f"mean, {quantity(SURE, 'share', 3)} interval")

_LOWEST = _HEAD.index("lowest")


def over_rounds(case: CaseResult, width: int, names: Collection[str] | None = None) -> Iterator[str]:
    """Yield a table of the named metrics, or of all metrics; then outliers, and a note if there are too few rounds."""
    outcomes = [outcome for outcome in case.outcomes if outcome.ok]
    records: dict[str, MetricValue] = {}
    for outcome in outcomes:
        for metric in outcome.metrics:
            if names is None or metric.name in names or metric.name == outcome.target.name:
                records.setdefault(metric.name, metric)
    summaries = {name: summarize(outcome.value(name) for outcome in outcomes) for name in records}
    yield f"{case.case}, over {len(outcomes)} of {len(case.outcomes)} rounds:"
    if not summaries:
        return
    rows = [_HEAD, *(_row(records[name], summary) for name, summary in summaries.items())]
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


def _row(metric: MetricValue, summary: Summary) -> tuple[str, ...]:
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
