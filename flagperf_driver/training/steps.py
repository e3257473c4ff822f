"""What every framework passes to a suite's steps, and the steps that every suite must have."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping

from flagperf_driver.driver import Config, Rank
from flagperf_driver.training.parallel import DDP, Parallel
from flagperf_driver.training.progress import TrainingProgress

MOST_PIXELS = 1 << 14
"""Of the drawings of an evaluation, which are part of the log."""
Batch = Any
"""Arrays or tensors in any nesting; only the suite knows the structure."""


@dataclass(frozen=True)
class Context:
    """The context that is passed to every step."""

    config: Config
    """All resolved config keys as attributes."""
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    seed: int = 42
    """The round's seed, the same on all ranks. Derive random numbers of the data from (seed, epoch, index)."""
    scale: str = "reference"
    synthetic: bool = False
    data_dir: Path | None = None
    suite_dir: Path = field(default_factory=Path.cwd)
    metric: str = ""
    direction: str = "higher"
    target: float | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)
    """The declared peaks of the chip in FLOP/s and B/s, by their keys in vendor.toml."""
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    """The progress of the training: ``progress.step`` is the number of completed optimizer steps."""

    @property
    def parallel(self) -> Parallel:
        """How the ranks share the model and the samples."""
        return Parallel.of(getattr(self.config, "parallel", DDP), self.world_size)

    @property
    def data_rank(self) -> int:
        """Which share of the samples this rank reads; ranks that compute a layer together read the same."""
        return self.parallel.data_rank(self.rank)

    @property
    def data_ranks(self) -> int:
        """The number of shares of the samples."""
        return self.parallel.data_ranks


def context_fields(rank: Rank, suite_dir: Path) -> dict[str, Any]:
    """Return the values of a rank's context."""
    case, world = rank.case, rank.world
    return {
        "config": case.config,
        "rank": world.rank,
        "world_size": world.world_size,
        "local_rank": world.local_rank,
        "local_world_size": world.local_world_size,
        "seed": case.seed,
        "scale": case.scale,
        "synthetic": case.synthetic,
        "data_dir": case.data_dir,
        "suite_dir": suite_dir,
        "metric": case.metric.name,
        "direction": case.metric.direction,
        "target": case.metric.value,
        "peaks": case.peaks,
    }


@dataclass(frozen=True)
class Drawings:
    """Some small grey pictures of equal size that a model drew."""

    rows: int
    columns: int
    pixels: bytes
    """Drawing after drawing, row by row, from 0 (black) to 255 (white)."""

    def __post_init__(self) -> None:
        count, size = len(self.pixels), self.rows * self.columns
        if min(self.rows, self.columns) < 1 or not 0 < count <= MOST_PIXELS or count % size:
            raise ValueError(
                f"{count:,} pixels for drawings of {self.rows} x {self.columns}; expected whole drawings, "
                f"at most {MOST_PIXELS:,} pixels"
            )


@dataclass(frozen=True)
class Steps:
    """The named steps of a training that every suite must pass. Models, batches and losses are the framework's own."""

    create_model: Callable[[Any], Any]
    """Return the model, with the same weights on every rank (the framework is seeded before the call)."""
    create_train_data: Callable[[Any], Iterable[Batch]]
    """Return this rank's share of the data; one pass is one epoch. If the data have these methods, the loop calls
    ``set_epoch(int)`` before each pass and ``skip(batches)`` before the first pass of a resumed training. Order and
    random changes follow from the seed and that number below 2**31, the epoch's own or, with a replay, a drawn one. If
    their attribute ``any_ranks`` is true, a training may continue on another number of ranks (``batches.any_ranks``).
    """
    create_eval_data: Callable[[Any], Iterable[Batch]]
    """Return this rank's share. Shares must not overlap and together contain every sample; a share may be empty."""
    calculate_loss: Callable[[Any, Any, Batch], Any]
    """Return the mean loss of the batch."""
    evaluate_batch: Callable[[Any, Any, Batch], Any]
    """Return one-dimensional sums, e.g. [correct, count], which are added in float64 over batches and ranks; or a list
    with one prediction for each item, of plain values and numpy arrays, which is joined over batches and ranks."""
    summarize: Callable[[Any, list[Any]], Mapping[str, float | Drawings]]
    """Return the metrics by name, including all that have a target, from the sums over the whole evaluation set, or
    from all predictions. With predictions only the first rank calls it. A model that draws may also return Drawings
    by name; the page shows the first and the last ones."""
    count_samples: Callable[[Any, Batch], int]
    """Return the number of samples of a batch of the training or the evaluation."""
    count_tokens: Callable[[Any, Batch], tuple[int, int, int]] | None = None
    """For samples that are padded: the tokens of a training batch without padding, those of as many samples of full
    length, and all that the model computes. The batch is that of the data, not prepared. The MFU does not count
    padding as work."""
