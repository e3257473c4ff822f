"""How much a figure varies by itself, and whether a new one says more than that: the one rule for it.

A run is the values of its rounds, a history the runs in their order; all are of one metric. Deviations are shares of
the level, so that they can be said in per cent. A run's figure is the median of its rounds.

Noise is told from run to run: deviations of the medians from the level that they had, where a step or a drift in the
past is a change of the level and no noise (``shifts``). Where too few like runs are known, of two runs only the
rounds' own deviations are left; what all rounds of a run share is not in those, and the sentence says so.

Why CHANCE is 0.01. Of the median of n like runs, each with a deviation s, a new run differs by chance with the standard
error e = s sqrt(1 + 1.57 / n); where s is estimated from f degrees of freedom, a change counts from t(f, 1 - CHANCE) e
on. After 20 runs f is about 15 and t 2.6. With s = 2 %, all of it shared by the rounds of a run so that more of them
help nothing, a change counts from some 5.4 %, and a run that is slower by 8 % is flagged 9 times in 10; after 30 runs
19 times in 20. Where the 2 % are a round's and a run has three, s is 1.3 % and hardly one is missed. Three throughputs
are judged together: at most 3 % of honest runs are called worse if the three had nothing to do with each other; in
real runs they correlate by 0.9 and more, which leaves 1.4 to 1.7 %, less than one of 50 reruns. More than two of 50 are
some series in twenty. With 0.02 it would be every fifth series, for 3 % more of the slowdowns; with 0.005 hardly any,
and 7 % fewer slowdowns. ``tests/test_noise.py`` simulates it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_flagperf.results.comparing.statistics import student_limit, student_tail
from pytest_flagperf.results.units import compared, count, quantity

WINDOW = 10
"""The level is the median of at least so many runs: one outlier does not move it, a lasting change does after half of
them. Where it has not changed, it is that of all."""
MEMORY = 30
"""So many runs are looked at."""
FEWEST = 5
"""With fewer like runs nothing is said of the noise from run to run."""
CHANCE = 0.01
"""How often an honest run may be called worse, and as often better, one metric taken alone."""
LEAST = 0.01
"""A smaller change than this share is nobody's, however quiet the figure."""
TOO_FEW, MISSING = "too few runs", "missing"
WITHIN, BETTER, WORSE, CHANGED = "within noise", "better", "worse", "changed"
FROM_RUNS, FROM_ROUNDS = "from run to run", "of the rounds alone"
STEP, DRIFT, UNCLEAR = "step", "drift", "step or drift"

_NORMAL = 1.4826  # of a normal distribution, the standard deviation over the median absolute deviation
_MEDIAN = 1.2533  # of many values, the median's standard error over the mean's
_OUTLIER = 4.0
_CLIP, _CLIPPED = 2.5, 1.04  # and what clipping takes off the spread of normal values
_CLIP_RESTS = 3.0  # takes nothing that counts off normal values
_FREEDOM = 0.8  # of a degree, that one more clipped deviation is worth
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
    freedom: float = 1.0
    """How well ``between`` is known: in Student's degrees."""

    def of(self, rounds: int) -> float:
        """Of the median of a run of so many rounds: never below what its rounds alone explain."""
        within, between = self.within or 0.0, self.between or 0.0
        fewer = max(0.0, 1 / rounds - 1 / self.rounds) if self.rounds else 0.0
        return max(math.sqrt(between**2 + fewer * within**2), within / math.sqrt(rounds))


@dataclass(frozen=True)
class Error:
    """Of a difference between two figures, a share: its standard error, how well that is known, and from what."""

    share: float
    freedom: float
    source: str
    runs: int = 0
    """On how many runs it was measured."""

    @property
    def limit(self) -> float:
        """What chance exceeds as seldom as CHANCE, one way."""
        return self.share * student_limit(CHANCE, self.freedom)

    def chance(self, change: float) -> float:
        """How often noise alone goes so far that way."""
        return student_tail(abs(change) / self.share, self.freedom) if self.share else 0.0


@dataclass(frozen=True)
class Judgement:
    """``change`` and ``needed`` are shares of the level; ``chance``: how often noise alone goes so far that way."""

    word: str
    sentence: str
    level: float | None = None
    change: float | None = None
    needed: float | None = None
    chance: float | None = None
    error: Error | None = None


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
    return _measure(runs, medians, shifts(medians))


def _measure(runs: Sequence[Run], medians: Sequence[float], found: Sequence[Shift]) -> Noise:
    level = abs(statistics.median(medians)) if medians else 0.0
    rounds = float(statistics.median(map(len, runs))) if runs else 0.0
    if not level:
        return Noise(None, None, len(runs), rounds)
    within = _spread([difference for run in runs for difference in _differences(run)])
    between, free = _between(medians, found)
    return Noise(_share(within, level), _share(between, level), len(runs), rounds, max(1.0, _FREEDOM * free))


def _between(medians: Sequence[float], found: Sequence[Shift]) -> tuple[float | None, int]:
    """The standard deviation about the levels, outliers left out, and of how many free deviations it is made.

    Of a few values an outlier cannot be told from the noise itself, so that all of them count as they are.
    """
    many = len(medians) >= WINDOW
    away = set(outliers(medians)) if many else set()
    rests = [
        median - level
        for number, (median, level) in enumerate(zip(medians, levels(medians, found), strict=True))
        if number not in away
    ]
    free = len(rests) - 1 - sum(2 if shift.kind == DRIFT else 1 for shift in found)
    if free < 1 or len(rests) < 3:
        return None, 0
    clip = (_CLIP_RESTS * _NORMAL * statistics.median(map(abs, rests)) if many else 0.0) or math.inf
    return math.sqrt(sum(min(abs(rest), clip) ** 2 for rest in rests) / free), free


def levels(medians: Sequence[float], found: Sequence[Shift]) -> list[float]:
    """The level that each run had: the median between two changes, the line of a drift."""
    drifts = {shift.first: shift for shift in found if shift.kind == DRIFT}
    ends = {shift.last + 1 for shift in drifts.values()}
    cuts = sorted({0, len(medians), *(shift.first for shift in found), *ends})
    told: list[float] = []
    for start, stop in pairwise(cuts):
        drift = drifts.get(start)
        if drift is None:
            told += [statistics.median(medians[start:stop])] * (stop - start)
        else:
            slope = (drift.after - drift.before) / max(drift.last - drift.first, 1)
            told += [drift.before + slope * number for number in range(stop - start)]
    return told


def _share(deviation: float | None, level: float) -> float | None:
    return None if deviation is None else deviation / level


def _differences(values: Sequence[float]) -> list[float]:
    return [one - other for one, other in pairwise(values)]


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation of one value, of neighbours' differences and without outliers; None of fewer than three.

    A step makes one large difference and a drift many tiny ones: for what is not known yet, before they are looked for.
    """
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
    """The new run against the level of the earlier ones; those without a value are passed over."""
    earlier = [run for run in history if run][-MEMORY:]
    medians = [statistics.median(run) for run in earlier]
    found = shifts(medians)
    window = _window(medians, found)
    level = statistics.median(window) if window else None
    if not new:
        return Judgement(MISSING, "no round ended well with a value", level)
    value = statistics.median(new)
    if level is None or len(earlier) < FEWEST:
        few = f"{count(len(earlier), 'earlier run')} like this one; the noise is known from {FEWEST} on"
        return Judgement(TOO_FEW, few, level, (value - level) / abs(level) if level else None)
    measured = _measure(earlier, medians, found)
    of_level = (_MEDIAN * (measured.between or 0.0)) ** 2 / len(window)
    error = Error(math.sqrt(measured.of(len(new)) ** 2 + of_level), measured.freedom, FROM_RUNS, measured.runs)
    return _judgement(value, level, f"the median of the {len(window)} runs before", error, direction, unit, least)


def compare(
    old: Run, new: Run, like: Sequence[Run] = (), *, direction: str | None, unit: str = "", least: float = LEAST
) -> Judgement:
    """A run against another, by the noise of runs like the old one, itself among them; else by that of their rounds."""
    if not old or not new:
        level = statistics.median(old) if old else None
        return Judgement(TOO_FEW if not old else MISSING, "no round ended well with a value", level)
    value, level = statistics.median(new), statistics.median(old)
    error = _of_two(old, new, [run for run in like if run])
    return _judgement(value, level, "the old run", error, direction, unit, least)


def _window(medians: Sequence[float], found: Sequence[Shift]) -> Sequence[float]:
    """The runs whose median is the level: all since it last changed, and not fewer than WINDOW."""
    last = found[-1] if found else None
    since = 0 if last is None else last.first if last.kind != DRIFT else len(medians)
    return medians[max(0, min(since, len(medians) - WINDOW)) :]


def _of_two(old: Run, new: Run, like: Sequence[Run]) -> Error | None:
    if len(like) >= FEWEST:
        measured = measure(like)
        share = math.sqrt(measured.of(len(old)) ** 2 + measured.of(len(new)) ** 2)
        return Error(share, measured.freedom, FROM_RUNS, measured.runs)
    return of_rounds(old, new)


def of_rounds(old: Run, new: Run) -> Error | None:
    """How sure the ratio of two runs' medians is, by the rounds of both; None where neither has two."""
    free = len(old) + len(new) - 2
    middles = [statistics.fmean(run) for run in (old, new)]
    if free < 1 or not all(middles):
        return None
    sides = zip((old, new), middles, strict=True)
    squares = [((value - middle) / middle) ** 2 for run, middle in sides for value in run]
    of_medians = sum(_of_median(len(run)) ** 2 for run in (old, new))
    share = math.sqrt(sum(squares) / free * of_medians)
    # Of equal rounds a mean may be off by a last digit.
    return Error(share if share > 1e-12 else 0.0, free, FROM_ROUNDS)


def _of_median(values: int) -> float:
    """The standard error of a median of so many normal values with a standard deviation of 1."""
    return math.sqrt(math.pi / (2 * (values + math.pi / 2 - 1)))


def _judgement(
    value: float, level: float, usual: str, error: Error | None, direction: str | None, unit: str, least: float
) -> Judgement:
    if level == 0:
        return Judgement(CHANGED if value else WITHIN, f"{usual} was 0, now it is {quantity(value, unit)}", level)
    change = (value - level) / abs(level)
    needed = max(least, error.limit if error else 0.0)
    chance = error.chance(change) if error else None
    word = _word(change, needed, direction)
    said = _sentence(value, level, usual, needed, unit)
    if word != WITHIN and chance is not None:
        said += f", noise goes this far {odds(chance)}"
    return Judgement(word, said, level, change, needed, chance, error)


def _word(change: float, needed: float, direction: str | None) -> str:
    if abs(change) <= needed:
        return WITHIN
    if direction not in ("higher", "lower"):
        return CHANGED
    return BETTER if (change > 0) == (direction == "higher") else WORSE


def _sentence(value: float, level: float, usual: str, needed: float, unit: str) -> str:
    got, was = compared(value, level, unit)
    share, way = quantity(abs(value - level) / abs(level), "share"), "above" if value > level else "below"
    return f"{got} is {share} {way} {was}, {usual}; a change counts from {quantity(needed, 'share')} on"


def odds(chance: float) -> str:
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
