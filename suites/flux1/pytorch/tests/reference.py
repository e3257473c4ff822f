"""FLUX.1's reference scale: a smaller model learns Arrow folders, and damage is reported; the full model."""

from __future__ import annotations

from pathlib import Path

import checking
import numpy as np
import steps
import torch
from pictures import EncodedPictures
from torch import nn

from tests.suites import trials
from tests.suites.damage import Change, cut, put, remove
from tests.suites.tiny_data import arrow_folders as tiny

SMALLER, write = tiny.SMALLER, tiny.write
CUT = f"{tiny.TRAIN}/data-00000-of-00004.arrow"
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)
PARAMETERS = 11_891_178_560
"""FLUX.1-schnell, exactly by the sizes in its ``config.json``: https://huggingface.co/black-forest-labs/FLUX.1-schnell."""
STEP = {
    "train_batch_size": 2, "gradient_accumulation_steps": 1, "hidden_size": 96, "num_heads": 3, "num_double_blocks": 2,
    "num_single_blocks": 2, "rope_axes": [8, 12, 12], "text_size": 64, "text_tokens": 8, "latent_side": 8,
    "learning_rate": 1.0, "weight_decay": 0.0,
}  # fmt: skip
UNTRAINED = r"(?!last\.linear\.)"
"""The last layer and all gates begin as 0, so no gradient passes them yet."""


def judge(trained: trials.Trained) -> None:
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

    def replaced(file: str, old: bytes, new: bytes) -> Change:
        return lambda path: (path / file).write_bytes((path / file).read_bytes().replace(old, new))

    def without_steps(path: Path) -> None:
        rng = np.random.default_rng(7)
        tiny.write_folder(path / tiny.EVALUATION, [tiny.picture(rng, n, is_training=True) for n in range(24)], 24)

    TINY.damaged(cut(CUT, 300), CUT, "expected at least", "copy the file again")
    TINY.damaged(put(CUT, "no Arrow at all" * 9), CUT, "not a stream of Arrow")
    TINY.damaged(remove(CUT), CUT, "No such file", "copy the folder again")
    TINY.damaged(remove(state), state, "No such file", "copy the folder again")
    TINY.damaged(put(state, "{}"), state, "not the state of a saved dataset")
    TINY.damaged(replaced(CUT, b"mean\0", b"maen\0"), CUT, "column 'mean' not found; found __key__")
    TINY.damaged(replaced(first, b"\x93NUMPY", b"\x93numpy"), first, "row 0 of the folder", "not an array of numpy")
    TINY.damaged(without_steps, "picture 0 of the evaluation has timestep = None", "expected 0 to 7")
    TINY.damaged(Path.touch, "mean has uint16, (2, 4, 4)", "(2, 8, 8)", latent_side=8)
    TINY.damaged(
        lambda path: np.save(path / tiny.EMPTY / "t5_empty.npy", np.zeros((1, 2, 8), np.float16)), "t5_empty.npy",
        "(1, 2, 8)", "(3, 8)",
    )  # fmt: skip


# -- the full model


def check_every_parameter_has_a_gradient_once_the_gates_are_open() -> None:
    assert _without_gradient(_model()) == []
    frozen = _model()
    frozen.get_parameter("single_blocks.1.out.weight").requires_grad = False
    assert _without_gradient(frozen) == ["single_blocks.1.out.weight"], "the control"


def _model() -> nn.Module:
    return steps.create_model(checking.context("reference", **STEP))


def _without_gradient(model: nn.Module) -> list[str]:
    """Return the parameters without a gradient, of a model with random weights only."""
    ctx = checking.context("reference", synthetic=True, precision="fp32", **STEP)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2, generator=generator)
    steps.calculate_loss(ctx, model, next(iter(steps.create_train_data(ctx)))).backward()
    return [name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()]
