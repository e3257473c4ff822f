"""The memory of each rank, estimated before a case runs: by the program that its suite declares."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flagperf_driver.training.parallel import DDP, Parallel, ParallelError

from ..case import Shape
from ..catalog import Suite
from ..problems import Problems
from ..typed import Check

ONE_CARD = "1x1"
SHAPES = (ONE_CARD, "1x2", "1x4", "1x8", "2x8")
"""The shapes that are estimated beside the case's own."""
RECOMPUTED: Mapping[str, object] = {"off": False, "selective": "selective", "full": True}
"""The values of checkpoint_activations, with the words of the table."""
ACCURACY = 0.1
"""The largest error of an estimate, as a share; the tests compare estimates with measured peaks."""
YES, TIGHT, NO = "yes", "tight", "no"
MIB, GIB = 2**20, 2**30
_PROGRAM_S = 20.0
_WITHOUT_SITE = ("-I", "-S")  # the program needs the standard library only, and starts in a tenth of the time


@dataclass(frozen=True)
class MemoryEstimate:
    """What a rank holds at the moment of a step at which it holds the most."""

    moment: str
    """The moment of the step, such as loss or update."""
    bytes: Mapping[str, float]
    """The parts, such as weights and activations."""

    @property
    def total(self) -> float:
        return sum(self.bytes.values())

    def fits(self, memory_gib: float) -> str:
        """Return whether a device of this memory holds it: yes or no if that is sure, else tight."""
        share = self.total / (memory_gib * GIB)
        return YES if share * (1 + ACCURACY) <= 1 else TIGHT if share <= 1 else NO


@dataclass(frozen=True)
class ShapeEstimates:
    """The estimates of a shape, by what is computed again in the backward pass; ``problem``: why it cannot run."""

    shape: str
    estimate: MemoryEstimate | None = None
    """By the config's own checkpoint_activations."""
    recomputed: Mapping[str, MemoryEstimate] = field(default_factory=dict)
    """By the words of ``RECOMPUTED``."""
    problem: str = ""


def estimates(suite: Suite, config: Mapping[str, Any], own: Shape) -> tuple[ShapeEstimates, ...]:
    """Return the estimates of a case's shape and of ``SHAPES``; nothing if the suite declares no program."""
    if suite.ranks.memory is None:
        return ()
    requests: list[dict[str, Any]] = []
    sizes: dict[str, Parallel | str] = {}
    for shape in dict.fromkeys((str(own), *SHAPES)):
        cards = Shape.parse(shape).cards
        try:
            # One card of a case, for its speed-up, has the whole model.
            sizes[shape] = found = Parallel.of(config.get("parallel", DDP) if cards > 1 else DDP, cards)
        except ParallelError as error:
            sizes[shape] = str(error)
            continue
        for value in (config["checkpoint_activations"], *RECOMPUTED.values()):
            requests.append({"config": {**config, "checkpoint_activations": value}, "parallel": vars(found)})
    replies = iter(_run(suite.ranks.memory, requests))
    return tuple(_estimates_of(shape, found, replies) for shape, found in sizes.items())


def _estimates_of(shape: str, found: Parallel | str, replies: Iterator[MemoryEstimate]) -> ShapeEstimates:
    if isinstance(found, str):
        return ShapeEstimates(shape, problem=found)
    return ShapeEstimates(shape, next(replies), {word: next(replies) for word in RECOMPUTED})


def _run(program: Path, requests: Sequence[Mapping[str, Any]]) -> list[MemoryEstimate]:
    """Return the program's replies, which are checked; raise Problems with what it wrote if it fails."""
    try:
        done = subprocess.run(
            [sys.executable, *_WITHOUT_SITE, str(program)],
            input=json.dumps(requests, default=str),
            capture_output=True,
            text=True,
            timeout=_PROGRAM_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Problems([f"{program}: cannot estimate the memory: {error}"]) from None
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2] or "no message"
        raise Problems([f"{program}: exit status {done.returncode}: {last}"])
    try:
        replies = json.loads(done.stdout)
    except ValueError as error:
        raise Problems([f"{program}: expected JSON on stdout; got {done.stdout[:80]!r}: {error}"]) from None
    check = Check()
    problems = [text for _, text in check.problems(replies, [MemoryEstimate])]
    if not problems and len(replies) != len(requests):
        problems = [f"expected {len(requests)} estimates; got {len(replies)}"]
    problems = problems or [
        f"{number}.bytes.{part} is {size!r}; expected a number from 0"
        for number, reply in enumerate(replies)
        for part, size in reply["bytes"].items()
        if not 0 <= size < float("inf")
    ]
    if problems:
        raise Problems([f"{program}: {problem}" for problem in problems[:3]])
    return [check.made(reply, MemoryEstimate) for reply in replies]


# -- the text of --plan ----------------------------------------------------------------------------------------


def lines(shapes: Sequence[ShapeEstimates], hardware: str, memory_gib: float | None) -> Iterator[str]:
    """Yield a sentence about the case, which is the first of the shapes, and a table of all shapes."""
    own = shapes[0].estimate if shapes else None
    if own is None:
        return
    yield of_device(own, hardware, memory_gib)
    size, unit = _unit(own.total)
    yield f"{unit} of each rank by shape; the last columns: the total by checkpoint_activations (full: True)"
    parts = list(dict.fromkeys(part for row in shapes if row.estimate for part in row.estimate.bytes))
    fits = [] if memory_gib is None else ["fits"]
    rows = [["shape", *parts, "total", *fits, *RECOMPUTED]]
    for row in shapes:
        if row.estimate is not None:
            sizes = [*(row.estimate.bytes.get(part, 0.0) for part in parts), row.estimate.total]
            answer = [] if memory_gib is None else [row.estimate.fits(memory_gib)]
            totals = [
                f"{one.total / size:.1f}{'*' if memory_gib and one.fits(memory_gib) == NO else ''}"
                for one in row.recomputed.values()
            ]
            rows.append([row.shape, *(f"{one / size:.1f}" for one in sizes), *answer, *totals])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    yield from (f"{row.shape.rjust(widths[0])}  {row.problem}" for row in shapes if row.problem)
    if memory_gib is not None:
        yield f"fits: {TIGHT} if less than a tenth of the {hardware}'s {memory_gib:g} GiB is left; * does not fit"


def of_device(estimate: MemoryEstimate, hardware: str, memory_gib: float | None) -> str:
    """Return the total and, if it is known, whether the device's memory holds it."""
    size, unit = _unit(estimate.total)
    total = f"about {estimate.total / size:.1f} {unit} of tensors on each rank, at the {estimate.moment}"
    if memory_gib is None:
        return total
    words = {YES: "fits", TIGHT: "may not fit", NO: "does not fit"}[estimate.fits(memory_gib)]
    return f"{total}; {words} into the {memory_gib:g} GiB of {hardware}"


def _unit(total: float) -> tuple[int, str]:
    """Return the unit for sizes of this order, in bytes and by its name."""
    return (GIB, "GiB") if total >= GIB else (MIB, "MiB")
