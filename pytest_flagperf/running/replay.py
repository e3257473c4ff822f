"""The replay of a round: after it, a clean process repeats segments of the training that the agent drew.

The round saved its state at moments that the agent drew (flagperf_driver/node/agent/state_requests.py).
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flagperf_driver import events
from flagperf_driver.node.agent.state_requests import SHORTEST_STEPS
from flagperf_driver.perflog import number
from pytest_flagperf.engines import Engine, is_local
from pytest_flagperf.kind import kind_of
from pytest_flagperf.plan import Plan, clean_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.progress import note
from pytest_flagperf.results.measured import vendor_code
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.measured.replay import records, seen_by_agent
from pytest_flagperf.runtime import runtimes
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.round_dir import RoundDir, replay_of

SHARE, LONGEST_S = 0.05, 180.0
"""Segments are repeated until, with the last evaluation, they take this share of the training's time, or so long."""


def runs_vendor_code(plan: Plan) -> bool:
    """Return True if a vendor's code runs in the ranks of a training, which is then repeated without it."""
    return kind_of(plan).converges and any(
        addition.runs_code and addition.name.partition(" ")[0] in vendor_code.KINDS for addition in plan.additions
    )


def place_of_states(plan: Plan, engine: Engine, folder: Path) -> str:
    """Return the folder for the states of a round's training; empty if its ranks share none with a later process."""
    name = f"{folder.parent.parent.name}-{folder.parent.name}-{folder.name}.states"
    if checkpoints := plan.config.get("checkpoint_dir"):
        return str(Path(checkpoints, name))
    own = is_local(engine) and not runtimes()[plan.runtime].uses_images
    return str(folder.absolute().with_name(f"{folder.name}.states")) if own else ""


@contextmanager
def with_states(plan: Plan, engine: Engine, number: int, folder: Path) -> Iterator[Plan]:
    """Give a training that is repeated a folder for its states, which is removed whatever becomes of the training."""
    if not plan.saves_states:
        yield plan
        return
    placed = replace(plan, replay={"states": place_of_states(plan, engine, folder)})
    try:
        yield placed
    finally:
        engine.end_replay(placed, number, folder)


def repeat(engine: Engine, plan: Plan, number: int, folder: Path) -> None:
    """Repeat segments of a round's training in a folder beside it; a problem leaves no record there.

    A clean process that a dead controller left is continued, if it still runs.
    """
    clean = replay_of(folder)
    try:
        resumed = clean.is_planned and not clean.has_record and engine.resume(clean.path)
        if resumed and clean.read_record().state == "finished":
            return
        shutil.rmtree(clean.path, ignore_errors=True)
        given = {**plan.replay, **draw(folder)}
        note("line", text=f"{plan.case} round {number}: repeating a part of it in a clean process")
        engine.run(clean_plan(plan, given), number, clean.path, None)
    except (FormatError, Problems) as error:
        note("line", text=f"{plan.case} round {number}: not repeated: {error}")


def missing(outcome: Outcome) -> str:
    """Return why no segment of a training that ended well is repeated; empty if one is, and without a replay."""
    return outcome.replay.problem if outcome.replay and outcome.ended_well else ""


def draw(folder: Path) -> dict[str, Any]:
    """Return what the clean process of a round gets: the segments in the order in which they are drawn, and so on."""
    plan = RoundDir(folder).read_plan()
    steps = [int(one["step"]) for one in records(folder, plan, events.STATE)]
    seen = seen_by_agent(folder, plan)
    train_s = number(next(records(folder, plan, events.FINISHED), {}).get("raw_train_time"))
    *_, evaluation_s = 0.0, *(number(one.get("time")) for one in records(folder, plan, events.EVALUATE))
    return {
        "segments": drawn(steps, seen),
        "budget": repeated_share(train_s, evaluation_s) * (steps[-1] - steps[0]),
        "final": steps[-1],
        "orders": seen["orders"],
    }


def repeated_share(train_s: float, evaluation_s: float) -> float:
    """Return the share of a training that is repeated, beside one evaluation, and beyond the first segment."""
    return max(min(SHARE - evaluation_s / train_s, LONGEST_S / train_s), 0.0) if train_s > 0 else SHARE


def drawn(steps: Sequence[int], seen: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return all segments with both states, in a random order: each place by the numbers of steps that are left.

    The agent has drawn the first ones among those before the last two.
    """
    kept, last = kept_segments(steps, seen)
    decided, order = last[0][0] - steps[0], list[tuple[int, int]]()
    while kept or last:
        sizes = [decided if kept else 0, *(end - begin for begin, end in last)]
        [chosen] = random.SystemRandom().choices(range(len(sizes)), sizes)
        order.append(last.pop(chosen - 1) if chosen else kept.pop(0))
    return order


def kept_segments(steps: Sequence[int], seen: Mapping[str, Any]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the kept segments in the agent's order, and the last two, which it did not decide on.

    A last segment that is too short is part of the one before. FormatError if the training saved other states than the
    agent asked for.
    """
    cut = [*itertools.pairwise(steps)]
    saved, kept = seen.get("saved"), seen.get("kept")
    if not isinstance(saved, int) or not isinstance(kept, list) or not cut or len(cut) - saved not in (0, 1):
        raise FormatError(f"the agent asked for {saved} states; the training saved {max(len(steps) - 2, 0)}")
    if not {*kept} <= {*range(1, saved)}:
        raise FormatError(f"the agent kept the segments {kept} of {saved}")
    *undecided, last = cut[max(saved - 1, 0) :]
    if undecided and last[1] - last[0] < SHORTEST_STEPS:
        undecided, last = [], (undecided[0][0], last[1])
    return [cut[one - 1] for one in kept], [*undecided, last]
