"""Compare a measurement with a bare loop of the same calls, alternating, by the time without waiting for a core."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from flagperf_driver.measuring.loop import Loop, Measured, PointLimits
from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.measuring.program import core_wait
from flagperf_driver.training.timeline import HostMarks

PIECE_S = 0.15
FEWEST, MOST = 5, 40
"""Pairs of pieces; more than the fewest only while the ratio is outside of the bounds, on a busy machine."""


def ratio(measurement: Measurement, point: Point, call: Callable[[], object], within: float) -> float:
    """Return the time of an iteration of the measurement divided by that of the call: the median over the pairs."""
    ratios: list[float] = []
    while len(ratios) < MOST:
        ratios.append(_measured(measurement, point) / _bare(call))
        middle = statistics.median(ratios)
        if len(ratios) >= FEWEST and abs(middle - 1) <= within:
            break
    return statistics.median(ratios)


def _measured(measurement: Measurement, point: Point) -> float:
    limits = PointLimits(warmup_s=0.02, least_s=PIECE_S, most_s=PIECE_S + 0.05)
    loop = Loop(_One(measurement, point), HostMarks(), limits, core_wait=lambda: core_wait(1), owns_time=True)
    (result,) = loop.measure()
    assert isinstance(result, Measured)
    assert result.own is not None
    return result.own


def _bare(call: Callable[[], object]) -> float:
    """Return the mean time of a call in a loop as a user writes it, less what the process waited for a core."""
    call()
    begin, waited = time.perf_counter(), core_wait(1) or 0.0
    count = 0
    while count < FEWEST or time.perf_counter() - begin < PIECE_S:
        call()
        count += 1
    waited = (core_wait(1) or 0.0) - waited
    return (time.perf_counter() - begin - waited) / count


class _One(Measurement):
    """One point of a measurement."""

    def __init__(self, measurement: Measurement, point: Point) -> None:
        self._point = point
        self.work, self.prepare = measurement.work, measurement.prepare  # type: ignore[method-assign]
        self.run, self.release = measurement.run, measurement.release  # type: ignore[method-assign]

    def points(self) -> Any:
        return [self._point]

    def work(self, point: Point) -> Any: ...

    def prepare(self, point: Point) -> None: ...

    def run(self, iterations: int) -> None: ...
