"""Decide whether a training that ended early is started again from its last checkpoint: ``--restarts``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flagperf_driver.driver import DriverError
from flagperf_driver.training.checkpoint import CheckpointError
from flagperf_driver.training.loop import DataError, NonFiniteLoss
from pytest_flagperf.config.layers import SAVING
from pytest_flagperf.plan import Plan, plan_on_fewer_hosts
from pytest_flagperf.problems import MissingHosts, Problems
from pytest_flagperf.progress import note
from pytest_flagperf.results.measured.measure import StoredRound
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.round_dir import RoundDir, RoundFault, earlier_tries

T = TypeVar("T")
FINAL = tuple(error.__name__ for error in (NonFiniteLoss, CheckpointError, DataError, DriverError))
"""Errors of a rank that another start would meet again."""
RETRY_S = 10.0
"""The pause before the next look at missing hosts."""
WITHOUT_PROGRESS = 3
"""After so many starts in a row without a new checkpoint no further one follows."""


@dataclass(frozen=True)
class Ended:
    """How a start of a training ended early."""

    kind: str
    sentence: str = ""
    rank: int | None = None
    error: str = ""
    """The type of the error that the rank logged; empty without one, as after a signal."""
    first_step: int | None = None
    """None if it trained no step."""
    last_step: int = 0
    saved: bool = False
    """Whether it completed a checkpoint."""
    any_ranks: bool = False
    """Whether other numbers of ranks may continue it."""

    @property
    def same(self) -> tuple[str, int | None, str, int]:
        """What is the same if a fault of the training itself happens again."""
        return self.kind, self.rank, self.error, self.last_step


def reason_to_end(starts: Sequence[Ended], limit: int, done: int) -> str | None:
    """Return why a training is not started again after its last start; None if it is.

    ``done`` of ``limit`` restarts came before in this run; further starts are those before ``--resume``.
    """
    last = starts[-1]
    if done >= limit:
        return "no restart is left"
    if last.kind in ("interrupted", "cancelled"):
        return f"it was {last.kind}"
    if last.error in FINAL:
        return f"another start would meet {last.error} again"
    if last.error and all(start.first_step is None for start in starts):
        return "no start reached its first step"
    if last.error and len(starts) > 1 and starts[-2].same == last.same:
        return f"rank {last.rank} failed twice with {last.error} after step {last.last_step:,}"
    if done + 1 >= WITHOUT_PROGRESS and not any(start.saved for start in starts[-WITHOUT_PROGRESS:]):
        return f"{WITHOUT_PROGRESS} starts in a row completed no checkpoint"
    return None


def continues(plan: Plan) -> bool:
    """Return True if a case's training saves checkpoints, from which it can continue."""
    config = plan.config
    saves = config.get("checkpoint_dir") and any(config.get(key) for key in SAVING)
    return not plan.throughput_only and bool(saves)


def ended_starts(folder: Path) -> list[Ended]:
    """Return how the starts of a round's training ended, the last one last; empty if the last one finished."""
    own = RoundDir(folder)
    training = own.read_plan().training
    starts: list[Ended | None] = []
    for directory in [*earlier_tries(own), own]:
        with suppress(FormatError):
            if directory.read_plan().training == training:
                starts.append(_ended(StoredRound(directory.path)))
    return [start for start in starts if start is not None] if starts and starts[-1] is not None else []


def _ended(start: StoredRound) -> Ended | None:
    """Return how a start ended; None if it finished."""
    if start.end is not None and start.end.state == "finished":
        return None
    fault = start.end.fault if start.end else None
    if fault is None:  # its controller died; its logs are here
        fault = RoundFault("no_end", sentence=start.unreadable_end or "no record")
    rank, first = fault.rank, start.read_log(start.places[0])
    place = next((place for place in start.places if place.rank == rank), None)
    error = str((start.read_log(place).failed or {}).get("type", "")) if place else ""
    return Ended(
        fault.kind, fault.sentence, rank, error, first.first_step, first.totals.step,
        saved=first.checkpoints > 0, any_ranks=(first.init_end or {}).get("any_ranks") is True,
    )  # fmt: skip


@dataclass(frozen=True)
class Restarts:
    """What ``--restarts`` and the settings ``restart-wait`` and ``fewest-hosts`` allow."""

    limit: int = 0
    wait_s: float = 0.0
    """How long another start waits for as many hosts as the case has."""
    fewest_hosts: int = 0
    """Then it takes fewer, down to this number; 0: never."""

    def set_aside(self, plan: Plan, number: int, folder: Path, done: int) -> list[Plan]:
        """Set a failed start aside and return the plans of the next one, the one with most hosts first.

        Empty if no start follows; ``done`` restarts came before.
        """
        if not self.limit or not continues(plan) or not (starts := ended_starts(folder)):
            return []
        where, reason = f"{plan.case} round {number}", reason_to_end(starts, self.limit, done)
        if reason is not None:
            note("line", text=f"{where}: not started again: {reason}")
            return []
        RoundDir(folder).move_aside()
        note("line", text=f"{where}: {starts[-1].sentence}: restart {done + 1} of {self.limit}")
        return [plan, *self._smaller(plan)] if any(start.any_ranks for start in starts) else [plan]

    def _smaller(self, plan: Plan) -> list[Plan]:
        """Return plans on fewer hosts that have as many samples in a step."""
        counts = range(plan.case.nnodes - 1, self.fewest_hosts - 1, -1) if self.fewest_hosts else ()
        return [smaller for count in counts if (smaller := plan_on_fewer_hosts(plan, count))]


def why(plan: Plan, error: Problems) -> str:
    """Return why a plan's start cannot begin, for a line that names the case."""
    return "; ".join(problem.removeprefix(f"case {plan.case}: ") for problem in error.problems)


def run_on_available(
    plans: Sequence[Plan],
    wait_s: float | None,
    run: Callable[[Plan, float | None], T],
    begun: Callable[[], bool],
) -> T:
    """Run the first plan as soon as its hosts are available; after ``wait_s``, the first other plan whose hosts are.

    Raise MissingHosts of the first plan if each plan has too few hosts. A plan that has ``begun`` is not run again.
    ``run`` gets the time that is left; None, as ``wait_s``, for a first start.
    """
    (whole, *smaller), until, left_s, shown = plans, time.monotonic() + (wait_s or 0.0), wait_s, ""
    while True:
        try:
            return run(whole, left_s)
        except MissingHosts as error:
            if begun():
                raise
            problem, reason = error, why(whole, error)
        if (left_s := until - time.monotonic()) <= 0:
            break
        if reason != shown:
            note("line", text=f"{whole.case} waits for hosts, at most {left_s:.0f} s: {reason}")
        shown = reason
        time.sleep(min(RETRY_S, left_s))
    for plan in smaller:
        note("line", text=f"{plan.case} asks for {plan.nnodes} of {plan.case.nnodes} hosts: {reason}")
        try:
            return run(plan, 0.0)
        except MissingHosts as error:
            if begun():
                raise
            reason = why(plan, error)
    raise problem
