"""A case's figures over its rounds: the middle, the spread, and how far both can be trusted."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pytest_flagperf.report.terminal.table import NOTHING, aligned
from pytest_flagperf.results.comparing.statistics import SURE, Summary, few, summarize
from pytest_flagperf.results.measured.metrics import Metric
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.units import SCALED, plain, quantity

MAIN = ("e2e_time", "time_to_target", "p_whole", "p_train", "p_core", "step_time_p50", "step_time_p99", "mfu")
_HEAD = ("", "median", "lowest", "highest", "varies by", f"mean, sure to {quantity(SURE, 'share', 3)}")

_LOWEST = _HEAD.index("lowest")


def over_rounds(case: CaseResult, width: int, names: Collection[str] | None = None) -> Iterator[str]:
    """A table of the named metrics, or of all; then which rounds lie apart, and whether there are too few."""
    outcomes = [outcome for outcome in case.outcomes if outcome.ok]
    records: dict[str, Metric] = {}
    for outcome in outcomes:
        for metric in outcome.metrics:
            if names is None or metric.name in names or metric.name == outcome.target.name:
                records.setdefault(metric.name, metric)
    found = {name: summarize(outcome.value(name) for outcome in outcomes) for name in records}
    yield f"{case.case}, over {len(outcomes)} of {len(case.outcomes)} rounds:"
    if not found:
        return
    rows = [_HEAD, *(_row(records[name], one) for name, one in found.items())]
    if max(map(len, aligned(rows))) + 2 > width:
        rows = [(*row[:_LOWEST], *row[_LOWEST + 2 :]) for row in rows]
    yield from (f"  {line}" for line in aligned(rows))
    for name, one in found.items():
        apart = [str(outcomes[place].round) for place in one.outliers]
        if apart:
            those = f"round {apart[0]} lies" if len(apart) == 1 else f"rounds {', '.join(apart)} lie"
            yield f"  {name}: {those} apart from the others"
    too_few = few(len(outcomes))
    if too_few:
        yield f"  {too_few}"


def _row(metric: Metric, one: Summary) -> tuple[str, ...]:
    middle = NOTHING if one.median is None else quantity(one.median, metric.unit)
    varies = NOTHING if one.variation is None else quantity(one.variation, "share")
    return (metric.name, middle, _said(metric, one.lowest), _said(metric, one.highest), varies, _sure(metric, one))


def _sure(metric: Metric, one: Summary) -> str:
    if one.interval is None or not one.mean:
        return NOTHING
    low, high = one.interval
    return f"{_said(metric, one.mean)} ± {quantity((high - low) / 2 / abs(one.mean), 'share')}"


def _said(metric: Metric, value: float | None) -> str:
    """Without a unit that merely follows the number: it stands beside the middle."""
    if value is None:
        return NOTHING
    return plain(value) if metric.unit not in SCALED else quantity(value, metric.unit)
