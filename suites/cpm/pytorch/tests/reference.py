"""CPM's reference scale: STC's lines as the original reads them, and a step of the full model."""

from __future__ import annotations

from pathlib import Path

import checking
import jieba
import model
import numpy as np
import sentencepiece
import stc
import torch
from common.shares import Draw
from lines import IGNORED, Lines

from tests.suites import trials
from tests.suites.damage import cut, put, remove
from tests.suites.tiny_data import stc as tiny

SMALLER = {
    "vocab_size": tiny.SIZE, "hidden_size": 32, "num_layers": 2, "num_attention_heads": 2, "hidden_dropout": 0.0,
    "attention_dropout": 0.0, "seq_length": 24, "train_batch_size": 8, "eval_batch_size": 4, "learning_rate": 3e-3,
    "lr_warmup": 0, "num_workers": 0,
}  # fmt: skip
CUT = tiny.MODEL
CHECKPOINT = "cpm_model_states_medium.pt"
LENGTH = 24
PARAMETERS = 334_080_000
"""CPM-medium: 0.33 billion in https://github.com/TsinghuaAI/CPM-1-Generate, here exactly by GPT-2's sizes:
24 layers of 12 x 1024 x 1024 weights and 13 x 1024 biases and norms, 30,000 tokens, 1024 positions, the last norm."""
STEP = {"train_batch_size": 1, "seq_length": 16, "num_layers": 2, "learning_rate": 1.0}
"""The rate of the first step is this divided by the 800 steps of the warm-up; with the suite's own rate the step would
be too small to change a norm's weight of 1 in fp32."""


def write(path: Path) -> None:
    """Write the tiny data directory, with a checkpoint of the smaller model."""
    tiny.write(path)
    torch.manual_seed(7)
    weights = model.create_model(checking.context("reference", **SMALLER, init_checkpoint=None)).state_dict()
    torch.save({"model": weights}, path / CHECKPOINT)


TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def judge(trained: trials.Trained) -> None:
    assert trained.metrics["texts"] >= tiny.EVAL_LINES


def read(path: Path, name: str = tiny.TRAIN) -> Lines:
    return stc.read(path / name, path / tiny.MODEL, tiny.SIZE, LENGTH, path / "cache")


def by_hand(path: Path, length: int) -> list[list[int]]:
    """Return the tokens of each sample, as the original makes them."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path / tiny.MODEL))
    rows = []
    for line in (path / tiny.TRAIN).open(encoding="utf-8").readlines():
        words = [word.replace(" ", "\u2582").replace("\n", "\u2583") for word in jieba.cut(line)]
        tokens = [*pieces.encode(" ".join(words)), pieces.piece_to_id("<eod>")]
        rows += [tokens[start : start + length + 1] for start in range(0, len(tokens), length + 1)]
    return [row for row in rows if len(row) > 1]


def check_tokens_are_those_of_the_original() -> None:
    path = TINY.folder("tokens")
    texts, rows = read(path), by_hand(path, LENGTH)
    assert len(texts) == len(rows) > tiny.TRAIN_LINES  # the long line has several parts
    batch = texts[Draw(0, np.arange(len(texts)))]
    for row, tokens, targets in zip(rows, batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        whole = row + [texts.pad] * (LENGTH + 1 - len(row))
        assert tokens == whole[:-1]
        assert targets == row[1:] + [IGNORED] * (LENGTH + 1 - len(row))


def check_many_lines_are_encoded_by_several_processes() -> None:
    path = TINY.folder("processes")
    together, chunk = read(path), stc.CHUNK
    stc.CHUNK = 7
    try:
        (path / tiny.TRAIN).touch()
        apart = read(path)
    finally:
        stc.CHUNK = chunk
    assert np.array_equal(together.tokens, apart.tokens)
    assert np.array_equal(together.first, apart.first)


def check_tokens_are_cached_until_a_file_changes() -> None:
    path = TINY.folder("cached")
    first = read(path)
    (kept,) = (path / "cache").glob("*.npz")
    np.savez(kept, tokens=first.tokens[:4] * 0, first=np.array([0, 4]))
    assert len(read(path)) == 1  # the file of the cache is used
    with (path / tiny.TRAIN).open("a", encoding="utf-8") as file:
        file.write("明天见\t好的\n")
    assert len(read(path)) == len(first) + 1


# -- damaged and missing data


def check_damaged_dialogues_are_named() -> None:
    TINY.damaged(put(tiny.TRAIN, "你好\n".encode() + b"\xff\n"), f"{tiny.TRAIN}:2", "not UTF-8", "copy the file")
    TINY.damaged(put(tiny.EVAL, b""), tiny.EVAL, "no dialogues")
    TINY.damaged(remove(tiny.EVAL), tiny.EVAL, "file not found")


def check_a_damaged_tokenizer_is_named() -> None:
    TINY.damaged(put(tiny.MODEL, "<html>"), tiny.MODEL, "not a sentencepiece model", "copy the file again")
    TINY.damaged(remove(tiny.MODEL), tiny.MODEL, "file not found", "bpe_3w_new")
    words = f"{tiny.SIZE} tokens", "expected vocab_size = 99"
    path = TINY.folder("other config")
    trials.fails(lambda: TINY.train(path, vocab_size=99, init_checkpoint=None), tiny.MODEL, *words)


def check_a_damaged_checkpoint_is_named() -> None:
    TINY.damaged(cut(CHECKPOINT, 2000), CHECKPOINT, "torch cannot read this file")
    TINY.damaged(remove(CHECKPOINT), CHECKPOINT, "file not found", "init_checkpoint")
    TINY.damaged(lambda path: torch.save({"module": {}}, path / CHECKPOINT), CHECKPOINT, "no 'model'", "module")


def check_a_checkpoint_of_weights_alone_is_loaded() -> None:
    path = TINY.folder("alone")
    together = TINY.train(path, max_steps=1)
    torch.save(torch.load(path / CHECKPOINT)["model"], path / CHECKPOINT)
    assert TINY.train(path, max_steps=1).losses == together.losses
    assert TINY.train(path, max_steps=1, init_checkpoint=None).losses != together.losses
