"""Two ways to the same figure of a rank, and how far they may be apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flagperf_driver.perflog import number
from pytest_flagperf.results.logs.milestone_times import MilestoneTimes
from pytest_flagperf.results.logs.ranklog import RankLog, whole
from pytest_flagperf.results.measured.sampled import Counted
from pytest_flagperf.results.units import compared, quantity


@dataclass(frozen=True)
class RankFigures:
    """What is compared of one rank, and of what its host sampled."""

    config: Mapping[str, Any]
    cards: int
    log: RankLog
    milestone_times: MilestoneTimes | None = None
    first: Mapping[str, Any] = field(default_factory=dict)
    """FINISHED of the round's first rank."""
    first_start_ms: float = math.nan
    """Its TRAIN_START by this rank's clock."""
    round_s: float | None = None
    clock_set_s: float = 0.0
    counted: tuple[Counted, ...] = ()
    """Of the first rank: the devices of all hosts."""

    def get(self, name: str) -> float:
        """A figure of FINISHED; NaN where it is not there."""
        return number((self.log.finished or {}).get(name))

    def here(self, name: str, earlier: str) -> float:
        """The same without what the training did before it went on from a checkpoint."""
        return self.get(name) - self.earlier(earlier)

    def earlier(self, name: str) -> float:
        resumed = (self.log.finished or {}).get("resumed")
        if not isinstance(resumed, dict) or not resumed or not self.config.get("checkpoint_dir"):
            return 0.0
        return number(resumed.get(name))

    @property
    def train_s(self) -> float:
        return self.here("raw_train_time", "train_time")

    @property
    def no_eval_s(self) -> float:
        return self.here("train_no_eval_time", "train_time") + self.earlier("eval_time")

    @property
    def compute_s(self) -> float:
        return self.here("pure_training_computing_time", "compute_time")

    @property
    def windows_s(self) -> float:
        """Steps and their waiting."""
        return self.compute_s + self.here("input_wait_time", "input_wait_time")

    def step_time(self, name: str) -> float:
        times = (self.log.finished or {}).get("step_time")
        return number(times.get(name)) if isinstance(times, dict) else math.nan

    def knows(self, name: str) -> bool:
        """Whether the plan has this value of the config."""
        return name in self.config

    def configured(self, name: str) -> int:
        return max(whole(self.config.get(name)), 0)

    @property
    def per_step(self) -> int:
        """Items of a step of all cards; 0 where the config does not say so."""
        return self.configured("train_batch_size") * self.cards * max(self.configured("gradient_accumulation_steps"), 1)

    def items(self, steps: float, passes: float) -> tuple[float, float]:
        """Samples in so many steps: a pass may end with a smaller one; an item may stand for several samples."""
        short = min(math.ceil(passes) + 1, steps)
        most = steps * self.per_step
        return most - short * (self.per_step - 1), most * max(self.configured("samples_per_item"), 1)

    def between(self, begin: str, end: str) -> float:
        """Seconds between two records."""
        times = self.log.milestones_ms
        return (times[end] - times[begin]) / 1000 if begin in times and end in times else math.nan

    @property
    def lost_share(self) -> float:
        """Of all steps, at most so many are in no STEP_END that can be read."""
        steps, totals = self.get("steps"), self.log.totals
        unlogged = max(1 - totals.step / steps, 0.0) if steps > 0 else 0.0
        return min(self.log.broken_lines / max(totals.windows, 1) + unlogged, 1.0)

    @property
    def lost_evaluations_s(self) -> float:
        """At most so long were evaluations whose line cannot be read."""
        totals = self.log.totals
        return min(self.log.broken_lines * totals.longest_evaluation_s, totals.evaluated_s)


@dataclass(frozen=True)
class FigureBounds:
    """What a figure is, and between which bounds the other one says that it lies; ``more`` is allowed beside."""

    got: float
    least: float
    most: float
    more: float = 0.0
    which: str = ""
    """What the figure is of, where the worst of several is taken."""


@dataclass(frozen=True)
class Tolerance:
    """How far a figure may lie outside of what the other way says: by ``allowed`` and by a share of it."""

    allowed: float = 0.0
    share: float = 0.0
    unit: str = "s"
    also: str = ""
    """What a pair allows beside, in words."""

    def __str__(self) -> str:
        parts = [quantity(self.allowed, self.unit)] if self.allowed else []
        parts += [quantity(self.share, "share")] if self.share else []
        return " + ".join([*parts, *([self.also] if self.also else [])]) or "none"


@dataclass(frozen=True)
class Pair:
    """Two ways to the same figure."""

    name: str
    figure: str
    against: str
    compare: Callable[[RankFigures], FigureBounds | None]
    tolerance: Tolerance

    def of(self, rank: RankFigures) -> FigureBounds | None:
        """Both figures; None where one of them is missing."""
        found = self.compare(rank)
        if found is None or any(map(math.isnan, (found.got, found.least, found.most, found.more))):
            return None
        return found

    def contradiction(self, found: FigureBounds) -> str | None:
        """Why the two are not the same figure; None where they are."""
        finite = [abs(bound) for bound in (found.least, found.most) if math.isfinite(bound)]
        slack = self.tolerance.allowed + found.more + self.tolerance.share * max(finite, default=0.0)
        # Floats are rounded.
        edge = slack + 1e-9 * max(finite, default=0.0)
        if found.least - edge <= found.got <= found.most + edge:
            return None
        return self._sentence(found, slack)

    def _sentence(self, found: FigureBounds, slack: float) -> str:
        unit = self.tolerance.unit
        bound = found.least if found.got < found.least else found.most
        got, least = compared(found.got, bound, unit)
        if found.least == found.most:
            wanted = least
        elif math.isinf(found.most) or math.isinf(found.least):
            wanted = f"at {'least' if math.isinf(found.most) else 'most'} {least}"
        else:
            wanted = " to ".join(quantity(one, unit) for one in (found.least, found.most))
        within = f" (tolerance {quantity(slack, unit)})" if slack else ""
        which = f" ({found.which})" if found.which else ""
        return f"{self.figure}{which} is {got}, expected {wanted}{within} by {self.against}"
