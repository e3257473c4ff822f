"""What a framework must offer to the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterable, Iterator, Mapping, Protocol, Sequence

from flagperf_driver.training.profile import Profiler, StepBytes
from flagperf_driver.training.progress import TrainingProgress
from flagperf_driver.training.timeline import Marks, Timeline


class EvaluationError(ValueError):
    """The suite's evaluation returned an invalid result."""


@dataclass
class RankEvaluation:
    """The results of one rank's batches: sums, or a prediction for each item; none of both without a batch."""

    sums: list[float] = field(default_factory=list)
    predictions: list[Any] = field(default_factory=list)
    samples: int = 0
    """The samples of its batches, in the unit of the training's samples."""
    loading_s: float = 0.0
    """The time in which it waited for its batches."""

    @property
    def width(self) -> int | None:
        """The number of sums; 0 for predictions, None without a batch."""
        if self.sums and self.predictions:
            raise EvaluationError("evaluate_batch() returned sums for some batches and predictions for others")
        return len(self.sums) or (0 if self.predictions else None)


class DeviceError(RuntimeError):
    """The case's device was not found or does not support the case's settings."""


@dataclass(frozen=True)
class WeightChange:
    """How one weight of this rank changed in a segment; sums of squares over its elements."""

    name: str
    is_equal: bool
    """Bit by bit."""
    own: float
    """Of this process's weight."""
    change: float
    """Of the weight's change by this process."""
    theirs: float
    """Of its change by the training."""
    product: float
    """The product of both changes."""
    difference: float
    """Of the difference between this process's weight and the training's."""


class Repeater(Protocol):
    """What a framework must offer to repeat a segment of a training."""

    def repeat_from(self, folder: Path, steps: int) -> None:
        """Continue from the state that a training saved after so many steps, with the suite's own hyper-parameters.

        A vendor's steps may have written it.
        """

    def copied_weights(self) -> Any:
        """Return a copy of this rank's weights for ``weight_changes``."""

    def weight_changes(self, before: Path, after: Any) -> Iterable[WeightChange]:
        """Compare the trained weights with two states, all ranks together; ``after`` is a folder or copied weights.

        Each weight is compared once: by the rank that holds a part of it, or by the first rank.
        """

    def rounding(self) -> ContextManager[None]:
        """Return a context in which the results of the layers have further rounding errors of their type."""


class Trainer(Protocol):
    """One framework's side of one rank's training. The loop calls it once per optimizer step."""

    progress: TrainingProgress
    """How far the training is; the loop updates it, and a suite's steps may read it."""
    marks: Marks
    """How steps are timed."""
    learning_rate: float
    """The learning rate of the last step."""
    compiles: bool
    """Does the first step compile the model?"""
    repeater: Repeater
    """Repeats segments, and compares what comes of them."""
    step_bytes: Callable[[Callable[[], object]], StepBytes] | None
    """Count the bytes of a step by calling a function that trains one, several times; all ranks do. None if the
    framework cannot count them."""
    weights_digests: Callable[[], Mapping[str, str]]
    """Return a digest of each part of the weights that this rank holds, by the part's name.

    Ranks that hold the same part must have the same digest after each step.
    """

    def changed_at_rest(self) -> tuple[str, int] | None:
        """Return the first weight that no other rank holds and that changed between two updates, and in which step.

        None without such a weight, and unless the config sets ``replica_check_steps``.
        """

    def describe(self) -> Mapping[str, Any]:
        """Return the fields of INIT_END: parameters, libraries, device, optimizer, ...

        ``any_ranks``: whether any number of ranks reads the same samples in each step (``batches.any_ranks``).
        """

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        """Return what ``step`` needs of each batch of an epoch from batch ``start``, as many on every rank.

        The data get ``number`` by ``set_epoch``.
        """

    def step(self, first: Any, more: Iterator[Any], timeline: Timeline) -> int | None:
        """Train one optimizer step on ``first`` and, with gradient accumulation, on further batches of ``more``.

        Return the number of samples, 0 if another rank counts them. Return None if the epoch ended before the step was
        complete.
        """

    def losses(self, steps: int) -> list[float]:
        """Return the losses of the last ``steps`` steps. Only here the loop reads values from the device."""

    def step_figures(self) -> Mapping[str, float]:
        """Return those of ``STEP_FIGURES`` that this training has, of all ranks since the last call.

        All ranks call it, and only at a log point, because it reads from the device.
        """

    def evaluate(self, beat: Callable[[], None]) -> RankEvaluation:
        """Evaluate this rank's share of the evaluation set; call ``beat`` after each batch."""

    def summarize(self, results: list[Any]) -> Mapping[str, Any]:
        """Return the metrics of the whole evaluation set, and drawings."""

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, added in float64."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of the ranks."""

    def synchronize(self) -> None:
        """Wait until the device has done all its work."""

    def peak_memory(self) -> int | None:
        """Return the largest number of bytes of device memory that tensors used, or None if unknown."""

    def profiler(self) -> Profiler | None:
        """Return a profiler of the device; None if the framework or the vendor has none."""

    def threads(self) -> int:
        """Return the number of CPU threads that one operation may use."""

    def copy_state(self) -> Callable[[Path], None]:
        """Copy weights, optimizer, schedule and random states of all ranks, and return a function that writes them.

        Every rank calls both; the function in a thread, while the training continues, and before the next copy. On
        rank 0 it returns when all ranks' state is in the folder.
        """

    def load_state(self, folder: Path) -> None:
        """Continue from a written state, without running any code in it; every rank must call it.

        Other numbers of ranks may have written it. Random states are set when the next epoch begins; on another number
        of ranks they are new ones.
        """
