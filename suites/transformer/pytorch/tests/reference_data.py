"""Checks of the Transformer's reference data: fairseq's binarised files and texts are read and learnt."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import checking
import corpus
import data
import numpy as np
from words import BytePairs, CorpusError, Pieces

from tests.suites import trials
from tests.suites.tiny_data import wmt

SMALLER = {
    "vocab_size": wmt.VOCAB_SIZE, "width": 32, "inner_width": 64, "heads": 2, "layers": 1, "dropout": 0.0,
    "attention_dropout": 0.0, "inner_dropout": 0.0, "bucket_lengths": [8, 16], "samples_per_item": 16,
    "train_batch_size": 4, "eval_batch_size": 5, "max_output_length": 10, "learning_rate": 5e-3, "lr_warmup": 5,
}  # fmt: skip
TEXTS = {"train_data": wmt.TEXT, "eval_data": wmt.TEST_TEXT, "text_model": wmt.MODEL, "bucket_lengths": [16, 32, 64],
         "samples_per_item": 64}  # fmt: skip
CUT = wmt.TRAIN
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, wmt.write)
write = TINY.write
os.environ["XDG_CACHE_HOME"] = str(checking.SCRATCH / "cache")


def check_binarised_files_are_read_and_learnt() -> None:
    trained = TINY.check_learnt(TINY.folder("binarised"))
    assert trained.metrics["sentences"] == wmt.TEST_SENTENCES


def check_texts_are_read_and_learnt() -> None:
    trained = TINY.check_learnt(TINY.folder("texts"), **TEXTS)
    assert trained.metrics["sentences"] == wmt.TEST_SENTENCES


def check_both_forms_are_the_same_sentences() -> None:
    folder = TINY.folder("both")
    pieces, byte_pairs = (
        Pieces(folder / wmt.MODEL, wmt.VOCAB_SIZE),
        BytePairs(folder / wmt.DICTIONARY, wmt.VOCAB_SIZE, "de"),
    )
    text = corpus.read_text(folder / "test.de", pieces, folder / wmt.MODEL)
    binarised = corpus.read_binarised(folder / "test.en-de.de.bin")
    references = corpus.read_lines(folder / wmt.REFERENCES)
    assert any('"' in line or "-" in line for line in references)
    for part, words in ((text, pieces), (binarised, byte_pairs)):
        rows = part.padded(np.arange(wmt.TEST_SENTENCES), 64, wmt.VOCAB_SIZE)
        assert words.texts([token for token in row.tolist() if token > corpus.EOS] for row in rows) == references


def check_an_encoded_text_is_cached_until_it_changes() -> None:
    folder, calls = TINY.folder("cached"), []

    class Counting:
        def __init__(self) -> None:
            self.pieces = Pieces(folder / wmt.MODEL, wmt.VOCAB_SIZE)

        def encode(self, lines: list[str]) -> list[list[int]]:
            calls.append(len(lines))
            return self.pieces.encode(lines)

    def read() -> list[int]:
        sizes = corpus.read_text(
            folder / wmt.TEXT, Counting(), folder / wmt.MODEL, checking.SCRATCH / "own cache"
        ).sizes
        return [int(size) for size in sizes]

    first = read()
    assert read() == first
    assert calls == [wmt.TRAIN_SENTENCES]
    (folder / wmt.TEXT).write_text("ann\n", encoding="utf-8")
    assert len(read()) == 1
    assert calls == [wmt.TRAIN_SENTENCES, 1]


# -- damaged and missing data


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-size])


def put(name: str, text: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_text(text, encoding="utf-8")


def remove(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).unlink()


def check_damaged_binarised_files_are_named() -> None:
    TINY.damaged(cut(wmt.TRAIN, 8), wmt.TRAIN, "expected", "copy both files again")
    TINY.damaged(cut(wmt.TRAIN_INDEX, 8), wmt.TRAIN_INDEX, "the file is cut")
    TINY.damaged(put(wmt.TRAIN_INDEX, "<html>"), wmt.TRAIN_INDEX, "no index of fairseq's")
    TINY.damaged(remove(wmt.TRAIN_INDEX), wmt.TRAIN_INDEX, "copy the file again")
    TINY.damaged(remove(wmt.TRAIN_TARGET), wmt.TRAIN_TARGET, "copy the file again")


def check_tokens_outside_of_the_vocabulary_are_named() -> None:
    def change(path: Path) -> None:
        tokens = np.fromfile(path / wmt.TRAIN, dtype="<i4")
        tokens[:: len(tokens) // 40] = wmt.VOCAB_SIZE + 1
        tokens.tofile(path / wmt.TRAIN)

    TINY.damaged(change, wmt.TRAIN, f"to {wmt.VOCAB_SIZE}", f"vocab_size = {wmt.VOCAB_SIZE}")


def check_files_that_do_not_belong_together_are_named() -> None:
    TINY.damaged(lambda path: wmt.binarise(path / "train.en-de.de", [[5, 2]] * 7), "160 sentences", "7")
    TINY.damaged(put(wmt.REFERENCES, "ein satz\n"), wmt.REFERENCES, "1 lines", "12")
    TINY.damaged(put("train.de", "ein satz\n"), "train.de 1", "160", **TEXTS)


def check_a_damaged_vocabulary_is_named() -> None:
    TINY.damaged(put(wmt.DICTIONARY, "hund 1\n"), wmt.DICTIONARY, "1 words", "expected 36")
    TINY.damaged(put(wmt.DICTIONARY, "hund\n"), f"{wmt.DICTIONARY}:1", "'hund'", "count")
    TINY.damaged(remove(wmt.DICTIONARY), wmt.DICTIONARY, "cannot be read")
    TINY.damaged(put(wmt.MODEL, "<html>"), wmt.MODEL, "sentencepiece cannot read", **TEXTS)
    TINY.damaged(remove(wmt.MODEL), wmt.MODEL, "file not found", **TEXTS)
    folder = TINY.folder("other size")
    trials.fails(lambda: TINY.train(folder, **{**TEXTS, "vocab_size": 41}), wmt.MODEL, "(40, 1, 2, 3)", "(41, 1, 2, 3)")


def check_missing_texts_are_named() -> None:
    TINY.damaged(remove(wmt.TEXT), wmt.TEXT, "file not found", **TEXTS)
    TINY.damaged(remove(wmt.REFERENCES), wmt.REFERENCES, "cannot be read")
    TINY.damaged(lambda path: (path / wmt.TEXT).write_bytes(b"\xff\n"), wmt.TEXT, "UTF-8", **TEXTS)
    ctx = replace(checking.context("reference"), data_dir=None)
    checking.raises(CorpusError, lambda: data.create_train_data(ctx), "pass --data-dir")
    folder = TINY.folder("language")
    trials.fails(lambda: TINY.train(folder, languages=["fr", "de"]), wmt.TRAIN, "'.fr.bin'")
