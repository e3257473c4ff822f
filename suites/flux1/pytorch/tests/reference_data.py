"""Checks of the reference data: a smaller model learns Arrow folders; damaged folders are reported."""

from __future__ import annotations

from pathlib import Path

import checking
import numpy as np
from pictures import EncodedPictures

from tests.suites import trials
from tests.suites.tiny_data import arrow_folders as tiny

SMALLER, write = tiny.SMALLER, tiny.write
CUT = f"{tiny.TRAIN}/data-00000-of-00004.arrow"
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def check_pictures_are_read_and_learnt() -> None:
    trained = TINY.check_learnt(TINY.folder("pictures"))
    assert trained.metrics["validation_loss"] < trained.losses[0]


def check_a_picture_has_the_values_that_were_written() -> None:
    folder = TINY.folder("values")
    config = checking.context("reference", **SMALLER).config
    album = EncodedPictures(folder / tiny.EVALUATION, folder / tiny.EMPTY, config)
    rng = np.random.default_rng(7)
    written = [tiny.picture(rng, index, is_training=True) for index in range(64)]
    written = [tiny.picture(rng, index, is_training=False) for index in range(24)]
    assert len(album) == 24
    for number in (0, 1, 19, 23):
        picture, row = album[number], written[number]
        assert tiny.saved(picture.mean) == row["mean"]
        assert tiny.saved(2 * np.log(picture.deviation)) == row["logvar"]
        assert picture.step == number % 8
        assert (picture.encodings.text == tiny.bits(np.full((tiny.WORDS, tiny.TEXT), 2.0 * (number % 2) - 1))).all()
    assert tiny.saved(album[2].mean) != written[4]["mean"], "the control"


def check_damaged_folders_are_named() -> None:
    state, first = f"{tiny.TRAIN}/state.json", f"{tiny.EVALUATION}/data-00000-of-00002.arrow"

    def cut(path: Path) -> None:
        (path / CUT).write_bytes((path / CUT).read_bytes()[:-300])

    def replaced(file: str, old: bytes, new: bytes) -> object:
        return lambda path: (path / file).write_bytes((path / file).read_bytes().replace(old, new))

    def without_steps(path: Path) -> None:
        rng = np.random.default_rng(7)
        tiny.write_folder(path / tiny.EVALUATION, [tiny.picture(rng, n, is_training=True) for n in range(24)], 24)

    TINY.damaged(cut, CUT, "expected at least", "copy the file again")
    TINY.damaged(lambda path: (path / CUT).write_bytes(b"no Arrow at all" * 9), CUT, "not a stream of Arrow")
    TINY.damaged(lambda path: (path / CUT).unlink(), CUT, "No such file", "copy the folder again")
    TINY.damaged(lambda path: (path / state).unlink(), state, "No such file", "copy the folder again")
    TINY.damaged(lambda path: (path / state).write_text("{}"), state, "not the state of a saved dataset")
    TINY.damaged(replaced(CUT, b"mean\0", b"maen\0"), CUT, "column 'mean' not found; found __key__")
    TINY.damaged(replaced(first, b"\x93NUMPY", b"\x93numpy"), first, "row 0 of the folder", "not an array of numpy")
    TINY.damaged(without_steps, "picture 0 of the evaluation has timestep = None", "expected 0 to 7")
    TINY.damaged(Path.touch, "mean has uint16, (2, 4, 4)", "(2, 8, 8)", latent_side=8)
    TINY.damaged(
        lambda path: np.save(path / tiny.EMPTY / "t5_empty.npy", np.zeros((1, 2, 8), np.float16)), "t5_empty.npy",
        "(1, 2, 8)", "(3, 8)",
    )  # fmt: skip
