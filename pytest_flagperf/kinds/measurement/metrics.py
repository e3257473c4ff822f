"""The metrics of a measurement: the figures that its suite declares, times and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flagperf_driver.node.logs.ranklog import RankLog
from pytest_flagperf.results.logs.points import of_ranks, point_of
from pytest_flagperf.results.measured.metrics import MetricValue, memory, times
from pytest_flagperf.stored.plan import StoredPlan


def of_round(plan: StoredPlan, logs: Sequence[RankLog]) -> Iterator[MetricValue]:
    """Yield the declared figures, each of one point of all ranks together, and the times of a rank that ended."""
    points = of_ranks((log.points for log in logs), plan.figures)
    for figure in plan.figures:
        point = point_of(figure, points)
        if point is not None:
            among = sum(figure.name in other.figures for other in points)
            which = f"the {figure.pick} of {among:,} points" if among > 1 else "the only point"
            clock = f", {point.clock}" if point.clock else ""
            ranks = f", of the worst of {plan.cards:,} ranks" if plan.cards > 1 else ""
            how = f"{point.name}, {which}{ranks}{clock}"
            value = point.figures[figure.name]
            yield MetricValue(figure.name, value, figure.unit, figure.direction, how, point.windows or None)
    first = next((log for log in logs if log.finished is not None), logs[0])
    yield from times(first.finished or {}, first.rank)
    yield from memory(plan, logs)
