"""Decide whether a training that ended early is started again from its last checkpoint: ``--restarts``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from flagperf_driver.driver import DriverError
from flagperf_driver.training.checkpoint import CheckpointError
from flagperf_driver.training.loop import DataError, NonFiniteLoss
from pytest_flagperf.config.layers import SAVING
from pytest_flagperf.plan import Plan, plan_on_fewer_hosts
from pytest_flagperf.problems import MissingHosts, Problems
from pytest_flagperf.progress import note
from pytest_flagperf.results.measured.measure import StoredRound, earlier_starts, start_of
from pytest_flagperf.results.measured.starts import StartFiles
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.round_dir import RoundDir, RoundFault, RoundRecord

T = TypeVar("T")
FINAL = tuple(error.__name__ for error in (NonFiniteLoss, CheckpointError, DataError, DriverError))
"""Errors of a rank that another start would meet again."""
RETRY_S = 10.0
"""The pause before the next look at missing hosts."""
WITHOUT_PROGRESS = 3
"""After so many starts in a row without a new checkpoint no further one follows."""


def reason_to_end(starts: Sequence[StartFiles], limit: int, done: int) -> str | None:
    """Return why a training is not started again after its last start; None if it is.

    ``done`` of ``limit`` restarts came before in this run; further starts are those before ``--resume``.
    """
    last, fault = starts[-1], starts[-1].fault
    if done >= limit:
        return "no restart is left"
    if fault.kind in ("interrupted", "cancelled"):
        return f"it was {fault.kind}"
    if last.error in FINAL:
        return f"another start would meet {last.error} again"
    if last.error and all(start.first_step is None for start in starts):
        return "no start reached its first step"
    if last.error and len(starts) > 1 and _failure_of(starts[-2]) == _failure_of(last):
        return f"rank {fault.rank} failed twice with {last.error} after step {last.last_step:,}"
    if done + 1 >= WITHOUT_PROGRESS and not any(start.log.checkpoints for start in starts[-WITHOUT_PROGRESS:]):
        return f"{WITHOUT_PROGRESS} starts in a row completed no checkpoint"
    return None


def _failure_of(start: StartFiles) -> tuple[str, int | None, str, int]:
    """Return what is the same if a fault of the training itself happens again."""
    return start.fault.kind, start.fault.rank, start.error, start.last_step


def continues(plan: Plan) -> bool:
    """Return True if a case's training saves checkpoints, from which it can continue."""
    config = plan.config
    saves = config.get("checkpoint_dir") and any(config.get(key) for key in SAVING)
    return not plan.throughput_only and bool(saves)


def ended_starts(folder: Path) -> list[StartFiles]:
    """Return the starts of a round's training, the last one last; empty if the last one finished."""
    own = StoredRound(folder)
    starts: list[StartFiles | None] = []
    for one in (*earlier_starts(own), own):
        with suppress(FormatError):
            starts.append(_ended(one))
    return [start for start in starts if start is not None] if starts and starts[-1] is not None else []


def _ended(ended: StoredRound) -> StartFiles | None:
    """Return a start with its fault and the error of the faulty rank; None if it finished."""
    if ended.end is not None and ended.end.state == "finished":
        return None
    start = start_of(ended)
    if ended.end is None or ended.end.fault is None:  # its controller died; its logs are here
        fault = RoundFault("no_end", sentence=ended.unreadable_end or "no record")
        start = replace(start, end=RoundRecord("failed", fault))
    place = next((place for place in ended.places if place.rank == start.fault.rank), None)
    error = str((ended.read_log(place).failed or {}).get("type", "")) if place else ""
    return replace(start, error=error)


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
        note("line", text=f"{where}: {starts[-1].fault.sentence}: restart {done + 1} of {self.limit}")
        any_ranks = any((start.log.init_end or {}).get("any_ranks") is True for start in starts)
        return [plan, *self._smaller(plan)] if any_ranks else [plan]

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
