"""The replay of a round: after it, a clean process repeats a segment of the training that the agent drew.

The round saved its state at moments that the agent drew (flagperf_driver/node/agent/state_requests.py). The plan of the
clean process is that of the case without the vendor's code, variables, packages and files.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flagperf_driver import events
from flagperf_driver.node.agent.state_requests import SHORTEST_STEPS
from pytest_flagperf.engines import Engine, is_local
from pytest_flagperf.kind import kind_of
from pytest_flagperf.plan import Plan, clean_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.progress import note
from pytest_flagperf.results.measured import vendor_code
from pytest_flagperf.results.measured.replay import records, seen_by_agent
from pytest_flagperf.runtime import runtimes
from pytest_flagperf.stored import FormatError, layout
from pytest_flagperf.stored.round_dir import RoundDir


@dataclass(frozen=True)
class Segment:
    """Two saved steps of a training, and its last step."""

    first: int
    last: int
    final: int
    orders: Mapping[str, int]
    """What the data of each epoch follow from."""


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
def with_states(plan: Plan, engine: Engine, folder: Path) -> Iterator[Plan]:
    """Give a training that is repeated a folder for its states, which is removed whatever becomes of the training."""
    if "states" not in plan.replay:
        yield plan
        return
    states = place_of_states(plan, engine, folder)
    try:
        yield replace(plan, replay={"states": states})
    finally:
        shutil.rmtree(states, ignore_errors=True)


def repeat(engine: Engine, plan: Plan, number: int, folder: Path) -> None:
    """Repeat a segment of a round's training in a folder beside it; a problem leaves no record there."""
    try:
        segment = draw(folder)
        note("line", text=f"{plan.case} round {number}: repeating the steps {segment.first + 1} to {segment.last}")
        given = {
            **plan.replay,
            "segment": [segment.first, segment.last],
            "final": segment.final,
            "orders": segment.orders,
        }
        engine.run(clean_plan(plan, given), number, folder.with_name(layout.replay_folder(folder.name)), None)
    except (FormatError, Problems) as error:
        note("line", text=f"{plan.case} round {number}: not repeated: {error}")


def draw(folder: Path) -> Segment:
    """Draw a segment among those whose states the round kept, each by its number of steps."""
    plan = RoundDir(folder).read_plan()
    steps = [int(one["step"]) for one in records(folder, plan, events.STATE)]
    asked = seen_by_agent(folder, plan)
    segments = kept_segments(steps, asked)
    drawn = random.SystemRandom().uniform(steps[0], steps[-1])
    last = next((pair for pair in segments[1:] if pair[0] < drawn), segments[0])
    return Segment(*last, final=steps[-1], orders=asked["orders"])


def kept_segments(steps: Sequence[int], asked: Any) -> list[tuple[int, int]]:
    """Return the segments with both states: the kept one of the decided ones, the last but one, and the last one.

    A last segment that is too short is part of the one before. FormatError if the training saved other states than the
    agent asked for.
    """
    cut = [*itertools.pairwise(steps)]
    saved, kept = (asked.get("saved"), asked.get("kept")) if isinstance(asked, dict) else (None, None)
    if not isinstance(saved, int) or not isinstance(kept, int) or not cut or len(cut) - saved not in (0, 1):
        raise FormatError(f"the agent asked for {saved} states; the training saved {max(len(steps) - 2, 0)}")
    if not 0 <= kept < max(saved, 1):
        raise FormatError(f"the agent kept segment {kept} of {saved}")
    *undecided, last = cut[max(saved - 1, 0) :]
    if undecided and last[1] - last[0] < SHORTEST_STEPS:
        undecided, last = [], (undecided[0][0], last[1])
    return [*([cut[kept - 1]] if kept else []), *undecided, last]
