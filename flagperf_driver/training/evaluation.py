"""An evaluation of the whole evaluation set: every sample counts once, however the ranks share them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Iterable, Iterator

from flagperf_driver.training.steps import Drawings
from flagperf_driver.training.timeline import Marks
from flagperf_driver.training.trainer import EvaluationError, Trainer


class Loading:
    """The batches of an evaluation, and the time in which it waits for them: that is not the model's time."""

    def __init__(self, batches: Iterable[Any], marks: Marks) -> None:
        self._batches, self._marks = batches, marks
        self._line: list[Any] = []
        self.by_host = 0.0

    def __iter__(self) -> Iterator[Any]:
        batches, end = None, object()
        while True:
            self._line.append(self._marks.mark())
            begin = time.perf_counter()
            batches = iter(self._batches) if batches is None else batches
            batch = next(batches, end)
            self.by_host += time.perf_counter() - begin
            self._line.append(self._marks.mark())
            if batch is end:
                return
            yield batch

    def seconds(self) -> float:
        """Wait for the device; return the time in which it had no batch, at most that of the host.

        A vendor's marks may be wrong, and the host may load while the device works.
        """
        return min(sum(self._marks.seconds(self._line)[::2]), self.by_host)


@dataclass
class ModelTime:
    """What the model of this rank did in the evaluations of a training."""

    seconds: float = 0.0
    """All but loading batches, joining the ranks' results and summarizing them."""
    samples: int = 0


@dataclass
class Results:
    """What an evaluation found."""

    metrics: dict[str, float]
    drawings: dict[str, Drawings] = field(default_factory=dict)


def evaluate(
    trainer: Trainer, rank: int, expected: Collection[str], beat: Callable[[], None], model_time: ModelTime
) -> Results:
    """Return the results, the same on every rank; ``expected`` are the metrics with a target."""
    begin = time.perf_counter()
    share = trainer.evaluate(beat)
    model_time.seconds += time.perf_counter() - begin - share.loading_s
    model_time.samples += share.samples
    widths = trainer.gather(share.width)
    # A rank without a batch does not know how many sums there are.
    width = next((width for width in widths if width is not None), None)
    if width is None:
        raise EvaluationError("no rank got an evaluation batch; check that the evaluation set is not empty")
    for other, its in enumerate(widths):
        if its not in (None, width):
            raise EvaluationError(
                f"evaluate_batch() returned {_named(its)} on rank {other} and {_named(width)} on another rank"
            )
    if width:
        return _results(trainer, trainer.total(share.sums or [0.0] * width), expected)
    # One rank summarizes the predictions: that may take all cores of a host for seconds.
    items = [item for part in trainer.gather(share.predictions) for item in part]
    results: Results = trainer.gather(_results(trainer, items, expected) if rank == 0 else None)[0]
    return results


def _named(width: int) -> str:
    return f"{width} sums" if width else "predictions"


def _results(trainer: Trainer, results: list[Any], expected: Collection[str]) -> Results:
    summary = trainer.summarize(results)
    drawings = {name: value for name, value in summary.items() if isinstance(value, Drawings)}
    metrics = {name: float(value) for name, value in summary.items() if not isinstance(value, Drawings)}
    missing = " and ".join(repr(name) for name in expected if name not in metrics)
    if missing:
        got = ", ".join(sorted(metrics)) or "no metrics"
        raise EvaluationError(f"summarize() returned {got}; expected also {missing}, which has a target in suite.toml")
    return Results(metrics, drawings)
