"""A figure of a rank beside what another saw of it, with the tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flagperf_driver.node.logs.ranklog import RankLog
from flagperf_driver.perflog import number
from pytest_flagperf.results.figures.units import compared, quantity
from pytest_flagperf.results.logs.milestone_times import MilestoneTimes
from pytest_flagperf.results.measured.sampled import Counted
from pytest_flagperf.results.measured.starts import Chain
from pytest_flagperf.stored.plan import LeftOutTimeLimits


class _Figures(dict[str, float]):
    """The figures of a record; NaN for a missing one and for what is not a number."""

    def __init__(self, record: object) -> None:
        items = record.items() if isinstance(record, Mapping) else ()
        super().__init__({name: value if type(value) is float else number(value) for name, value in items})

    def __missing__(self, name: str) -> float:
        return math.nan


@dataclass
class RankFigures:
    """The figures of one rank and its host that are compared; those that pairs ask for often are attributes."""

    config: Mapping[str, Any]
    data_ranks: int
    """The ranks that read different samples."""
    log: RankLog
    milestone_times: MilestoneTimes | None = None
    first: Mapping[str, Any] = field(default_factory=dict)
    """FINISHED of the round's first rank."""
    first_start_ms: float = math.nan
    """Its TRAIN_START by this rank's clock."""
    first_points: frozenset[str] | None = None
    """The names of its points; None for the first rank itself."""
    round_s: float | None = None
    clock_set_s: float = 0.0
    stood_still_s: float = 0.0
    """For how long ranks may have stood still, if the round has the warning unreachable or busy."""
    left_out: LeftOutTimeLimits | None = None
    """The most that p_core may leave out, by the suite; None in older plans."""
    saves_states: bool = False
    """Whether the training saves states for its replay."""
    counted: tuple[Counted, ...] = ()
    """The energies of the devices of all hosts; only set for the first rank."""
    chain: Chain | None = None
    """All starts of a training that the round continued; only set for the first rank."""

    get: Callable[[str], float] = field(init=False)
    """A figure of FINISHED."""
    earlier: Callable[[str], float] = field(init=False)
    """The part of a figure before the checkpoint from which the training resumed."""

    def __post_init__(self) -> None:
        finished = self.log.finished or {}
        self.get = _Figures(finished).__getitem__
        self.mean_step_s = _Figures(finished.get("step_time"))["mean"]
        resumed = finished.get("resumed") if self.config.get("checkpoint_dir") else None
        self.earlier = _Figures(resumed).__getitem__ if resumed and isinstance(resumed, dict) else lambda _: 0.0
        self.train_s = self.here("raw_train_time", "train_time")
        self.no_eval_s = self.here("train_no_eval_time", "train_time") + self.earlier("eval_time")
        self.compute_s = self.here("pure_training_computing_time", "compute_time")
        # The seconds of steps and of their waiting for input.
        self.windows_s = self.compute_s + self.here("input_wait_time", "input_wait_time")

    def here(self, name: str, earlier: str) -> float:
        """A figure of FINISHED without the part before the checkpoint from which the training resumed."""
        return self.get(name) - self.earlier(earlier)


class FigureBounds(NamedTuple):
    """A figure, and its bounds by the other way; ``more`` is an additional tolerance."""

    got: float
    least: float
    most: float
    more: float = 0.0
    which: str = ""
    """The item with the largest deviation, if there are several."""


@dataclass(frozen=True)
class Tolerance:
    """The tolerance of a pair: an absolute part (``allowed``) and a share of the bound."""

    allowed: float = 0.0
    share: float = 0.0
    unit: str = "s"
    also: str = ""
    """An additional tolerance, in words."""

    def __str__(self) -> str:
        parts = [quantity(self.allowed, self.unit)] if self.allowed else []
        parts += [quantity(self.share, "share")] if self.share else []
        return " + ".join([*parts, *([self.also] if self.also else [])]) or "none"


@dataclass(frozen=True)
class Pair:
    """A figure of a rank, and what another saw of it."""

    name: str
    figure: str
    against: str
    compare: Callable[[RankFigures], FigureBounds | None]
    tolerance: Tolerance

    def of(self, rank: RankFigures) -> FigureBounds | None:
        """Return the figure and its bounds; None if one of them is missing."""
        bounds = self.compare(rank)
        if bounds is None:
            return None
        got, least, most, more, _ = bounds
        return bounds if got == got and least == least and most == most and more == more else None

    def contradiction(self, bounds: FigureBounds) -> str | None:
        """Return a sentence if the figure is outside its bounds and the tolerance, else None."""
        if bounds.least <= bounds.got <= bounds.most:
            return None
        finite = [abs(bound) for bound in (bounds.least, bounds.most) if math.isfinite(bound)]
        tolerance = self.tolerance.allowed + bounds.more + self.tolerance.share * max(finite, default=0.0)
        # Floats are rounded.
        edge = tolerance + 1e-9 * max(finite, default=0.0)
        if bounds.least - edge <= bounds.got <= bounds.most + edge:
            return None
        return self._sentence(bounds, tolerance)

    def _sentence(self, bounds: FigureBounds, tolerance: float) -> str:
        unit = self.tolerance.unit
        bound = bounds.least if bounds.got < bounds.least else bounds.most
        got, expected = compared(bounds.got, bound, unit)
        if math.isinf(bounds.most):
            expected = f"at least {expected}"
        elif math.isinf(bounds.least):
            expected = f"at most {expected}"
        elif bounds.least != bounds.most:
            expected = f"{quantity(bounds.least, unit)} to {quantity(bounds.most, unit)}"
        within = f" (tolerance {quantity(tolerance, unit)})" if tolerance else ""
        which = f" ({bounds.which})" if bounds.which else ""
        return f"{self.figure}{which} is {got}, expected {expected}{within} by {self.against}"
