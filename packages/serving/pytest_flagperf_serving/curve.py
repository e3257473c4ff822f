"""The curve of a case: what a device gives over what a user gets, and that of another run at equal speeds of a user."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from flagperf_driver.perflog import number
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.outcome import Outcome

from .suite import OVER, RATE

USER, DEVICE = "user_rate", "device_rate"
Pair = tuple[float, float]


def points(outcomes: Sequence[Outcome]) -> dict[float, Pair]:
    """Return by the number of requests at once the rates of a user and of a device, medians over rounds."""
    values: dict[float, list[Pair]] = {}
    for outcome in outcomes:
        for point in outcome.points if outcome.ok else ():
            pair = point.figures.get(USER, math.nan), point.figures.get(DEVICE, math.nan)
            if OVER in point.values and all(map(math.isfinite, pair)):
                values.setdefault(number(point.values[OVER]), []).append(pair)
    return {users: (median(x for x, _ in of_one), median(y for _, y in of_one)) for users, of_one in values.items()}


def ratio(old: Sequence[Outcome], new: Sequence[Outcome]) -> list[str]:
    """Return a sentence: how much more a device of the new run gives at equal speeds of a user."""
    curves = [sorted(points(outcomes).values()) for outcomes in (old, new)]
    if min(map(len, curves)) < 2:
        return []
    low, high = max(one[0][0] for one in curves), min(one[-1][0] for one in curves)
    if low > high:
        return ["no speed of a user is in both curves, so they have no ratio"]
    speeds = sorted({low, high, *(x for one in curves for x, _ in one if low < x < high)})
    logs = [math.log(_at(curves[1], speed) / _at(curves[0], speed)) for speed in speeds]
    between = f"{quantity(low, RATE)} to {quantity(high, RATE)} of a user"
    return [f"at equal speeds, {between}, a device gives {math.exp(fmean(logs)):.2f} times the tokens/s"]


def _at(curve: Sequence[Pair], speed: float) -> float:
    """Return the rate of a device at a speed of a user, on the line between the two points beside it."""
    for (x, y), (right, above) in pairwise(curve):
        if x <= speed <= right and right > x:
            return y + (above - y) * (speed - x) / (right - x)
    return next(y for x, y in curve if x == speed)
