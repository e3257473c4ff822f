"""The trend of a figure over the runs of a case: the level and the noise of the runs, and where the level changed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.statistics import finite, student_limit
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.outcome import Outcome, judged_at_points

from . import change_points

FEWEST = 3
"""The minimum number of runs of a trend: two runs are a comparison."""
_COMMIT = 12
"""The number of digits of a shortened commit."""


@dataclass(frozen=True)
class TrendRun:
    """The figure of a run: the values of its valid rounds, at least one."""

    name: str
    started_ms: int
    commit: str
    """The commit of the checkout, shortened; empty if it is unknown."""
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True)
class TrendLevel:
    """Runs at the same level; ``low`` and ``high``: between them lie 98 of 100 runs, if the noise is known."""

    places: range
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Trend:
    """The runs in the order of their times; ``direction``: which values are better, "higher" or "lower"."""

    figure: str
    unit: str
    direction: str | None
    runs: tuple[TrendRun, ...]

    @cached_property
    def medians(self) -> list[float]:
        return [run.median for run in self.runs]

    @cached_property
    def changes(self) -> list[int]:
        """The places of the runs at which a new level begins."""
        return change_points.find(self.medians)

    @cached_property
    def levels(self) -> list[TrendLevel]:
        reach = self._reach
        found = []
        for places in change_points.levels(len(self.runs), self.changes):
            value = statistics.median(self.medians[place] for place in places)
            low, high = (None, None) if reach is None else (value - reach, value + reach)
            found.append(TrendLevel(places, value, low, high))
        return found

    @property
    def _reach(self) -> float | None:
        """Return how far runs lie from their level by noise; None if the noise is unknown."""
        deviation = noise.spread(self.medians)
        if deviation is None or len(self.runs) < noise.FEWEST:
            return None
        return deviation * student_limit(noise.CHANCE, noise.freedom(len(self.runs)))

    @property
    def change(self) -> float | None:
        """The last change of the level as a share; None without a change."""
        if not self.changes:
            return None
        before, now = (level.value for level in self.levels[-2:])
        return (now - before) / abs(before) if before else None

    @property
    def is_worse(self) -> bool:
        """Whether the last change of the level was for the worse."""
        return self.change is not None and (self.change < 0) == (self.direction == "higher") and bool(self.direction)

    def sentences(self) -> list[str]:
        """Return a sentence for each change of the level, the last one first."""
        return [self._sentence(number) for number in reversed(range(len(self.changes)))]

    def _sentence(self, number: int) -> str:
        before, after = self.levels[number].value, self.levels[number + 1].value
        place = self.changes[number]
        first, last = self.runs[place], self.runs[place - 1]
        side = "higher" if after > before else "lower"
        share = f"{quantity(abs(after - before) / abs(before), 'share')} {side}" if before else side
        return f"{self.figure}: {share} from {_named(first)} on; the run before is {_named(last)}"


def trends_of(runs: Sequence[tuple[str, Sequence[Outcome]]]) -> list[Trend]:
    """Return the trend of the main figure over the runs, and that of each point whose level changed."""
    last = runs[-1][1][0]
    main, *points = (trend_of(name, runs) for name in (last.main, *judged_at_points(last)))
    return [one for one in (main, *(point for point in points if point and point.changes)) if one]


def trend_of(name: str, runs: Sequence[tuple[str, Sequence[Outcome]]]) -> Trend | None:
    """Return the trend of a figure over the named runs that have valid rounds with it; None for fewer than FEWEST."""
    records = [metric for _, rounds in runs for outcome in rounds if (metric := outcome.metric(name)) is not None]
    found = [_run(run, rounds, name) for run, rounds in runs if _values(rounds, name)]
    if len(found) < FEWEST:
        return None
    ordered = sorted(found, key=lambda run: run.started_ms)
    return Trend(name, records[-1].unit, records[-1].direction, tuple(ordered))


def _run(run: str, rounds: Sequence[Outcome], name: str) -> TrendRun:
    valid = [outcome for outcome in rounds if outcome.valid]
    return TrendRun(run, valid[0].started_ms or 0, short_commit(valid[0]), _values(rounds, name))


def short_commit(outcome: Outcome) -> str:
    """Return the shortened commit of the checkout, and whether it had changes; empty if it is unknown."""
    commit, _, changed = str(outcome.machine.get("commit", "")).partition(" ")
    return " ".join(filter(None, (commit[:_COMMIT], changed)))


def _values(rounds: Sequence[Outcome], name: str) -> tuple[float, ...]:
    return tuple(finite(outcome.value(name) for outcome in rounds if outcome.valid))


def _named(run: TrendRun) -> str:
    return f"{run.name} (commit {run.commit})" if run.commit else run.name
