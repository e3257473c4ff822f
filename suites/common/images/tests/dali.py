"""Checks of the reader that uses NVIDIA DALI. The checks that need DALI run where it can be imported.

pip install --target FOLDER nvidia-dali-cuda130
PYTHONPATH=FOLDER pytest tests/suites/test_checks.py -k images/tests/dali
"""

from __future__ import annotations

import gc
import importlib.util
import io
import multiprocessing
import sys
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checking import SCRATCH, context, raises
from common.images import steps
from common.images.dali import AHEAD, inputs
from common.images.encoded import Encoded
from common.images.folders import ImagesError
from PIL import Image

from tests.suites.tiny_data import imagenet

TOLERANCE = {"bilinear": (0.3, 4), "bicubic": (0.4, 10)}
"""The mean and the largest difference to Pillow's pixels, in bytes: results are rounded once or twice."""
SETTINGS = {
    "num_classes": 3, "eval_size": None, "image_size": 48, "resize_size": 56, "train_batch_size": 6,
    "eval_batch_size": 4, "num_workers": 0, "crop": "area", "interpolation": "bilinear", "augment": None, "erase": 0.0,
    "mixup": 0.0, "cutmix": 0.0, "repeats": 1, "pixel_mean": (0.0,) * 3, "pixel_deviation": (1 / 255,) * 3,
}  # fmt: skip


def needs_dali() -> None:
    if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None:
        raise unittest.SkipTest("NVIDIA DALI is not installed: pip install nvidia-dali-cuda130")


def data(name: str = "all") -> Path:
    path = SCRATCH / f"dali {name}"
    if not path.exists():
        imagenet.write(path)
    return path


def loader(
    reader: str, *, train: bool, path: Path | None = None, rank: int = 0, ranks: int = 1, **settings: Any
) -> Any:
    """Return a context and its loader."""
    ctx = context("reference", rank, ranks, **{**SETTINGS, "reader": reader, **settings})
    ctx = replace(ctx, data_dir=path or data())
    return ctx, (steps.create_train_data if train else steps.create_eval_data)(ctx)


def batches(reader: str, *, train: bool, epoch: int = 0, **settings: Any) -> list[steps.Prepared]:
    ctx, read = loader(reader, train=train, **settings)
    read.set_epoch(epoch)
    return [steps.prepare_batch(ctx, batch) for batch in read]


def differences(ours: list[steps.Prepared], theirs: list[steps.Prepared]) -> tuple[float, float]:
    """Return the mean difference of the picture that differs most, and the largest difference of a pixel."""
    assert [batch.labels.tolist() for batch in ours] == [batch.labels.tolist() for batch in theirs]
    apart = torch.cat([(one.pixels - other.pixels).abs() for one, other in zip(ours, theirs, strict=True)])
    return float(apart.mean((1, 2, 3)).max()), float(apart.max())


def equal(ours: list[steps.Prepared], theirs: list[steps.Prepared]) -> bool:
    return len(ours) == len(theirs) and differences(ours, theirs) == (0, 0)


# -- without DALI --------------------------------------------------------------------------------------------


def check_a_missing_package_is_named() -> None:
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "nvidia"}
    sys.modules.update(dict.fromkeys([*before, "nvidia", "nvidia.dali"]))  # type: ignore[arg-type]
    try:
        for train in (True, False):
            raises(
                ImagesError,
                lambda train=train: loader("dali", train=train),
                "reader='dali' needs NVIDIA DALI", "nvidia-dali-cuda130", "config/requirements.txt", "'pillow'",
            )  # fmt: skip
        images = loader("dali", train=True, dataset="digits", num_classes=10)[1]
        assert len(next(iter(images)).labels) == 6, "images in memory need no DALI"
    finally:
        for name in {"nvidia", "nvidia.dali", *before}:
            del sys.modules[name]
        sys.modules.update(before)


def check_mirrored_boxes_begin_at_their_right() -> None:
    boxes = np.array([(1.5, 2, 30, 40), (5, 6, 7.25, 8)])
    batch = Encoded(np.arange(5, dtype=np.uint8), np.array([3, 5]), np.zeros((2, 2), int), boxes, np.zeros(2), "ab", 8)
    files, starts, ends = inputs(batch)
    assert [file.tolist() for file in files] == [[0, 1, 2], [3, 4]]
    assert (starts.tolist(), ends.tolist()) == ([[2, 1.5], [6, 5]], [[40, 30], [8, 7.25]])
    _, starts, ends = inputs(batch._replace(mirrored=np.array([False, True])))
    assert (starts.tolist(), ends.tolist()) == ([[2, 1.5], [6, 7.25]], [[40, 30], [8, 5]])
    assert starts.flags.c_contiguous, "DALI refuses other arrays"
    assert ends.flags.c_contiguous


def check_decoded_pixels_become_a_file() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 3), np.uint8)
    shapes = np.array([(4, 3)])
    (file,), *_ = inputs(
        Encoded(pixels.reshape(-1), np.array([36]), shapes, np.zeros((1, 4)), np.zeros(1), ["name"], 8)
    )
    assert (np.asarray(Image.open(io.BytesIO(file.tobytes()))) == pixels).all()


# -- with DALI -----------------------------------------------------------------------------------------------


def check_dali_returns_what_pillow_returns() -> None:
    needs_dali()
    for train in (True, False):
        for interpolation, (mean, largest) in TOLERANCE.items():
            for crop in ("area", "shifted"):
                how = {"train": train, "interpolation": interpolation, "crop": crop}
                ours, theirs = (batches(name, **how) for name in ("dali", "pillow"))
                apart = differences(ours, theirs)
                assert apart[0] <= mean, (how, apart)
                assert apart[1] <= largest, (how, apart)
                assert [len(batch.labels) for batch in ours] == ([6] * 4 if train else [4, 2])
                turned = [batch._replace(pixels=batch.pixels.flip(3)) for batch in ours]
                assert differences(turned, theirs)[0] > 10 * mean, "the control: mirrored pictures differ"
                assert ours[0].pixels.is_contiguous() == theirs[0].pixels.is_contiguous()


def check_other_settings_have_the_same_effect() -> None:
    needs_dali()
    for settings in (
        {"mixup": 0.2, "cutmix": 1.0},
        {"repeats": 3},
        {"channels_last": True},
        {"seed": 7},
        {"epoch": 1},
        {"num_workers": 2},
    ):
        ours, theirs = (batches(name, train=True, **settings) for name in ("dali", "pillow"))
        assert differences(ours, theirs)[0] < TOLERANCE["bilinear"][0], settings
        assert [batch.mix for batch in ours] == [batch.mix for batch in theirs]
    plain, second = batches("dali", train=True), batches("dali", train=True, epoch=1)
    assert [batch.labels.tolist() for batch in plain] != [batch.labels.tolist() for batch in second]


def check_every_image_is_on_one_rank() -> None:
    needs_dali()
    for train, count in ((True, 3 * imagenet.TRAIN), (False, 3 * imagenet.EVAL)):
        how = {"train": train, "train_batch_size": 3, "eval_batch_size": 2, "crop": "shifted", "resize_size": 48}
        found = torch.cat([batch.pixels for rank in range(4) for batch in batches("dali", rank=rank, ranks=4, **how)])
        alone = torch.cat([batch.pixels for batch in batches("dali", **how)])
        # Training pictures are mirrored as their epoch and index say, on whatever rank.
        assert len(found) == len(alone) == count
        assert sorted(map(float, found.double().mean((1, 2, 3)))) == sorted(map(float, alone.double().mean((1, 2, 3))))
        assert len(set(map(float, found.double().mean((1, 2, 3))))) == count, "the control: the pictures differ"


def check_passes_may_end_early_and_be_resumed() -> None:
    needs_dali()
    ctx, read = loader("dali", train=True, train_batch_size=2)
    expected = batches("dali", train=True, train_batch_size=2, epoch=1)
    early = iter(read)
    for _ in range(3):
        steps.prepare_batch(ctx, next(early))
    read.set_epoch(1)
    assert equal([steps.prepare_batch(ctx, batch) for batch in read], expected)
    read.skip(5)
    assert equal([steps.prepare_batch(ctx, batch) for batch in read], expected[5:])
    assert len(read) == len(expected) > AHEAD + 3
    # A batch stays as it is while DALI decodes the next ones.
    kept = list(read)
    assert equal([steps.prepare_batch(ctx, batch) for batch in kept], expected)


def check_a_rank_without_images_has_no_batch() -> None:
    needs_dali()
    assert batches("dali", train=False, rank=7, ranks=8) == []


def check_a_damaged_file_is_named() -> None:
    needs_dali()
    file = (data() / imagenet.CUT).read_bytes()
    for number, (content, workers) in enumerate((
        (b"\xff\xd8\xff", 0),
        (file[:-9], 0),  # all but the last pixels are there
        (file.replace(b"\xff\xdb", b"\xff\xfe"), 2),  # found only by DALI: no quantization tables
    )):  # fmt: skip
        path = data(f"damaged {number}")
        (path / imagenet.CUT).write_bytes(content)
        raises(
            ImagesError,
            lambda path=path, workers=workers: batches("dali", train=True, path=path, num_workers=workers),
            str(path / imagenet.CUT), "cannot be read as an image", "copy the file again",
        )  # fmt: skip


def check_a_forked_process_frees_no_pipeline() -> None:
    needs_dali()
    gc.disable()
    try:
        batches("dali", train=False)  # the loader and its pipeline refer to each other until they are collected
        child = multiprocessing.get_context("fork").Process(target=gc.collect)
        child.start()
        child.join(60)
        ended = child.exitcode
        child.kill()
    finally:
        gc.enable()
    assert ended == 0, "the child waits for DALI's threads"
