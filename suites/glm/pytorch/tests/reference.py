"""GLM's reference scale: ReCoRD as FlagPerf encodes it and as SuperGLUE publishes it; a step of the full model."""

from __future__ import annotations

import functools
import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import checking
import data
import h5py
import model
import numpy as np
import torch

from tests.suites import trials
from tests.suites.damage import Change, cut, put, remove
from tests.suites.tiny_data import record

SMALLER = {
    "hidden_size": 32, "num_layers": 2, "num_attention_heads": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "max_candidates": 4, "max_seq_length": 64, "train_batch_size": 4, "eval_batch_size": 4, "learning_rate": 3e-3,
    "lr_warmup": 0, "generative_weight": 1.0, "checkpoint_activations": False,
}  # fmt: skip
LINES = {"train_data": record.TRAIN_LINES, "eval_data": record.EVAL_LINES, "vocab_file": record.VOCABULARY}
CUT = record.TRAIN
CHECKPOINT = "blocklm-large-blank/200000/mp_rank_00_model_states.pt"
PARAMETERS = 334_688_256
"""GLM-Large: 335 M in the table of https://github.com/THUDM/GLM, here exactly by the sizes of the published checkpoint:
24 layers of width 1024, 30,592 tokens, two tables of 513 positions."""
STEP = {
    "train_batch_size": 1, "max_candidates": 2, "synthetic_examples": 2, "num_layers": 2, "learning_rate": 1e-2,
}  # fmt: skip
"""The rate of the first step is this divided by the steps of the warm-up. With the suite's own rate the step would be
too small to change a norm's weight of 1 in fp32."""


def write(path: Path) -> None:
    """Write the tiny data directory, with a checkpoint of the smaller model and the published file's other values."""
    record.write(path)
    torch.manual_seed(7)
    weights = model.create_model(checking.context("reference", **SMALLER, init_checkpoint=None)).state_dict()
    (path / CHECKPOINT).parent.mkdir(parents=True)
    others = {"iteration": 200000, "args": Namespace(lr=1e-5), "np_rng_state": np.random.get_state()}
    torch.save({"module": weights, **others}, path / CHECKPOINT)


TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def judge(trained: trials.Trained) -> None:
    assert trained.metrics["questions"] == 2 * record.EVAL_ITEMS


def check_published_lines_are_read_and_learnt() -> None:
    trained = TINY.train(TINY.folder("lines"), **LINES)
    assert trained.learnt(), trained.losses
    assert trained.metrics["questions"] == 2 * record.EVAL_ITEMS


def check_both_forms_contain_the_same_questions() -> None:
    path = TINY.folder("both")

    def read(**settings: object) -> data.ClozeSet:
        ctx = checking.context("reference", **{**SMALLER, "max_seq_length": record.LENGTH, **settings})
        return data.evaluation(replace(ctx, data_dir=path)).data

    encoded, lines = read(), read(**LINES)
    differing = [
        name
        for name in ("text_length", "mask_at", "answers", "answer_length", "right", "first")
        if not torch.equal(getattr(encoded, name).long(), getattr(lines, name).long())
    ]
    assert not differing, differing
    assert encoded.symbols == lines.symbols
    assert texts(encoded) == texts(lines)
    encoded.texts[0] += 1
    assert texts(encoded) != texts(lines)  # the control: the comparison finds one other token


def texts(questions: data.ClozeSet) -> list[list[int]]:
    """Return the text of each sequence."""
    places = zip(questions.text_start.tolist(), questions.text_length.tolist(), strict=True)
    return [questions.texts[start : start + length].tolist() for start, length in places]


# -- damaged and missing data


def check_a_broken_line_is_named() -> None:
    valid = json.loads('{"passage": {"text": "Ann met Bob", "entities": [{"start": 0, "end": 2}]}, "qas": []}')
    outside = {**valid, "passage": {"text": "Ann", "entities": [{"start": 9, "end": 12}]}}
    for text, words in [
        ('{"passage": {"text": "cut', "invalid line"),
        ('{"source": "test"}', "no 'passage'"),
        (json.dumps({**valid, "qas": [{"query": "@placeholder"}]}), "no 'answers'"),
        (json.dumps({**valid, "qas": [{"query": "who", "answers": []}]}), "no @placeholder"),
        (json.dumps(outside), "(9, 12) is outside the passage of 3 characters"),
        ("\udcff", "invalid line"),
    ]:

        def change(path: Path, text: str = text) -> None:
            lines = (path / record.TRAIN_LINES).read_bytes().splitlines()
            lines[2] = text.encode("utf-8", "surrogateescape")
            (path / record.TRAIN_LINES).write_bytes(b"\n".join(lines))

        TINY.damaged(change, f"{record.TRAIN_LINES}:3", words, **LINES)


def check_a_shorter_vocabulary_is_named() -> None:
    TINY.damaged(cut(record.VOCABULARY, 20_000), record.VOCABULARY, "expected 30463 to 30590", "30592", **LINES)
    TINY.damaged(remove(record.VOCABULARY), record.VOCABULARY, "file not found", **LINES)
    TINY.damaged(put(record.VOCABULARY, "the\n"), record.VOCABULARY, "missing [PAD]", **LINES)


def check_a_damaged_encoded_file_is_named() -> None:
    TINY.damaged(cut(record.TRAIN, 3000), record.TRAIN, "cannot be read", "download it again")
    TINY.damaged(put(record.EVAL, "<html>"), record.EVAL, "cannot be read")
    TINY.damaged(remove(record.EVAL), record.EVAL, "file not found")
    TINY.damaged(without("answer_idx"), record.EVAL, "missing answer_idx")
    TINY.damaged(without("text/indptr"), record.EVAL, "cannot be read", "indptr")
    path = TINY.folder("other config")
    for settings, words in [
        ({"max_seq_length": 16}, "expected at most max_seq_length = 16"),
        ({"vocab_size": 2000}, "expected 0 to 1999 (vocab_size)"),
    ]:
        trials.fails(functools.partial(TINY.train, path, init_checkpoint=None, **settings), record.TRAIN, words)


def without(key: str) -> Change:
    def change(path: Path) -> None:
        with h5py.File(path / record.EVAL, "a") as file:
            del file[key]

    return change


def check_a_damaged_checkpoint_is_named() -> None:
    TINY.damaged(cut(CHECKPOINT, 3000), CHECKPOINT, "torch cannot read this file")
    TINY.damaged(remove(CHECKPOINT), CHECKPOINT, "file not found", "init_checkpoint")


def check_too_few_questions_are_an_error() -> None:
    path = TINY.folder("few")
    trials.fails(lambda: TINY.train(path, train_batch_size=25), "24 examples are too few", "reduce train_batch_size")
