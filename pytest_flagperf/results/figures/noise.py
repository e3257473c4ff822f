"""How much a metric varies without a cause, and the judge: whether a change from an old figure to new rounds is larger.

A run is the values of its rounds, and its figure is their median. Deviations are shares of the figure, so that messages
can name them in per cent.

The noise from run to run is measured on comparable stored runs, by the differences of neighbours: one step in the
past is one large difference, and a slow drift is many small ones, so neither counts much. With fewer than FEWEST such
runs only the deviations of the two runs' own rounds are known. They do not include what all rounds of a run share, and
the output says so.

CHANCE is 0.01. Of two runs that each have the standard deviation s, the difference has the standard error
e = s sqrt(2); where s is estimated with f degrees of freedom, a change counts if it exceeds t(f, 1 - CHANCE) e. Three
throughputs are judged together. In real runs they correlate by 0.9 and more, so that at most 3 % of unchanged runs
are judged worse. ``tests/results/figures/test_noise.py`` simulates it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_flagperf.results.figures.statistics import student_limit, student_tail
from pytest_flagperf.results.figures.units import quantity

MANY = 10
"""The minimum number of values for distinguishing outliers from noise."""
MEMORY = 30
"""The maximum number of stored runs on which noise is measured."""
FEWEST = 5
"""The minimum number of comparable runs for the noise from run to run."""
CHANCE = 0.01
"""The probability that an unchanged run is judged worse by one metric; the same for better."""
LEAST = 0.01
"""The smallest change that counts, as a share, however small the noise is."""
THRESHOLD = 0.05
"""The smallest change for the worse that counts, unless the user sets another one."""
NO_OLD, MISSING = "no old value", "missing"
WITHIN, BETTER, WORSE, CHANGED = "within noise", "better", "worse", "changed"
IMPLAUSIBLE = "not comparable"
FACTOR = 2.0
"""The improvement from which on one of two runs with the same config and machine has probably measured wrongly."""
FROM_RUNS, FROM_ROUNDS = "from run to run", "of the rounds alone"

_NORMAL = 1.4826  # of a normal distribution, the standard deviation over the median absolute deviation
_OUTLIER = 4.0
_CLIP, _CLIPPED = 2.5, 1.04  # and what clipping takes off the spread of normal values
_FREEDOM = 0.6  # degrees of freedom of one more difference: neighbours share a value, and large ones are clipped
Run = Sequence[float]


@dataclass(frozen=True)
class Noise:
    """Standard deviations as shares of the figure: of one round within its run, and of a run's median over runs."""

    within: float | None
    between: float | None
    runs: int
    rounds: float
    """The median number of rounds of a run."""

    def of(self, rounds: int) -> float:
        """Return the deviation of the median of so many rounds: at least what the rounds alone explain."""
        within, between = self.within or 0.0, self.between or 0.0
        fewer = max(0.0, 1 / rounds - 1 / self.rounds) if self.rounds else 0.0
        return max(math.sqrt(between**2 + fewer * within**2), within / math.sqrt(rounds))


@dataclass(frozen=True)
class Error:
    """The standard error of a difference between two figures, as a share, and its source."""

    share: float
    freedom: float
    source: str
    runs: int = 0
    """The number of runs on which it was measured."""

    @property
    def limit(self) -> float:
        """The change that noise exceeds in one direction with the probability CHANCE."""
        return self.share * student_limit(CHANCE, self.freedom)

    def chance(self, change: float) -> float:
        """Return the probability that noise alone makes such a change in its direction."""
        return student_tail(abs(change) / self.share, self.freedom) if self.share else 0.0


@dataclass(frozen=True)
class Level:
    """An old figure, by which new rounds are judged: of a stored run or of an accepted baseline."""

    value: float
    rounds: int
    deviation: float | None = None
    """The standard deviation of one of its rounds as a share, if known."""
    from_runs: Noise | None = None
    """The noise from run to run, if it was measured on FEWEST runs or more."""


@dataclass(frozen=True)
class Judgement:
    """``change`` and the limits are shares of the old figure; ``chance``: that noise alone makes such a change."""

    word: str
    change: float | None = None
    down: float | None = None
    up: float | None = None
    """The smallest fall and the smallest rise that count; None if any counts as no change."""
    direction: str | None = None
    chance: float | None = None
    error: Error | None = None

    @property
    def needed(self) -> float | None:
        """The smallest change for the worse that counts; without a direction, on the side of the change."""
        falls = (self.change or 0.0) < 0 if self.direction is None else self.direction == "higher"
        return self.down if falls else self.up

    @property
    def is_implausible(self) -> bool:
        """Whether the new figure is at least FACTOR times as good."""
        return self.word == BETTER and is_implausible(self.change or 0.0)

    def rule(self, least: str) -> str:
        """Return the smallest change that counts and its reason, as a sentence; ``least`` names the given bound."""
        if self.needed is None:
            return "any change is allowed"
        by_noise = self.error is not None and self.error.limit >= self.needed
        reason = f"its noise {self.error.source}" if by_noise and self.error else least
        unknown = ", noise unknown" if self.error is None else ""
        return f"a change counts from {quantity(self.needed, 'share')} on ({reason}{unknown})"


def is_implausible(improvement: float) -> bool:
    """Return True for an improvement, a share up or down, that makes a figure at least FACTOR times as good."""
    return improvement >= FACTOR - 1 or improvement <= 1 / FACTOR - 1


# -- the noise -----------------------------------------------------------------------------------------------


def measure(runs: Sequence[Run]) -> Noise:
    """Return the noise of the last MEMORY runs that have values."""
    runs = [run for run in runs if run][-MEMORY:]
    medians = [statistics.median(run) for run in runs]
    level = abs(statistics.median(medians)) if medians else 0.0
    rounds = float(statistics.median(map(len, runs))) if runs else 0.0
    if not level:
        return Noise(None, None, len(runs), rounds)
    within = _deviation([difference for run in runs for difference in _differences(run)])
    return Noise(_share(within, level), _share(_between(medians), level), len(runs), rounds)


def _between(medians: Sequence[float]) -> float | None:
    """The deviation of a run's median. With few runs an outlier may be noise, so all values count fully."""
    if len(medians) < 3 or len(medians) >= MANY:
        return spread(medians)
    return math.sqrt(statistics.fmean(difference**2 for difference in _differences(medians)) / 2)


def _share(deviation: float | None, level: float) -> float | None:
    return None if deviation is None else deviation / level


def _differences(values: Sequence[float]) -> list[float]:
    return [first - second for first, second in pairwise(values)]


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation of one value, of neighbours' differences and without outliers, from 3 values on."""
    away = set(far_from_neighbours(values))
    kept = [value for number, value in enumerate(values) if number not in away]
    return _deviation(_differences(kept))


def freedom(runs: int) -> float:
    """Return the degrees of freedom of a deviation that was measured on so many runs."""
    return max(1.0, _FREEDOM * (runs - 1))


def far_from_neighbours(values: Sequence[float]) -> Iterator[int]:
    """Yield the places of values in a series that lie far from their four nearest neighbours."""
    rough = _rough(_differences(values))
    for number, value in enumerate(values if len(values) >= FEWEST and rough else ()):
        start = max(0, min(number - 2, len(values) - 5))
        if abs(value - statistics.median(values[start : start + 5])) > _OUTLIER * (rough or 0.0):
            yield number


def _rough(differences: Sequence[float]) -> float | None:
    """A robust estimate from the median absolute deviation; up to half of the values may be outliers."""
    if len(differences) < 2:
        return None
    return _NORMAL * statistics.median(map(abs, differences)) / math.sqrt(2)


def _deviation(differences: Sequence[float]) -> float | None:
    """The deviation of one value; large differences are clipped."""
    rough = _rough(differences)
    if rough is None:
        return None
    # If most values are equal the estimate is 0; then nothing is clipped.
    clip = _CLIP * rough * math.sqrt(2) or math.inf
    return _CLIPPED * math.sqrt(statistics.fmean(min(abs(difference), clip) ** 2 for difference in differences) / 2)


# -- two runs ------------------------------------------------------------------------------------------------


def compare(old: Run, new: Run, like: Sequence[Run] = (), *, direction: str | None, least: float = LEAST) -> Judgement:
    """Judge a run against an old one by the noise of comparable runs (``like``), or else by that of their rounds."""
    accepted = level(old, like)
    if accepted is None:
        return Judgement(NO_OLD)
    return judge(accepted, new, direction=direction, lower=-least, upper=least)


def level(run: Run, like: Sequence[Run] = ()) -> Level | None:
    """Return the level of a run, with the noise of comparable runs if there are enough; None without a value."""
    if not run:
        return None
    like = [values for values in like if values]
    middle = statistics.fmean(run)
    deviation = statistics.stdev(run) / abs(middle) if len(run) > 1 and middle else None
    return Level(statistics.median(run), len(run), deviation, measure(like) if len(like) >= FEWEST else None)


def judge(
    old: Level, new: Run, *, direction: str | None, lower: float | None = -LEAST, upper: float | None = LEAST
) -> Judgement:
    """Judge new rounds against an old figure: the only judge of regressions, of stored runs and of baselines.

    A change counts if it is larger than the bound on its side, a share from -1 on, and than the noise. A side without a
    bound allows any value.
    """
    down, up = (None if bound is None else abs(bound) for bound in (lower, upper))
    if not new:
        return Judgement(MISSING, None, down, up, direction)
    value = statistics.median(new)
    if old.value == 0:
        return Judgement(CHANGED if value else WITHIN)
    error = _error(old, new)
    change = (value - old.value) / abs(old.value)
    limit = error.limit if error else 0.0
    down, up = (None if bound is None else max(bound, limit) for bound in (down, up))
    word = _word(change, down, up, direction)
    return Judgement(word, change, down, up, direction, error.chance(change) if error else None, error)


def _word(change: float, down: float | None, up: float | None, direction: str | None) -> str:
    allowed = down if change < 0 else up
    if allowed is None or abs(change) <= allowed:
        return WITHIN
    if direction not in ("higher", "lower"):
        return CHANGED
    return BETTER if (change > 0) == (direction == "higher") else WORSE


def _error(old: Level, new: Run) -> Error | None:
    measured = old.from_runs
    if measured is None:
        return _of_rounds(old, new)
    share = math.sqrt(measured.of(old.rounds) ** 2 + measured.of(len(new)) ** 2)
    return Error(share, freedom(measured.runs), FROM_RUNS, measured.runs)


def of_rounds(old: Run, new: Run) -> Error | None:
    """Return the standard error of the ratio of two runs' medians, by the rounds of both; None with one round each."""
    accepted = level(old)
    return _of_rounds(accepted, new) if accepted is not None and accepted.value else None


def _of_rounds(old: Level, new: Run) -> Error | None:
    if old.deviation is None and old.rounds > 1:
        return None  # a figure written by hand: its noise is unknown, so its bound alone decides
    later = level(new)
    sides = [side for side in (old, later) if side is not None and side.deviation is not None]
    free = sum(side.rounds - 1 for side in sides)
    if free < 1:
        return None
    squares = sum((side.rounds - 1) * (side.deviation or 0.0) ** 2 for side in sides)
    share = math.sqrt(squares / free * sum(_of_median(rounds) ** 2 for rounds in (old.rounds, len(new))))
    # The mean of equal rounds may differ in the last digit.
    return Error(share if share > 1e-12 else 0.0, free, FROM_ROUNDS)


def _of_median(values: int) -> float:
    """The standard error of a median of so many normal values with a standard deviation of 1."""
    return math.sqrt(math.pi / (2 * (values + math.pi / 2 - 1)))


def odds(chance: float) -> str:
    if chance < 1e-6:
        return "less than once in a million runs"
    return f"once in about {float(f'{1 / chance:.1g}'):,.0f} runs"
