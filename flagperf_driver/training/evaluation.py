"""An evaluation of the whole evaluation set: every sample counts once, however the ranks share them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Collection

if TYPE_CHECKING:
    from flagperf_driver.training.trainer import Trainer


class EvaluationError(ValueError):
    """The suite's evaluation returned an invalid result."""


@dataclass
class RankEvaluation:
    """The results of one rank's batches: sums, or a prediction for each item; none of both without a batch."""

    sums: list[float] = field(default_factory=list)
    predictions: list[Any] = field(default_factory=list)

    @property
    def width(self) -> int | None:
        """The number of sums; 0 for predictions, None without a batch."""
        if self.sums and self.predictions:
            raise EvaluationError("evaluate_batch() returned sums for some batches and predictions for others")
        return len(self.sums) or (0 if self.predictions else None)


def evaluate(trainer: Trainer, rank: int, expected: Collection[str], beat: Callable[[], None]) -> dict[str, float]:
    """Return the metrics, the same on every rank; ``expected`` are the metrics with a target."""
    share = trainer.evaluate(beat)
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
        return _metrics(trainer, trainer.total(share.sums or [0.0] * width), expected)
    # One rank summarizes the predictions: that may take all cores of a host for seconds.
    items = [item for part in trainer.gather(share.predictions) for item in part]
    metrics: dict[str, float] = trainer.gather(_metrics(trainer, items, expected) if rank == 0 else None)[0]
    return metrics


def _named(width: int) -> str:
    return f"{width} sums" if width else "predictions"


def _metrics(trainer: Trainer, results: list[Any], expected: Collection[str]) -> dict[str, float]:
    metrics = trainer.summarize(results)
    missing = " and ".join(repr(name) for name in expected if name not in metrics)
    if missing:
        got = ", ".join(sorted(metrics)) or "no metrics"
        raise EvaluationError(f"summarize() returned {got}; expected also {missing}, which has a target in suite.toml")
    return {name: float(value) for name, value in metrics.items()}
