"""MLPerf's pretraining data: HDF5 files of fixed-length sequences, stored uncompressed.

A training file is read block by block, so memory stays small. Every rank reads every file, and of it
its own rows: the shares are disjoint and equally long, whatever the number of files and ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from flagperf_driver.pytorch import Context

Arrays = dict[str, NDArray[np.int64]]

TOKENS = ("input_ids", "segment_ids", "input_mask")
PREDICTIONS = ("masked_lm_positions", "masked_lm_ids")
KEYS = (*TOKENS, *PREDICTIONS, "next_sentence_labels")
IGNORED = -100
BLOCK = 4096
"""Rows read at once and shuffled among each other; the files are written shuffled, so neighbours differ."""


class ShardError(ValueError):
    """A file is not laid out as this reader expects."""


def list_shards(folder: Path) -> list[Path]:
    """List the HDF5 files."""
    files = sorted(folder.glob("*.hdf5"))
    if not files:
        raise ShardError(f"{folder} holds no *.hdf5 files: MLPerf's BERT shards are wanted, see README.md")
    return files


def check_layout(file: h5py.File, length: int, predictions: int) -> None:
    """Refuse a file that would be misread."""
    missing = [key for key in KEYS if key not in file]
    if missing:
        raise ShardError(f"{file.filename} lacks {', '.join(missing)}; it has {', '.join(sorted(file))}")
    widths = {**dict.fromkeys(TOKENS, (length,)), **dict.fromkeys(PREDICTIONS, (predictions,))}
    for key in KEYS:
        shape, row = file[key].shape, widths.get(key, ())
        if h5py.check_vlen_dtype(file[key].dtype) is not None:
            raise ShardError(f"{file.filename}: {key} is of variable length; fixed-length files are wanted")
        if shape[1:] != row:
            raise ShardError(f"{file.filename}: {key} is {shape}, wanted rows of {row or 'one number'}")


def open_shard(path: Path, length: int, predictions: int) -> h5py.File:
    """Open and check one file."""
    file = h5py.File(path, "r")
    check_layout(file, length, predictions)
    return file


def read_rows(file: h5py.File, start: int, end: int) -> Arrays:
    """Read rows of every key."""
    return {key: file[key][start:end].astype(np.int64) for key in KEYS}


def share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Give one rank's part of so many rows; the parts differ by at most one and leave nothing out."""
    return count * rank // world_size, count * (rank + 1) // world_size


def equal_share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Give one rank's part of so many rows, all parts equally long, so that all ranks make the same steps."""
    part = count // world_size
    return rank * part, (rank + 1) * part


def to_batch(rows: Arrays) -> dict[str, Tensor]:
    """Turn rows into a batch. Position 0 is [CLS], which is never masked: there it means "no prediction"."""
    positions = rows["masked_lm_positions"]
    arrays = {
        "input_ids": rows["input_ids"],
        "segment_ids": rows["segment_ids"],
        "input_mask": rows["input_mask"],
        "positions": positions,
        "labels": np.where(positions != 0, rows["masked_lm_ids"], IGNORED),
        "next_sentence_labels": rows["next_sentence_labels"],
    }
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def take(rows: Arrays, which: slice | NDArray[np.int64]) -> Arrays:
    """Take some rows of every key."""
    return {key: array[which] for key, array in rows.items()}


def join(parts: Sequence[Arrays]) -> Arrays:
    """Put rows one after the other."""
    return {key: np.concatenate([part[key] for part in parts]) for key in KEYS}


def shuffle_labels(rows: Arrays, rng: np.random.Generator) -> Arrays:
    """Give the true tokens to other places: a control that must not converge."""
    valid = rows["masked_lm_positions"] != 0
    labels = rows["masked_lm_ids"].copy()
    labels[valid] = rng.permutation(labels[valid])
    return {
        **rows,
        "masked_lm_ids": labels,
        "next_sentence_labels": rng.permutation(rows["next_sentence_labels"]),
    }


class TrainShards:
    """Give this rank's share of all files; seed and epoch give the order of files, of blocks and of rows."""

    def __init__(self, ctx: Context) -> None:
        assert ctx.data_dir is not None
        self.ctx = ctx
        self.epoch = 0
        self.files = list_shards(ctx.data_dir / ctx.config.train_data)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        size = self.ctx.config.train_batch_size
        rest: Arrays | None = None
        for block in read_ahead(self.blocks()):
            rows = block if rest is None else join([rest, block])
            whole = len(rows["input_ids"]) // size * size
            for i in range(0, whole, size):
                yield to_batch(take(rows, slice(i, i + size)))
            rest = take(rows, slice(whole, None))

    def blocks(self) -> Iterator[Arrays]:
        """Read this rank's rows, file after file."""
        ctx, config = self.ctx, self.ctx.config
        rng = np.random.default_rng((ctx.seed, self.epoch))  # the same on all ranks
        for index in rng.permutation(len(self.files)):
            with open_shard(self.files[index], config.max_seq_length, config.max_predictions_per_seq) as file:
                begin, end = equal_share(len(file["input_ids"]), ctx.rank, ctx.world_size)
                for start in rng.permutation(np.arange(begin, end, BLOCK)):
                    rows = read_rows(file, int(start), min(int(start) + BLOCK, end))
                    rows = take(rows, rng.permutation(len(rows["input_ids"])))
                    yield shuffle_labels(rows, rng) if config.shuffle_labels else rows


class EvalShards:
    """Give this rank's share of the first ``num_eval_samples`` rows, read once and kept."""

    def __init__(self, ctx: Context) -> None:
        assert ctx.data_dir is not None
        config = ctx.config
        self.batches: list[dict[str, Tensor]] = []
        files = list_shards(ctx.data_dir / config.eval_data)
        rows = read_share(files, config, *share(config.num_eval_samples, ctx.rank, ctx.world_size))
        for i in range(0, len(rows["input_ids"]), config.eval_batch_size):
            self.batches.append(to_batch(take(rows, slice(i, i + config.eval_batch_size))))

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self.batches)


def read_share(files: Sequence[Path], config: SimpleNamespace, start: int, end: int) -> Arrays:
    """Read rows start to end of the files taken as one."""
    parts, offset = [], 0
    for path in files:
        with open_shard(path, config.max_seq_length, config.max_predictions_per_seq) as file:
            count = len(file["input_ids"])
            low = max(start - offset, 0)
            parts.append(read_rows(file, low, max(low, min(end - offset, count))))
        offset += count
    found = sum(len(part["input_ids"]) for part in parts)
    if found < end - start:
        raise ShardError(f"{files[0].parent} holds {offset} samples; num_eval_samples wants rows {start} to {end}")
    return join(parts)


def read_ahead(blocks: Iterator[Arrays]) -> Iterator[Arrays]:
    """Read the next block while the last is used."""
    with ThreadPoolExecutor(1, "read-ahead") as reader:
        coming = reader.submit(next, blocks, None)
        while True:
            block = coming.result()
            if block is None:
                return
            coming = reader.submit(next, blocks, None)
            yield block
