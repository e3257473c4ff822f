"""Checks of Megatron's data: the samples and their order are those of megatron-core, and damaged files are named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from checking import SCRATCH, context, raises
from common.language import tokens
from common.language.megatron import Documents, Samples
from common.shares import Array, Draw, SourceError

from tests.suites.tiny_data import megatron as tiny

TRAIN, EVALUATION = f"{tiny.TRAIN}.bin", f"{tiny.EVALUATION}.bin"
OF_MEGATRON = {
    (1234, 32): "af06dd223ed9b4e9", (7, 50): "40f0f14bebde66c5", (3, 1000): "148494fad297ca5d",
}  # fmt: skip
"""By seed and length the SHA-256 of all samples as rows of int64, from GPTDataset of megatron-core 0.16.1."""
FILES_OF_MEGATRON = {"bin": "355137d74d59a302", "idx": "883928d4cbf465b7"}
"""The SHA-256 of the files for the training, as IndexedDatasetBuilder of megatron-core 0.16.1 writes them."""
SETTINGS = {
    "vocab_size": tiny.VOCAB_SIZE, "max_seq_length": 32, "train_batch_size": 4, "eval_batch_size": 4,
    "eval_sequences": 10, "train_data": TRAIN, "eval_data": EVALUATION,
}  # fmt: skip
tiny.write(SCRATCH)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def rows(samples: Samples, epoch: int = 0) -> Array:
    return samples[Draw(epoch, np.arange(len(samples)))]


def check_the_written_files_are_those_of_megatron() -> None:
    written = {end: digest((SCRATCH / f"{tiny.TRAIN}.{end}").read_bytes()) for end in FILES_OF_MEGATRON}
    assert written == FILES_OF_MEGATRON


def check_samples_and_their_order_are_those_of_megatron() -> None:
    documents = Documents(SCRATCH / TRAIN)
    found = {
        (seed, length): digest(rows(Samples(documents, length, tiny.VOCAB_SIZE, seed)).tobytes())
        for seed, length in OF_MEGATRON
    }
    assert found == OF_MEGATRON


def check_the_evaluation_has_the_first_sequences_in_the_order_of_the_file() -> None:
    joined = np.fromfile(SCRATCH / EVALUATION, "<i4")
    source, _ = tokens.evaluation(context(**SETTINGS))
    whole = source[Draw(0, np.arange(10))]
    assert len(source) == 10
    assert (whole.inputs.reshape(-1) == joined[:320]).all()
    assert (whole.targets.reshape(-1) == joined[1:321]).all()


def check_each_epoch_has_its_own_order_and_ranks_share_the_global_batches() -> None:
    def of(epoch: int, seed: int = 42, rank: int = 0, world_size: int = 1) -> list[bytes]:
        settings = {**SETTINGS, "train_batch_size": 4 // world_size}
        source, share = tokens.train(context(rank=rank, world_size=world_size, seed=seed, **settings))
        share.set_epoch(epoch)
        return [source[draw].inputs.tobytes() for draw in share]

    one = of(0)
    expected = rows(Samples(Documents(SCRATCH / TRAIN), 32, tiny.VOCAB_SIZE, 42))[:, :-1]
    assert one == [expected[first : first + 4].tobytes() for first in range(0, len(expected) - 3, 4)]
    halves = [of(0, rank=rank, world_size=2) for rank in range(2)]
    assert one == [left + right for left, right in zip(*halves, strict=True)]
    assert of(1) == of(1)
    assert len({tuple(of(epoch, seed)) for epoch, seed in ((0, 42), (1, 42), (0, 43))}) == 3


def check_a_resumed_epoch_continues_after_the_skipped_batches() -> None:
    source, share = tokens.train(context(**SETTINGS))
    whole = [source[draw].inputs.tobytes() for draw in share]
    share.skip(5)
    assert [source[draw].inputs.tobytes() for draw in share] == whole[5:]


def check_small_tokens_and_documents_without_tokens_are_read() -> None:
    sizes = [0, 3, 0, 0, 40, 1, 0]
    documents = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    tiny.write_documents(SCRATCH / "sixteen", documents, "<u2")
    samples = Samples(Documents(SCRATCH / "sixteen.bin"), 7, 64)
    assert rows(samples).tolist() == [list(range(first, first + 8)) for first in range(0, 36, 7)]


# -- damaged and missing data


def damaged(change: Callable[[Path], object], *words: str) -> None:
    folder = SCRATCH / "damaged"
    tiny.write(folder)
    change(folder)

    def read() -> None:
        source, share = tokens.train(replace(context(**SETTINGS), data_dir=folder))
        for draw in share:
            source[draw]

    raises(SourceError, read, *words)


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-size])


def put(name: str, place: int, content: bytes) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        old = (path / name).read_bytes()
        (path / name).write_bytes(old[:place] + content + old[place + len(content) :])

    return change


def check_damaged_files_are_named() -> None:
    data, index = TRAIN, f"{tiny.TRAIN}.idx"
    damaged(cut(data, 4), data, "bytes, expected", "copy both files again")
    damaged(cut(index, 8), index, "for 160 documents", "copy the file again")
    damaged(put(index, 0, b"<html>"), index, "not an index of Megatron's")
    damaged(put(index, 9, b"\x02"), index, "version 2", "expected version 1")
    damaged(put(index, 17, b"\x06"), index, "type 6", "whole numbers")
    damaged(put(index, 34, b"\xff\xff\xff\xff"), index, "do not match")
    damaged(put(index, 34 + 4 * 160 + 8, b"\x00"), index, "do not match")
    damaged(lambda path: (path / data).unlink(), data, "cannot be read", "No such file")
    damaged(lambda path: (path / index).unlink(), index, "cannot be read", "No such file")
    damaged(put(data, 400, b"\x40\x00\x00\x00"), data, "tokens from 0 to 64", "vocab_size = 64", "same tokenizer")


def check_too_few_tokens_and_a_missing_folder_are_errors() -> None:
    raises(
        SourceError,
        lambda: tokens.evaluation(context(**{**SETTINGS, "eval_sequences": 1024})),
        tiny.EVALUATION, "1024 sequences", "32769",
    )  # fmt: skip
    nowhere = replace(context(**SETTINGS), data_dir=None)
    raises(ValueError, lambda: tokens.train(nowhere), tiny.TRAIN, "--data-dir", "--synthetic")
