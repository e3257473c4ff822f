"""What the trainers of all frameworks but PyTorch share: values between ranks, epochs, evaluation, checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, Mapping, Protocol, Sequence

import numpy as np

from flagperf_driver.driver import Rank
from flagperf_driver.training.batches import any_ranks, begin_epoch, steps_per_epoch
from flagperf_driver.training.checks import replicas
from flagperf_driver.training.evaluation import Loading
from flagperf_driver.training.meeting import Meeting
from flagperf_driver.training.profile import Profiler, StepBytes
from flagperf_driver.training.schedules import Factor, factor
from flagperf_driver.training.steps import Context, Steps
from flagperf_driver.training.timeline import Marks, Timeline
from flagperf_driver.training.trainer import RankEvaluation, Repeater, WeightChange

Arrays = Dict[str, Any]
"""numpy arrays by name."""
_ARRAYS = "arrays.npz"


class States(Protocol):
    """The values of a training that a checkpoint keeps, as numpy arrays."""

    def weights(self) -> Arrays:
        """Return the trained weights by name."""

    def arrays(self) -> Arrays:
        """Return the values that are the same on all ranks: the weights and the optimizer's state."""

    def set_arrays(self, arrays: Mapping[str, Any]) -> None:
        """Set what ``arrays`` returned."""

    def statistics(self) -> Arrays:
        """Return the statistics that each rank keeps for itself, such as a batch norm's means."""

    def set_statistics(self, arrays: Mapping[str, Any]) -> None:
        """Set the statistics."""


class BaseTrainer(ABC):
    """A trainer without the parts that call a framework; see ``Trainer`` for what the loop expects.

    A framework's trainer creates its model and optimizer, then calls ``__init__``.
    """

    model: Any
    marks: Marks
    compiles = False
    step_bytes: Callable[[Callable[[], object]], StepBytes] | None = None

    def __init__(self, rank: Rank, ctx: Context, steps: Steps, meeting: Meeting, states: States) -> None:
        self.progress = ctx.progress
        self.learning_rate = 0.0
        self.states = states
        self.weights_digests: Callable[[], Mapping[str, str]] = lambda: {
            replicas.WHOLE: replicas.digest(states.weights())
        }
        self.repeater: Repeater = ArrayRepeater(ctx, states, self.load_state)
        self._rank, self._ctx, self._steps, self._meeting = rank, ctx, steps, meeting
        self._accumulation: int = ctx.config.gradient_accumulation_steps
        self._train_data = steps.create_train_data(ctx)
        self.progress.steps_per_epoch = steps_per_epoch(self._train_data, self._accumulation, self._minimum)
        self._eval_data = steps.create_eval_data(ctx)
        self._factor: Factor = factor(ctx.config, self.progress.steps_per_epoch)
        self._losses: list[Any] = []
        self._evaluate_batch: Callable[[Any], Any] = self._evaluate_eagerly

    # -- a framework's part --------------------------------------------------------------------------------

    def _evaluating(self) -> ContextManager[None]:
        """Return the context of an evaluation."""
        return contextlib.nullcontext()

    @abstractmethod
    def _micro_step(self, batch: Any, timeline: Timeline, *, last: bool) -> Any:
        """Compute the gradients of a batch, and with the last batch of a step update the weights; return the loss.

        The loss is the batch's part of the step's loss.
        """

    @abstractmethod
    def _forget_gradients(self) -> None:
        """Forget the gradients of an incomplete step."""

    _evaluate_in_graph: Callable[[Any], Any] | None = None
    """The suite's ``evaluate_batch`` as a graph, for a framework that has graphs."""

    def _read_losses(self, losses: list[Any]) -> list[float]:
        """Read the losses of steps from the device."""
        return [float(loss) for loss in losses]

    def _prepared(self, batch: Any) -> Any:
        """Return a batch as the steps expect it."""
        return self._steps.prepare_batch(self._ctx, batch)  # type: ignore[attr-defined]

    def _described(self, libraries: Mapping[str, str], device: str, optimizer: Any) -> dict[str, Any]:
        """Return the description for INIT_END without the number of parameters; the framework is the first library."""
        return {
            "device": device,
            "framework_version": next(iter(libraries.values())),
            "libraries": dict(libraries),
            "precision": self._ctx.config.precision,
            "world_size": self._ctx.world_size,
            "compile": self.compiles,
            "optimizer": type(optimizer).__name__,
            "parallel": "data" if self._ctx.world_size > 1 else None,
            "any_ranks": any_ranks(self._train_data),
            "replaced": (),
            "deviations": {},
            "replaced_hooks": (),
        }

    # -- training ------------------------------------------------------------------------------------------

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        first, end = begin_epoch(self._train_data, number, start, self._minimum)
        # A prepared batch is on the device: its tokens are counted before.
        count = self._steps.count_tokens or (lambda *_: None)
        batches = itertools.islice(self._train_data, first, end)
        return ((count(self._ctx, batch), self._prepared(batch)) for batch in batches)

    def step(self, first: Any, more: Iterator[Any], timeline: Timeline) -> int | None:
        samples, read, loss = 0, first, None
        for micro in range(1, self._accumulation + 1):
            if micro > 1:
                read = next(more, None)
                if read is None:
                    self._forget_gradients()
                    timeline.drop()
                    return None
            timeline.begin()
            counted, batch = read
            if counted:
                self.progress.add_tokens(counted)
            samples += self._steps.count_samples(self._ctx, batch)
            part = self._micro_step(batch, timeline, last=micro == self._accumulation)
            loss = part if loss is None else loss + part
            timeline.end()
        self._losses.append(loss)
        return samples

    def _next_rate(self) -> float:
        """Return the learning rate of the step that begins."""
        self.learning_rate = float(self._ctx.config.learning_rate * self._factor(self.progress.step + 1))
        return self.learning_rate

    def losses(self, steps: int) -> list[float]:
        losses, self._losses = self._losses, []
        assert len(losses) == steps, "one loss is kept for each step"
        return self._read_losses(losses)

    def step_figures(self) -> Mapping[str, float]:
        return {}

    def changed_at_rest(self) -> None:
        return None  # every rank holds all weights

    # -- evaluation ----------------------------------------------------------------------------------------

    def evaluate(self, beat: Callable[[], None]) -> RankEvaluation:
        self._average_statistics()
        sums: list[Any] = []
        predictions: list[Any] = []
        samples, batches = 0, Loading(map(self._prepared, self._eval_data), self.marks)
        with self._evaluating():
            for batch in batches:
                result = self._evaluate_batch(batch)
                if isinstance(result, list):
                    predictions += result
                else:
                    sums.append(np.asarray(result, dtype=np.float64))
                    # A list of predictions is made of values, which a graph does not have.
                    self._evaluate_batch = self._evaluate_in_graph or self._evaluate_eagerly
                samples += self._steps.count_samples(self._ctx, batch)
                beat()
        added = np.sum(sums, axis=0).tolist() if sums else []
        return RankEvaluation(added, predictions, samples, batches.seconds())

    def _evaluate_eagerly(self, batch: Any) -> Any:
        return self._steps.evaluate_batch(self._ctx, self.model, batch)

    def summarize(self, results: list[Any]) -> Mapping[str, Any]:
        return self._steps.summarize(self._ctx, results)

    def _average_statistics(self) -> None:
        """Average the statistics over all ranks: each rank has seen only its share."""
        if self._ctx.world_size == 1:
            return
        self.states.set_statistics(_mean(self.gather(self.states.statistics())))

    # -- all ranks, and the device -------------------------------------------------------------------------

    def gather(self, value: Any) -> list[Any]:
        return self._meeting.gather(value)

    def total(self, values: Sequence[float]) -> list[float]:
        return [math.fsum(of_ranks) for of_ranks in zip(*self.gather(list(map(float, values))))]

    def _minimum(self, value: int) -> int:
        return int(min(self.gather(value)))

    def profiler(self) -> Profiler | None:
        return None

    def threads(self) -> int:
        return int(os.environ.get("OMP_NUM_THREADS") or 1)

    # -- checkpoints ---------------------------------------------------------------------------------------

    def copy_state(self) -> Callable[[Path], None]:
        ranks = self.gather(self.states.statistics())
        if self._ctx.rank:
            return lambda _: None
        arrays = {f"rank{rank}/{name}": value for rank, own in enumerate(ranks) for name, value in own.items()}
        # A framework may return an array in the memory of its variable.
        arrays.update({f"all/{name}": np.array(value) for name, value in self.states.arrays().items()})

        def write(folder: Path) -> None:
            with (folder / _ARRAYS).open("wb") as stream:
                np.savez(stream, **arrays)
                stream.flush()
                os.fsync(stream.fileno())

        return write

    def load_state(self, folder: Path) -> None:
        parts: dict[str, Arrays] = {}
        with np.load(folder / _ARRAYS, allow_pickle=False) as file:
            for stored in file.files:
                part, _, name = stored.partition("/")
                parts.setdefault(part, {})[name] = file[stored]
        self.states.set_arrays(parts.pop("all"))
        if len(parts) == self._ctx.world_size:
            self.states.set_statistics(parts[f"rank{self._ctx.rank}"])
        elif parts:
            self.states.set_statistics(_mean([*parts.values()]))


class ArrayRepeater:
    """Repeats segments; no vendor's steps are supported, so without them nothing may differ. See ``Repeater``."""

    def __init__(self, ctx: Context, states: States, load: Callable[[Path], None]) -> None:
        self._ctx, self._states, self._load = ctx, states, load

    def repeat_from(self, folder: Path, steps: int) -> None:  # noqa: ARG002 - the settings are the suite's own
        self._load(folder)

    def copied_weights(self) -> Arrays:
        return {name: np.array(value) for name, value in self._states.weights().items()}

    def weight_changes(self, before: Path, after: Any) -> Iterator[WeightChange]:
        if self._ctx.rank:
            return
        with np.load(before / _ARRAYS, allow_pickle=False) as first:
            last = after if isinstance(after, dict) else np.load(after / _ARRAYS, allow_pickle=False)
            for name, own in self._states.weights().items():
                begin, end = first[f"all/model/{name}"], last[name if last is after else f"all/model/{name}"]
                pairs = (own, own), (own - begin,) * 2, (end - begin,) * 2, (own - begin, end - begin), (own - end,) * 2
                sums = [float(np.vdot(one, other)) for one, other in pairs]
                yield WeightChange(name, bool(np.array_equal(own, end)), *sums)

    def rounding(self) -> ContextManager[None]:
        return contextlib.nullcontext()


def _mean(ranks: Sequence[Arrays]) -> Arrays:
    return {name: np.mean([rank[name] for rank in ranks], axis=0) for name in ranks[0]}
