"""The charts of serving: the curve that buyers read, and the figures over the number of requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flagperf_driver.perflog import number
from pytest_flagperf.kinds.measurement import charts as measured
from pytest_flagperf.report.charts import Band, Chart, ChartLine, make_chart
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.outcome import Outcome

from . import curve
from .suite import LIMITS, OVER, RATE, TOKEN_LIMIT
from .tables import mark

_FIRST = "ttft_"


def charts(outcomes: Sequence[Outcome]) -> Iterator[Chart | None]:
    """Yield the curve, then the time to the first token and the other figures over the number of requests at once."""
    figures = outcomes[0].figures if outcomes else ()
    if {curve.USER, curve.DEVICE} <= {figure.name for figure in figures}:
        yield _curve(outcomes)
    rates = [figure for figure in figures if figure.unit == RATE]
    # A first token takes much longer than the others, whose lines would lie on each other.
    first = [figure for figure in figures if figure.name.startswith(_FIRST)]
    others = [figure for figure in figures if figure not in rates and figure not in first]
    for group in (first, rates, others):
        yield from measured.charts([replace(outcome, figures=tuple(group)) for outcome in outcomes])


def _curve(outcomes: Sequence[Outcome]) -> Chart | None:
    """Return what all devices give over what a user gets: a point for each number of requests at once."""
    values = curve.points(outcomes)
    if len(values) < 2:
        return None
    users, pairs = zip(*sorted(values.items(), key=lambda one: one[1]), strict=True)
    labels = tuple(f"{one:g}" for one in users)
    line = ChartLine(curve.DEVICE, [x for x, _ in pairs], [y for _, y in pairs], labels=labels)
    title = f"tokens/s of a device over tokens/s of a user{mark(outcomes)}"
    chart = make_chart(title, "tokens/s of a user", RATE, [line])
    bands = tuple(_bands(outcomes[0], pairs[-1][0]))
    return chart and replace(chart, floor=0.0, summary="highest", note="by requests at once", bands=bands)


def _bands(outcome: Outcome, fastest: float) -> Iterator[Band]:
    """Yield where users are served as fast as limits ask for, up to the fastest point."""
    facts = next((point.facts for point in outcome.points if OVER in point.values), {})
    for name in LIMITS:
        limit = number(facts.get(f"{name}_{TOKEN_LIMIT}"))
        if limit > 0 and 1 / limit < fastest:
            yield Band(f"{name}: at most {quantity(limit, 's')} for a token", 1 / limit, fastest)
