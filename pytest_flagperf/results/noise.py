"""How much a figure varies by itself, and whether a new one says more than that.

A run is the values of its rounds, a history the runs in their order; all are of one metric. Deviations are shares of
the level, so that they can be said in per cent. Spread is taken from differences of neighbours: a step in the history
makes one large difference and a drift many tiny ones, neither widens the spread as it would a standard deviation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_flagperf.results.statistics import student_limit, student_tail
from pytest_flagperf.results.units import compared, count, quantity

WINDOW = 10
"""The level is the median of so many runs: one outlier does not move it, a lasting change does after half of them."""
MEMORY = 30
"""The noise is measured on so many runs."""
FEWEST = 5
"""With fewer earlier runs nothing is said."""
CHANCE = 0.005
"""How often an honest run may be called worse, and as often better, one metric taken alone."""
LEAST = 0.01
"""A smaller change than this share is nobody's, however quiet the figure."""
TOO_FEW, MISSING = "too few runs", "missing"
WITHIN, BETTER, WORSE, CHANGED = "within noise", "better", "worse", "changed"
STEP, DRIFT, UNCLEAR = "step", "drift", "step or drift"

_NORMAL = 1.4826  # of a normal distribution, the standard deviation over the median absolute deviation
_MEDIAN = 1.2533  # of many values, the median's standard error over the mean's
_OUTLIER = 4.0
_CLIP, _CLIPPED = 2.5, 1.04  # and what clipping takes off the spread of normal values
_FREEDOM = 0.5  # degrees of freedom per difference that the spread of clipped neighbours' differences has
_SHORTEST = 3  # runs that make a level of their own: one or two are outliers
_GAIN, _APART = 16.0, 6.0
Run = Sequence[float]


@dataclass(frozen=True)
class Noise:
    """Standard deviations as shares of the level: of one round within its run, and of a run's median over runs."""

    within: float | None
    between: float | None
    runs: int
    rounds: float
    """How many a run has, the middle of them."""

    @property
    def freedom(self) -> float:
        return max(1.0, _FREEDOM * (self.runs - 1))

    def of(self, rounds: int) -> float:
        """Of the median of a run of so many rounds: never below what its rounds alone explain."""
        within, between = self.within or 0.0, self.between or 0.0
        fewer = max(0.0, 1 / rounds - 1 / self.rounds) if self.rounds else 0.0
        return max(math.sqrt(between**2 + fewer * within**2), within / math.sqrt(rounds))


@dataclass(frozen=True)
class Judgement:
    """``change`` and ``needed`` are shares of the level; ``chance``: how often noise alone goes so far that way."""

    word: str
    sentence: str
    level: float | None = None
    change: float | None = None
    needed: float | None = None
    chance: float | None = None


@dataclass(frozen=True)
class Shift:
    """``first``: the first run after a step, or of a drift; ``last``: the last one of a drift."""

    kind: str
    first: int
    last: int
    before: float
    after: float


# -- the noise -----------------------------------------------------------------------------------------------


def measure(history: Sequence[Run]) -> Noise:
    """The noise floor of the last runs of a history."""
    runs = [run for run in history if run][-MEMORY:]
    medians = [statistics.median(run) for run in runs]
    level = abs(statistics.median(medians)) if medians else 0.0
    rounds = float(statistics.median(map(len, runs))) if runs else 0.0
    if not level:
        return Noise(None, None, len(runs), rounds)
    within = _spread([difference for run in runs for difference in _differences(run)])
    between = spread(medians)
    return Noise(_share(within, level), _share(between, level), len(runs), rounds)


def _share(deviation: float | None, level: float) -> float | None:
    return None if deviation is None else deviation / level


def _differences(values: Sequence[float]) -> list[float]:
    return [one - other for one, other in pairwise(values)]


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation of one value: of neighbours' differences, without outliers; None of fewer than three."""
    away = set(outliers(values))
    kept = [value for number, value in enumerate(values) if number not in away]
    return _spread(_differences(kept))


def outliers(values: Sequence[float]) -> Iterator[int]:
    """Which values lie far from their four nearest neighbours."""
    rough = _rough(_differences(values))
    for number, value in enumerate(values if len(values) >= FEWEST and rough else ()):
        start = max(0, min(number - 2, len(values) - 5))
        if abs(value - statistics.median(values[start : start + 5])) > _OUTLIER * (rough or 0.0):
            yield number


def _rough(differences: Sequence[float]) -> float | None:
    """By the median absolute deviation, which half of the values may be anything."""
    if len(differences) < 2:
        return None
    return _NORMAL * statistics.median(map(abs, differences)) / math.sqrt(2)


def _spread(differences: Sequence[float]) -> float | None:
    """Nearly as sure as a standard deviation, and as sturdy as its rough guess: large differences count as the clip."""
    rough = _rough(differences)
    if rough is None:
        return None
    # Where most values are equal there is no guess, and all differences count as they are.
    clip = _CLIP * rough * math.sqrt(2) or math.inf
    return _CLIPPED * math.sqrt(statistics.fmean(min(abs(each), clip) ** 2 for each in differences) / 2)


# -- a new run -----------------------------------------------------------------------------------------------


def judge(
    history: Sequence[Run], new: Run, *, direction: str | None, unit: str = "", least: float = LEAST
) -> Judgement:
    """The new run against the earlier ones; those without a value are passed over."""
    earlier = [run for run in history if run]
    medians = [statistics.median(run) for run in earlier[-WINDOW:]]
    level = statistics.median(medians) if medians else None
    if not new:
        return Judgement(MISSING, "no round ended well with a value", level)
    value = statistics.median(new)
    if level == 0:
        return Judgement(CHANGED if value else WITHIN, f"the level was 0 and is {quantity(value, unit)}", level)
    change = None if level is None else (value - level) / abs(level)
    if level is None or change is None or len(earlier) < FEWEST:
        few = f"{count(len(earlier), 'earlier run')} like this one; the noise is known from {FEWEST} on"
        return Judgement(TOO_FEW, few, level, change)
    error, freedom = _error(earlier, len(new), len(medians))
    needed = max(least, error * student_limit(CHANCE, freedom))
    chance = student_tail(abs(change) / error, freedom) if error else 0.0
    word = _word(change, needed, direction)
    sentence = _sentence(value, level, needed, chance, word, unit, len(medians))
    return Judgement(word, sentence, level, change, needed, chance)


def _error(earlier: Sequence[Run], rounds: int, window: int) -> tuple[float, float]:
    """The standard error of a new run's difference from the window's median, and how well that is known."""
    noise = measure(earlier)
    of_level = (_MEDIAN * (noise.between or 0.0)) ** 2 / window
    return math.sqrt(noise.of(rounds) ** 2 + of_level), noise.freedom


def _word(change: float, needed: float, direction: str | None) -> str:
    if abs(change) <= needed:
        return WITHIN
    if direction not in ("higher", "lower"):
        return CHANGED
    return BETTER if (change > 0) == (direction == "higher") else WORSE


def _sentence(value: float, level: float, needed: float, chance: float, word: str, unit: str, runs: int) -> str:
    got, usual = compared(value, level, unit)
    share, way = quantity(abs(value - level) / abs(level), "share"), "above" if value > level else "below"
    said = f"{got} is {share} {way} {usual}, the median of the {runs} runs before; a change counts from "
    said += f"{quantity(needed, 'share')} on"
    return said if word == WITHIN else f"{said}, noise goes this far {_odds(chance)}"


def _odds(chance: float) -> str:
    if chance < 1e-6:
        return "less than once in a million runs"
    return f"once in about {float(f'{1 / chance:.1g}'):,.0f} runs"


# -- changes of the level ------------------------------------------------------------------------------------


def shifts(medians: Sequence[float], least: float = LEAST) -> list[Shift]:
    """Where the level of a history changed to stay, in order; what one or two runs did is no change of it."""
    deviation = spread(medians)
    if deviation is None or len(medians) < 2 * _SHORTEST:
        return []
    floor = max(deviation, least * abs(statistics.median(medians)) / 4)
    return list(_shifts(medians, 0, floor, least)) if floor else []


def _shifts(values: Sequence[float], start: int, floor: float, least: float) -> Iterator[Shift]:
    if len(values) < 2 * _SHORTEST:
        return
    middle = statistics.median(values)
    flat = _misfit([value - middle for value in values], floor)
    cut = min(_cuts(values), key=lambda cut: _step(values, cut, floor))
    stepped, line = _step(values, cut, floor), _line(values)
    sloped = _off_line(values, line, floor)
    if flat - min(stepped, sloped) <= _GAIN:
        return
    # Of a staircase a line is nearer than one step, but what is left over is no noise.
    if sloped + _APART < stepped and sloped <= 1.5 * len(values) + 3 * math.sqrt(2 * len(values)):
        if abs(line[-1] - line[0]) >= least * abs(middle):
            yield Shift(DRIFT, start, start + len(values) - 1, line[0], line[-1])
        return
    earlier = list(_shifts(values[:cut], start, floor, least))
    later = list(_shifts(values[cut:], start + cut, floor, least))
    low = earlier[-1].first - start if earlier else 0
    high = later[0].last - start if later else len(values)
    here = _cut(values[low:high], start + low, floor)
    yield from earlier
    if abs(here.after - here.before) >= least * abs(middle):
        yield here
    yield from later


def _cut(values: Sequence[float], start: int, floor: float) -> Shift:
    """The shift between its neighbours: only there is its place sure."""
    cut = min(_cuts(values), key=lambda cut: _step(values, cut, floor))
    stepped, sloped = _step(values, cut, floor), _off_line(values, _line(values), floor)
    before, after = statistics.median(values[:cut]), statistics.median(values[cut:])
    return Shift(STEP if stepped + _APART < sloped else UNCLEAR, start + cut, start + cut, before, after)


def _cuts(values: Sequence[float]) -> range:
    return range(_SHORTEST, len(values) - _SHORTEST + 1)


def _step(values: Sequence[float], cut: int, floor: float) -> float:
    sides = values[:cut], values[cut:]
    return sum(_misfit([value - statistics.median(side) for value in side], floor) for side in sides)


def _line(values: Sequence[float]) -> list[float]:
    """Theil and Sen's: the median of all slopes, which outliers hardly move."""
    pairs = [(i, j) for j in range(len(values)) for i in range(j)]
    slope = statistics.median((values[j] - values[i]) / (j - i) for i, j in pairs)
    foot = statistics.median(value - slope * number for number, value in enumerate(values))
    return [foot + slope * number for number in range(len(values))]


def _off_line(values: Sequence[float], line: Sequence[float], floor: float) -> float:
    return _misfit([value - each for value, each in zip(values, line, strict=True)], floor)


def _misfit(rests: Sequence[float], floor: float) -> float:
    """Squared deviations in units of the noise; one value weighs no more than three deviations do."""
    return sum(min((rest / floor) ** 2, 9.0) for rest in rests)
