"""The Transformer's reference scale: fairseq's binarised files and texts; a step of the full model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from unittest import mock

import checking
import corpus
import data
import numpy as np
from words import BytePairs, CorpusError, Pieces

from tests.suites import trials
from tests.suites.damage import cut, put, remove
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
PARAMETERS = 210_808_832
"""The parameters that fairseq reports for ``transformer_wmt_en_de_big_t2t`` with this dictionary: 33,712 words of 1024;
in each layer of the encoder 4 x 1024^2 (attention), 2 x 4096 x 1024 + 4096 + 1024 and two norms; in each of the
decoder 8 x 1024^2, the same and three norms; two last norms."""
STEP = {"train_batch_size": 1, "layers": 2, "learning_rate": 1e-2, "lr_warmup": 1}
"""Two layers, and a rate whose step changes a norm's weight of 1 in fp32."""
FROZEN = "decoder_norm.bias"
os.environ["XDG_CACHE_HOME"] = str(checking.SCRATCH / "cache")


def judge(trained: trials.Trained) -> None:
    assert trained.metrics["sentences"] == wmt.TEST_SENTENCES


def check_texts_are_read_and_learnt() -> None:
    judge(TINY.check_learnt(TINY.folder("texts"), **TEXTS))


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
    folder = TINY.folder("cached")
    pieces = mock.Mock(wraps=Pieces(folder / wmt.MODEL, wmt.VOCAB_SIZE))

    def read() -> int:
        return len(
            corpus.read_text(folder / wmt.TEXT, pieces, folder / wmt.MODEL, checking.SCRATCH / "own cache").sizes
        )

    assert read() == read() == wmt.TRAIN_SENTENCES
    (folder / wmt.TEXT).write_text("ann\n", encoding="utf-8")
    assert read() == 1
    assert [len(call.args[0]) for call in pieces.encode.call_args_list] == [wmt.TRAIN_SENTENCES, 1]


# -- damaged and missing data


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
