"""MLPerf's pretraining data: HDF5 files of fixed-length sequences, stored uncompressed.

Training files are read block by block to save memory. Every rank reads its own rows of every file: the shares do
not overlap and have equal lengths, for any number of files and ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
from numpy.typing import NDArray

from common.shares import RankContext

Arrays = dict[str, NDArray[np.int64]]

TOKENS = ("input_ids", "segment_ids", "input_mask")
PREDICTIONS = ("masked_lm_positions", "masked_lm_ids")
KEYS = (*TOKENS, *PREDICTIONS, "next_sentence_labels")
IGNORED = -100
BLOCK = 4096
"""Number of rows that are read and shuffled together; rows are also shuffled within the files."""


class ShardError(ValueError):
    """A file has an unexpected layout."""


def list_shards(folder: Path) -> list[Path]:
    """List the HDF5 files; hidden files, such as ``._part_0_of_2048.hdf5`` of an archive from macOS, are not."""
    files = sorted(file for file in folder.glob("*.hdf5") if file.name[0] != ".")
    if not files:
        raise ShardError(f"{folder}: no *.hdf5 files; expected MLPerf's BERT shards (README.md)")
    return files


def check_layout(file: h5py.File, length: int, predictions: int) -> None:
    """Raise an error if the file has an unexpected layout."""
    missing = [key for key in KEYS if key not in file]
    if missing:
        raise ShardError(f"{file.filename}: missing {', '.join(missing)}; found {', '.join(sorted(file))}")
    widths = {**dict.fromkeys(TOKENS, (length,)), **dict.fromkeys(PREDICTIONS, (predictions,))}
    for key in KEYS:
        shape, row = file[key].shape, widths.get(key, ())
        if h5py.check_vlen_dtype(file[key].dtype) is not None:
            raise ShardError(f"{file.filename}: {key} has variable length; expected files of fixed length")
        if shape[1:] != row:
            raise ShardError(f"{file.filename}: {key} has shape {shape}; expected rows of {row or 'one number'}")


@contextmanager
def open_shard(path: Path, config: SimpleNamespace) -> Iterator[h5py.File]:
    """Open and check one file; errors of reading it name the file."""
    try:
        with h5py.File(path, "r") as file:
            check_layout(file, config.max_seq_length, config.max_predictions_per_seq)
            yield file
    except OSError as error:
        raise ShardError(f"{path}: cannot be read as HDF5: {error}; copy the file again") from error


def read_rows(file: h5py.File, start: int, end: int, config: SimpleNamespace) -> Arrays:
    """Read some rows of every key and check their values: a device would fail on them without a useful message."""
    rows = {key: file[key][start:end] for key in KEYS}
    limits = {
        "input_ids": config.vocab_size, "masked_lm_ids": config.vocab_size,
        "masked_lm_positions": config.max_seq_length, "segment_ids": 2, "next_sentence_labels": 2,
    }  # fmt: skip
    for key, limit in limits.items():
        wrong = rows[key][(rows[key] < 0) | (rows[key] >= limit)]
        if len(wrong):
            raise ShardError(f"{file.filename}: {key} contains {wrong[0]}; expected 0 to {limit - 1}")
    return {key: array.astype(np.int64) for key, array in rows.items()}


def share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return one rank's range of ``count`` rows; the ranges include all rows and differ by at most one row."""
    return count * rank // world_size, count * (rank + 1) // world_size


def equal_share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return one rank's range of ``count`` rows; all ranges have the same length, for equal numbers of steps."""
    part = count // world_size
    return rank * part, (rank + 1) * part


def to_batch(rows: Arrays) -> Arrays:
    """Convert rows to a batch. Position 0 means "no prediction": it is [CLS], which is never masked."""
    positions = rows["masked_lm_positions"]
    return {
        "input_ids": rows["input_ids"],
        "segment_ids": rows["segment_ids"],
        "input_mask": rows["input_mask"],
        "positions": positions,
        "labels": np.where(positions != 0, rows["masked_lm_ids"], IGNORED),
        "next_sentence_labels": rows["next_sentence_labels"],
    }


def take(rows: Arrays, which: slice | NDArray[np.int64]) -> Arrays:
    """Return some rows of every key."""
    return {key: array[which] for key, array in rows.items()}


def join(parts: Sequence[Arrays]) -> Arrays:
    """Concatenate rows."""
    return {key: np.concatenate([part[key] for part in parts]) for key in KEYS}


def shuffle_labels(rows: Arrays, rng: np.random.Generator) -> Arrays:
    """Permute the labels, for a control training that must not converge."""
    valid = rows["masked_lm_positions"] != 0
    labels = rows["masked_lm_ids"].copy()
    labels[valid] = rng.permutation(labels[valid])
    return {
        **rows,
        "masked_lm_ids": labels,
        "next_sentence_labels": rng.permutation(rows["next_sentence_labels"]),
    }


class TrainShards:
    """A rank's share of all files; seed and epoch determine the order of files, blocks and rows."""

    def __init__(self, ctx: RankContext) -> None:
        assert ctx.data_dir is not None
        self.ctx = ctx
        self.epoch = 0
        self.files = list_shards(ctx.data_dir / ctx.config.train_data)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Arrays]:
        size = self.ctx.config.train_batch_size
        rest: Arrays | None = None
        for block in read_ahead(self.blocks()):
            rows = block if rest is None else join([rest, block])
            whole = len(rows["input_ids"]) // size * size
            for i in range(0, whole, size):
                yield to_batch(take(rows, slice(i, i + size)))
            rest = take(rows, slice(whole, None))

    def blocks(self) -> Iterator[Arrays]:
        """Yield blocks of this rank's rows, file by file."""
        ctx, config = self.ctx, self.ctx.config
        rng = np.random.default_rng((ctx.seed, self.epoch))  # the same on all ranks
        for index in rng.permutation(len(self.files)):
            with open_shard(self.files[index], config) as file:
                begin, end = equal_share(len(file["input_ids"]), ctx.data_rank, ctx.data_ranks)
                for start in rng.permutation(np.arange(begin, end, BLOCK)):
                    rows = read_rows(file, int(start), min(int(start) + BLOCK, end), config)
                    rows = take(rows, rng.permutation(len(rows["input_ids"])))
                    yield shuffle_labels(rows, rng) if config.shuffle_labels else rows


class EvalShards:
    """A rank's share of the evaluation set, read once and kept in memory."""

    def __init__(self, ctx: RankContext) -> None:
        assert ctx.data_dir is not None
        config = ctx.config
        self.batches: list[Arrays] = []
        files = list_shards(ctx.data_dir / config.eval_data)
        rows = read_share(files, config, *share(config.num_eval_samples, ctx.data_rank, ctx.data_ranks))
        for i in range(0, len(rows["input_ids"]), config.eval_batch_size):
            self.batches.append(to_batch(take(rows, slice(i, i + config.eval_batch_size))))

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Arrays]:
        return iter(self.batches)


def read_share(files: Sequence[Path], config: SimpleNamespace, start: int, end: int) -> Arrays:
    """Read rows start to end of the concatenated files, which must contain exactly the evaluation set."""
    parts, counts = [], {}
    for path in files:
        offset = sum(counts.values())
        with open_shard(path, config) as file:
            counts[path.name] = count = len(file["input_ids"])
            low = min(max(start - offset, 0), count)
            parts.append(read_rows(file, low, max(low, min(end - offset, count)), config))
    if sum(counts.values()) != config.num_eval_samples:
        found = ", ".join(f"{name} ({count})" for name, count in counts.items())
        raise ShardError(
            f"{files[0].parent}: {sum(counts.values())} samples found in {found}; expected num_eval_samples = "
            f"{config.num_eval_samples}: only the files of the evaluation set may be in this folder"
        )
    return join(parts)


def read_ahead(blocks: Iterator[Arrays]) -> Iterator[Arrays]:
    """Yield blocks and read each next block in advance."""
    with ThreadPoolExecutor(1, "read-ahead") as reader:
        pending = reader.submit(next, blocks, None)
        while True:
            block = pending.result()
            if block is None:
                return
            pending = reader.submit(next, blocks, None)
            yield block
