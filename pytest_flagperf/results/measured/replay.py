"""What the replay of a round found: a clean process repeated segments of the training (running/replay.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flagperf_driver import events
from flagperf_driver.layout import MILESTONE_TIMES, rank_log
from flagperf_driver.perflog import number, read_records
from pytest_flagperf.stored import FormatError, files
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import RoundDir, replay_of

LEAST_TWIN = 2.5e-5
"""A smaller difference of a twin counts as this one."""


@dataclass(frozen=True)
class FigureDifference:
    """How far a figure of the training lies from the repeated one, and how far rounding alone moves that."""

    difference: float = 0.0
    twin: float = 0.0
    where: str = ""


@dataclass(frozen=True)
class RepeatedSegment:
    """The steps after ``first_step`` up to ``last_step``."""

    first_step: int = 0
    last_step: int = 0
    weights: FigureDifference = field(default_factory=FigureDifference)
    """The difference of the change of all weights; ``where`` is the weight with the largest part of it."""
    length: float = 1.0
    """The length of the change, relative to the repeated one's."""
    direction: float = 1.0
    """The cosine of the angle between both changes."""
    losses: FigureDifference = field(default_factory=FigureDifference)
    first_unequal: str | None = None
    """Where the first bit differs: a weight and its rank; None if all weights are equal bit by bit."""
    first_loss: str | None = None
    """The first log point with another loss; None if all are equal bit by bit."""

    def __str__(self) -> str:
        return f"{self.first_step + 1:,} to {self.last_step:,}"


@dataclass(frozen=True)
class Replay:
    """The repeated segments of a training."""

    problem: str = ""
    """Why no segment was repeated; empty if one was."""
    precision: str = ""
    initial: float = 0.0
    """The difference of the initial weights from the suite's, relative to them."""
    segments: tuple[RepeatedSegment, ...] = ()
    """In the order in which they were drawn."""
    metrics: FigureDifference = field(default_factory=FigureDifference)
    """Of the evaluation of the final weights."""
    step_time: float | None = None
    """The median seconds of a repeated step."""

    @property
    def steps(self) -> str:
        return "the steps " + " and ".join(map(str, sorted(self.segments, key=lambda one: one.first_step)))


def read(round_dir: Path, plan: StoredPlan) -> Replay | None:
    """Return what the replay of a round found; None if the plan has no replay, or is that of a replay itself."""
    if not plan.saves_states:
        return None
    replayed = replay_of(round_dir)
    try:
        return _of_files(round_dir, plan, replayed)
    except (FormatError, OSError) as error:
        return Replay(f"no record of the replay: {error}")
    except (LookupError, TypeError, ValueError) as error:
        return Replay(f"{replayed.path.name}: invalid record of the replay: {type(error).__name__}: {error}")


def _of_files(round_dir: Path, plan: StoredPlan, replayed: RoundDir) -> Replay:
    if problem := next(_other_orders(round_dir, plan), ""):
        return Replay(problem)
    if not replayed.is_planned:
        return Replay("no segment was repeated")
    record, its_plan = replayed.read_record(), replayed.read_plan()
    if record.state != "finished":
        return Replay(f"the clean process did not finish: {record.fault.sentence if record.fault else record.state}")
    found = next(records(replayed.path, its_plan, events.REPLAYED), None)
    if found is None or not found["segments"]:
        return Replay("the clean process repeated no segment")
    logged = {one["step"]: number(one["loss"]) for one in records(round_dir, plan, events.STEP_END)}
    return of_record(found, logged, str(plan.config.get("precision", "")))


def seen_by_agent(round_dir: Path, plan: StoredPlan) -> Mapping[str, Any]:
    """Return what the agent says of the states and the orders of the data that the training got."""
    seen = files.read_printable(round_dir / plan.host(0).folder / MILESTONE_TIMES).get("states")
    return seen if isinstance(seen, dict) else {}


def _other_orders(round_dir: Path, plan: StoredPlan) -> Iterator[str]:
    """Yield the epochs whose data had another order than the agent gave."""
    given = seen_by_agent(round_dir, plan).get("orders", {})
    for one in records(round_dir, plan, events.EPOCH_BEGIN):
        epoch, order = one["epoch"], one.get("order")
        if order is None or order != given.get(str(epoch)):
            yield f"the order of the data in epoch {epoch} was {order}; the agent gave {given.get(str(epoch))}"


def of_record(found: Mapping[str, Any], logged: Mapping[int, float], precision: str) -> Replay:
    """Return what a record REPLAYED says of a training that logged these losses by their steps."""
    return Replay(
        precision=precision,
        initial=number(found["initial"]["of_weights"]) if "initial" in found else 0.0,
        segments=tuple(_of_segment(segment, logged) for segment in found["segments"]),
        metrics=_largest(
            (str(name), number(theirs), number(own), number(twin)) for name, own, theirs, twin in found["metrics"]
        ),
        step_time=found["step_time"],
    )


def _of_segment(found: Mapping[str, Any], logged: Mapping[int, float]) -> RepeatedSegment:
    weights, unequal = found["weights"], found["weights"]["first"]
    return RepeatedSegment(
        first_step=found["first_step"],
        last_step=found["last_step"],
        weights=FigureDifference(
            number(weights["difference"]),
            number(found["twin"]["difference"]) if "twin" in found else 0.0,
            f"{_name(weights['largest'][0])} by {number(weights['largest'][1]):.1e}",
        ),
        length=number(weights["length"]),
        direction=number(weights["direction"]),
        losses=_largest(
            (f"step {step}", logged.get(step, math.nan), number(own), number(twin))
            for step, own, twin in found["losses"]
        ),
        first_loss=next((f"step {step}" for step, own, _ in found["losses"] if logged.get(step) != own), None),
        first_unequal=None if unequal is None else f"{_name(unequal[1])} of rank {unequal[0]}",
    )


def records(round_dir: Path, plan: StoredPlan, event: str) -> Iterator[Mapping[str, Any]]:
    """Yield the values of an event in the log of the first rank."""
    with (round_dir / plan.host(0).folder / rank_log(0)).open("rb") as stream:
        for record in read_records(stream, events={event}):
            yield record.value


def _largest(figures: Iterator[tuple[str, float, float, float]]) -> FigureDifference:
    """Return the relative difference of figures from the repeated ones that is largest beside the twin's.

    Differences grow from step to step: the twin's is the largest so far. NaN is the largest difference.
    """
    worst, worst_ratio, so_far = FigureDifference(), -1.0, 0.0
    for where, theirs, own, twin in figures:
        difference, so_far = _relative(theirs, own), max(so_far, _relative(twin, own))
        ratio = math.inf if math.isnan(difference) else difference / max(so_far, LEAST_TWIN)
        if ratio > worst_ratio:
            worst, worst_ratio = FigureDifference(difference, so_far, where), ratio
    return worst


def _relative(one: float, other: float) -> float:
    # Losses may cross zero; their size is about 1.
    return abs(one - other) / max(abs(other), 0.1)


def _name(weight: object) -> str:
    return str(weight).removeprefix("model/")
