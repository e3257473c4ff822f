"""The measuring loop: how long one iteration takes, how certain that is, and whether the device changed meanwhile.

A point is measured in short windows. Several windows back to back are a turn; between two turns the ranks agree whether
to go on, so that all of them begin each turn together and run the same number of iterations.
"""

from __future__ import annotations

import math
import statistics as stats
import sys
import time
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterator, Mapping, Sequence

from flagperf_driver.driver import Config
from flagperf_driver.measuring import statistics
from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.training.timeline import Marks

FEWEST_WINDOWS = 3
"""Measured for each point, whatever its time."""
_TURN_WINDOWS = 12
_TURN_S = 0.25
"""The longest turn: with long windows a turn has fewer of them, as ranks are compared turn by turn."""
_LONG_TURN_S = 0.5
"""The length of a turn of a point that is measured for a fixed time: it pauses less often."""
_LOGGED_TURNS = 8
_CLOCK_SHARE = 1000
"""A window is so many times longer than an empty one."""


@dataclass(frozen=True)
class PointLimits:
    """When a window is long enough, and when a point is done; the keys of the config with the same meaning."""

    window_s: float = 0.01
    warmup_s: float = 0.3
    least_s: float = 1.0
    most_s: float = 3.0
    interval: float = 0.01

    @classmethod
    def of(cls, config: Config) -> PointLimits:
        return cls(
            config.window_s, config.point_warmup_s, config.point_least_s, config.point_most_s, config.point_interval
        )


@dataclass(frozen=True)
class TimedTurn:
    """Windows that all ranks begin together: the mean time of an iteration, with and without waiting for a core."""

    windows: int
    seconds: float
    waited: float | None
    """As a share of the time; None if the host does not count it."""

    @property
    def own(self) -> float | None:
        return None if self.waited is None else self.seconds * (1 - self.waited)


@dataclass(frozen=True)
class Measured:
    """The result of a point; all times are those of one iteration, and None if nothing was timed."""

    point: Point
    figures: Mapping[str, float]
    spent_s: float
    seconds: float | None = None
    """The median of the windows."""
    interval: float | None = None
    """Half of its 95 % confidence interval, as a share of it; None with too few windows."""
    best: float | None = None
    """The median of the fastest tenth: the device without what disturbs it."""
    sustained: float | None = None
    """The mean: what a training gets."""
    iterations: int = 0
    """Of one window."""
    windows: int = 0
    steady: bool = True
    """False if the time was spent before the interval was narrow enough."""
    drift: float | None = None
    """By which share an iteration was longer at the end than at the begin; None if it was not."""
    sides: tuple[float, float] | None = None
    """The times of two speeds, if the device has two: then no single figure describes it."""
    waited: float | None = None
    """The share of the time in which the rank was ready and had no core."""
    own: float | None = None
    """The time without this waiting; only for a host's processor, one thread, and ranks that do not wait for others."""
    turns: Sequence[Mapping[str, Any]] = ()
    """Begun by all ranks together, for the comparison of ranks; none if they work together."""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SlowPoint:
    """A point that would take too long, with the expected time of one iteration."""

    point: Point
    expected_s: float


@dataclass(frozen=True)
class Loop:
    """Measures the points of a measurement one after the other, on all ranks at the same time."""

    measurement: Measurement
    marks: Marks
    limits: PointLimits
    maximum: Callable[[Sequence[float]], list[float]] = list
    """Returns the maximum of each value over all ranks; every rank must call it equally often."""
    core_wait: Callable[[], float | None] = lambda: None
    """Returns for how long the rank has waited for a core so far; None if the host does not count it."""
    owns_time: bool = False
    """True if the time of an iteration includes all of this waiting."""
    beat: Callable[[], None] = lambda: None
    """Called after each turn."""
    now: Callable[[], float] = time.perf_counter

    def measure(self) -> Iterator[Measured | SlowPoint]:
        """Yield the result of each point when it is complete."""
        speeds: dict[str, Mapping[str, float]] = {}
        names: set[str] = set()
        for point in self.measurement.points():
            if point.name in names:
                raise ValueError(f"points() returned two points named {point.name!r}; each needs a name of its own")
            names.add(point.name)
            work = self.measurement.work(point)
            limits = self._limits_of(point)
            known = speeds.get(point.series, {}) if point.series else {}
            expected = max((units / known[name] for name, units in work.items() if known.get(name)), default=0.0)
            expected = self._agreed(point, expected)
            if expected * FEWEST_WINDOWS > limits.most_s:
                yield SlowPoint(point, expected)
                continue
            begin = self.now()
            self.measurement.prepare(point)
            try:
                result = self._timed(point, limits) if work else Measured(point, {}, 0.0)
                seconds = result.seconds if point.seconds is None else result.sustained
                self.measurement.check(point)
                facts = self.measurement.facts()
                figures = self.measurement.figures(point, math.nan if seconds is None else seconds)
            finally:
                self.measurement.release()
            if result.seconds:
                speeds[point.series] = {name: units / result.seconds for name, units in work.items()}
            self.beat()
            yield replace(result, figures=figures, facts=facts, spent_s=self.now() - begin)
        self._agreed(None)

    def _agreed(self, point: Point | None, expected: float = 0.0) -> float:
        """Return the longest expected time of all ranks; raise an error on every rank if their next points differ.

        Ranks at different points, or one after its last point, would wait for each other for ever.
        """
        number = 0 if point is None else 1 + zlib.crc32(point.name.encode())
        longest, most, least = self.maximum([expected, number, -number])
        if most == -least:
            return longest
        if point is None:
            problem = "this rank has no further point, another rank has one"
        else:
            problem = f"this rank has the point {point.name!r}, another rank has {'another' if least else 'none'}"
        raise ValueError(
            f"{problem}: expected points() to return the same points on every rank; do they depend on what differs"
            " between hosts, such as free memory or versions?"
        )

    def _limits_of(self, point: Point) -> PointLimits:
        if point.seconds is None:
            return self.limits
        return replace(self.limits, least_s=point.seconds, most_s=self.limits.warmup_s + point.seconds)

    def _timed(self, point: Point, limits: PointLimits) -> Measured:
        begin = self.now()
        iterations = self._warm_up(limits, begin)
        times: list[float] = []
        turns: list[TimedTurn] = []
        fixed = point.seconds is not None
        longest_s, most = (_LONG_TURN_S, sys.maxsize) if fixed else (_TURN_S, _TURN_WINDOWS)
        first = self.now()
        count = FEWEST_WINDOWS
        while True:
            turn = self._turn(iterations, count, times)
            turns.append(turn)
            self.beat()
            now = self.now()
            left = (first + limits.least_s if fixed else begin + limits.most_s) - now
            unsettled = not fixed and not self._decided(times, limits)
            early = now - first < limits.least_s
            # One exchange per turn, and the same decision on every rank.
            room = min(left, longest_s) / (iterations * turn.seconds)
            more, spent, fewest = self.maximum([unsettled or early, left <= 0, -room])
            if spent or not more:
                break
            count = max(1, min(most, int(-fewest)))
        steady = not self.maximum([not statistics.settled(times, limits.interval)])[0]
        return self._result(point, times, turns, iterations, steady)

    @staticmethod
    def _decided(times: Sequence[float], limits: PointLimits) -> bool:
        return statistics.settled(times, limits.interval) and statistics.sides(times, statistics.SUSPECTED) is None

    def _warm_up(self, limits: PointLimits, begin: float) -> int:
        """Run until the device is warm; return the iterations of a window, the same on all ranks.

        They follow from the fastest iterations: a rank that loses its core meanwhile must not get short windows.
        """
        empty = [self.marks.mark() for _ in range(11)]
        resolution = self.maximum([stats.median(self.marks.seconds(empty))])[0]
        least = max(limits.window_s, _CLOCK_SHARE * resolution)
        iterations, fastest = 1, math.inf
        while True:
            line = [self.marks.mark()]
            self.measurement.run(iterations)
            line.append(self.marks.mark())
            seconds, warm = self.maximum([self.marks.seconds(line)[0], begin - self.now()])
            self.beat()
            fastest = min(fastest, max(seconds, 1e-9) / iterations)
            if iterations * fastest < least:
                # Tenfold at most, because the first iterations are slower: compilation, page faults, low clocks.
                iterations = max(iterations + 1, math.ceil(min(10.0 * iterations, 1.2 * least / fastest)))
            elif -warm >= limits.warmup_s:
                return max(1, round(least / fastest))

    def _turn(self, iterations: int, count: int, times: list[float]) -> TimedTurn:
        """Submit windows back to back, then wait for all of them: the device has no pause between two windows."""
        begin, waited = self.now(), self.core_wait()
        line = [self.marks.mark()]
        for _ in range(count):
            self.measurement.run(iterations)
            line.append(self.marks.mark())
        seconds = self.marks.seconds(line)
        # As a share of the host's time between both readings: the rank may also wait for a core beside the windows.
        after, spent = self.core_wait(), self.now() - begin
        share = None if waited is None or after is None or not spent else (after - waited) / spent
        if self.measurement.together:
            seconds = self.maximum(seconds)
        times += [gap / iterations for gap in seconds]
        return TimedTurn(count, sum(seconds) / (count * iterations), share)

    def _result(
        self, point: Point, times: Sequence[float], turns: Sequence[TimedTurn], iterations: int, steady: bool
    ) -> Measured:
        interval, drift = statistics.interval(times), statistics.drift(times)
        whole = _joined(turns)
        own = [turn.own for turn in turns if turn.own is not None and self._is_own_time]
        return Measured(
            point=point,
            figures={},
            spent_s=0.0,
            seconds=stats.median(times),
            interval=interval if math.isfinite(interval) else None,
            best=statistics.best(times),
            sustained=stats.fmean(times),
            iterations=iterations,
            windows=len(times),
            steady=steady,
            drift=drift,
            sides=None if drift is not None else statistics.sides(times),
            waited=whole.waited,
            own=stats.median(own) if own else None,
            turns=() if self.measurement.together else [self._logged(turn) for turn in _logged_turns(turns)],
        )

    def _logged(self, turn: TimedTurn) -> dict[str, Any]:
        return {"seconds": turn.seconds, "own": turn.own if self._is_own_time else None, "waited": turn.waited}

    @property
    def _is_own_time(self) -> bool:
        return self.owns_time and not self.measurement.together


def _logged_turns(turns: Sequence[TimedTurn]) -> list[TimedTurn]:
    """Join neighbours to at most ``_LOGGED_TURNS`` of about the same number of windows; the same ones on every rank."""
    total, before = sum(turn.windows for turn in turns), 0
    joined: dict[int, list[TimedTurn]] = {}
    for turn in turns:
        middle = before + turn.windows / 2
        joined.setdefault(int(middle * _LOGGED_TURNS / total), []).append(turn)
        before += turn.windows
    return [_joined(group) for group in joined.values()]


def _joined(turns: Sequence[TimedTurn]) -> TimedTurn:
    windows = sum(turn.windows for turn in turns)
    seconds = sum(turn.seconds * turn.windows for turn in turns) / windows
    shares = [(turn.waited, turn.seconds * turn.windows) for turn in turns if turn.waited is not None]
    total = sum(weight for _, weight in shares)
    waited = sum(share * weight for share, weight in shares) / total if total else None
    return TimedTurn(windows, seconds, waited)
