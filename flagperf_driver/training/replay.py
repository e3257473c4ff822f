"""The clean process of a replay: it repeats segments of a training without a vendor's code, and compares the results.

It starts from the state that the training saved at a segment's begin and trains the same batches to its end. What
differs from the state that was saved there is compared with what rounding alone changes: the segment is repeated a
second time with rounding errors in the results of the layers. Segments are repeated, in the order in which they were
drawn, until all repeated steps together reach a budget. The measured differences are logged as REPLAYED; the harness
judges them (``kinds/training/verdicts/replay.py``).
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from flagperf_driver import events, heartbeat
from flagperf_driver.driver import Rank
from flagperf_driver.training.checkpoint import TRAINING
from flagperf_driver.training.checkpoint_interval import CheckpointInterval
from flagperf_driver.training.evaluation import ModelTime, evaluate
from flagperf_driver.training.loop import Training
from flagperf_driver.training.progress import OF_ONE_RANK, LastEvaluation
from flagperf_driver.training.timeline import Timeline
from flagperf_driver.training.trainer import Trainer, WeightChange

_WARM_UP = 3
"""Steps of the segment whose time is not measured."""
_MOST = 1.1
"""The repeated steps of several segments, relative to the budget."""


def summary(ranks: Sequence[Sequence[WeightChange]]) -> dict[str, Any]:
    """Return how far the weights of a process and of a training lie apart; ``ranks`` have different parts of them."""
    rows = [row for of_rank in ranks for row in of_rank]
    own, change, theirs, product, difference = (
        math.fsum(getattr(row, name) for row in rows) for name in ("own", "change", "theirs", "product", "difference")
    )
    largest = max(rows, key=lambda row: row.difference)
    unequal = [(rank, row.name) for rank, of_rank in enumerate(ranks) for row in of_rank if not row.is_equal]
    return {
        "difference": _ratio(difference, change),
        "of_weights": _ratio(difference, own),
        "length": _ratio(theirs, change),
        "direction": product / math.sqrt(change * theirs) if change and theirs else 1.0,
        "largest": [largest.name, _ratio(largest.difference, largest.change)],
        "equal": not unequal,
        "first": [*unequal[0]] if unequal else None,
    }


def _ratio(one: float, other: float) -> float:
    return math.sqrt(one / other) if other else (0.0 if not one else 1e9)


class RepeatedTraining(Training):
    """Repeats segments of a training that the case names."""

    def __init__(self, rank: Rank, trainer: Trainer) -> None:
        super().__init__(replace(rank, case=replace(rank.case, replay={})), trainer)
        given = rank.case.replay
        self._folder = Path(given["states"])
        self._segments: Sequence[tuple[int, int]] = given["segments"]
        self._budget: float = given["budget"]
        self._final: int = given["final"]
        self._orders: Mapping[str, int] = given["orders"]
        self._losses: dict[int, float] = {}
        self._times: list[float] = []
        self._of_case = replace(self._due, checkpoint_steps=0, failure_interval_s=None)
        self._interval = CheckpointInterval(None)

    def run(self) -> None:
        begin = time.perf_counter()
        self.rank.log(events.INIT_END, self.trainer.describe())
        found: dict[str, Any] = {}
        self.rank.log(events.TRAIN_START)
        if (self._folder / "step0").is_dir():
            found["initial"] = self._compared(self._folder / "step0", self._folder / "step0")
        found["segments"] = self._repeated()
        found["step_time"] = statistics.median(self._times) if self._times else None
        found["metrics"] = self._evaluated_final()
        found["seconds"] = time.perf_counter() - begin
        if self.rank.world.rank == 0:
            self.rank.log(events.REPLAYED, found)
        self.rank.log(events.TRAIN_END, {"reason": "replay"})
        self.rank.log(events.FINISHED, {"e2e_time": self.rank.age()})

    def _repeated(self) -> list[dict[str, Any]]:
        """Repeat the first segment, and of the others in turn each that the budget allows."""
        found: list[dict[str, Any]] = []
        steps, times = 0, 1
        for first, last in self._segments:
            if not found or steps + times * (last - first) <= _MOST * self._budget:
                found.append(self._segment(first, last))
                times = 2 if "twin" in found[-1] else 1
                steps += times * (last - first)
            if steps >= self._budget:
                break
        return found

    def _segment(self, first: int, last: int) -> dict[str, Any]:
        """Repeat a segment, and again with rounding errors if the weights at its end are others."""
        before, repeater = self._folder / f"step{first}", self.trainer.repeater
        losses = self._repeat(before, last)
        self._times += self.timeline.totals.measured
        weights = self._compared(before, self._folder / f"step{last}")
        found: dict[str, Any] = {"first_step": first, "last_step": last, "weights": weights}
        twin: Mapping[int, float] = {}
        if not weights["equal"]:
            own = repeater.copied_weights()
            with repeater.rounding():
                twin = self._repeat(before, last)
            found["twin"] = summary(self._of_ranks(repeater.weight_changes(before, own)))
        found["losses"] = [[step, loss, twin.get(step, loss)] for step, loss in losses.items()]
        return found

    def _repeat(self, before: Path, last_step: int) -> dict[int, float]:
        """Train a segment again and return the losses of its log points."""
        body = self._load(before)
        self._due = replace(self._of_case, last_step=last_step, max_epochs=None, max_samples=None)
        self._first_step, self._closed, self._losses = self.progress.step + 1, [], {}
        self.last_evaluation = LastEvaluation(**body["evaluation"])
        self.timeline = Timeline(self.trainer.marks, _WARM_UP)
        self.log = self._note
        self._begin = time.perf_counter()
        self._train()
        self.trainer.synchronize()
        return self._losses

    def _load(self, state: Path) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((state / TRAINING).read_text("utf-8"))
        self.trainer.repeater.repeat_from(state, body["progress"]["step"])
        self.progress.set(body["progress"])
        if self.rank.world.rank:
            self.progress.set(dict.fromkeys(OF_ONE_RANK, 0))
        return body

    def _order(self, epoch: int) -> int:
        """Return what the agent gave the training, whatever this used."""
        return self._orders[str(epoch)]

    def _note(self, event: str, value: Mapping[str, Any] | None = None) -> None:
        """Take the place of the log while a segment is repeated: only its losses are of use."""
        if event == events.STEP_END and value is not None:
            self._losses[value["step"]] = value["loss"]

    def _evaluate(self, event: str) -> bool:
        """Evaluate as the training did, because that may draw random numbers; no target ends a segment."""
        if self.progress.step != self._due.last_step:
            super()._evaluate(event)
        return False

    def _elapsed(self) -> float:
        """No limit of time ends a segment."""
        return 0.0

    def _compared(self, before: Path, after: Path) -> dict[str, Any]:
        return summary(self._of_ranks(self.trainer.repeater.weight_changes(before, after)))

    def _of_ranks(self, rows: Iterable[WeightChange]) -> list[list[WeightChange]]:
        return list(self.trainer.gather([*rows]))

    def _evaluated_final(self) -> list[list[Any]]:
        """Evaluate the weights at the end of the training: for each metric its value, the training's and a twin's."""
        body = self._load(self._folder / f"step{self._final}")
        theirs = body["evaluation"]
        if theirs["step"] != self._final or self._of_case.throughput_only:
            return []
        values = twins = self._metrics()
        if any(value != theirs["metrics"].get(name) for name, value in values.items()):
            with self.trainer.repeater.rounding():
                twins = self._metrics()
        return [[name, values[name], theirs["metrics"].get(name), twins[name]] for name in self.rank.case.metric.values]

    def _metrics(self) -> Mapping[str, float]:
        names, rank = self.rank.case.metric.values, self.rank.world.rank
        beat = functools.partial(self._beat, heartbeat.EVALUATE)
        return evaluate(self.trainer, rank, names, beat, ModelTime()).metrics


def training_of(rank: Rank, trainer: Trainer) -> Training:
    """Return the training of a rank's case, or the replay of segments of it."""
    if "segments" in rank.case.replay:
        return RepeatedTraining(rank, trainer)
    return Training(rank, trainer)
