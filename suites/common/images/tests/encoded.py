"""Checks of pictures that the device decodes: they are those that Pillow decodes, and damaged files are named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from checking import SCRATCH, context, raises
from common.images import folders, steps
from common.images.encoded import whole
from common.images.folders import ImagesError

from tests.suites.tiny_data import imagenet


def data(name: str) -> Path:
    path = SCRATCH / f"encoded {name}"
    if not path.exists():
        imagenet.write(path)
    return path


def batches(reader: str, path: Path, *, train: bool, **settings: Any) -> list[steps.Prepared]:
    how = {"num_workers": 0, "train_batch_size": 6, "eval_batch_size": 6, "image_size": 48, "resize_size": 56}
    ctx = context("reference", **{"num_classes": 3, "eval_size": None, **how, "reader": reader, **settings})
    ctx = type(ctx)(**{**vars(ctx), "data_dir": path})
    read = (steps.create_train_data if train else steps.create_eval_data)(ctx)
    return [steps.prepare_batch(ctx, batch) for batch in read]


PLAIN = {
    "crop": "area",
    "interpolation": "bilinear",
    "augment": None,
    "erase": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
    "repeats": 1,
}
BYTES = {"pixel_mean": (0.0,) * 3, "pixel_deviation": (1 / 255,) * 3}


def difference(ours: list[steps.Prepared], theirs: list[steps.Prepared]) -> float:
    """Return the mean difference of the pixels, in bytes."""
    assert [batch.labels.tolist() for batch in ours] == [batch.labels.tolist() for batch in theirs]
    pairs = zip(ours, theirs, strict=True)
    return max(float((one.pixels - other.pixels).abs().mean()) for one, other in pairs)


def check_the_device_decodes_what_pillow_decodes() -> None:
    for train in (True, False):
        for interpolation in ("bilinear", "bicubic"):
            both = [
                batches(name, data("all"), train=train, **{**PLAIN, **BYTES, "interpolation": interpolation})
                for name in ("torchvision", "pillow")
            ]
            assert difference(*both) < 2, (train, interpolation, difference(*both))
            turned = [batch._replace(pixels=batch.pixels.flip(2, 3)) for batch in both[0]]
            assert difference(turned, both[1]) > 4, "the control: mirrored pictures differ"
            assert both[0][0].pixels.is_contiguous() == both[1][0].pixels.is_contiguous()


def check_mixing_does_not_depend_on_the_reader() -> None:
    settings = {**PLAIN, **BYTES, "mixup": 0.2, "cutmix": 1.0}
    both = [batches(name, data("all"), train=True, **settings) for name in ("torchvision", "pillow")]
    assert [batch.mix for batch in both[0]] == [batch.mix for batch in both[1]] != [None] * 4
    assert difference(*both) < 1


def check_a_damaged_file_is_named() -> None:
    for name, content in damaged():
        path = damaged_data(name, content)
        raises(
            ImagesError,
            lambda path=path: batches("torchvision", path, train=True, **PLAIN),
            name, "cannot be read as an image", "copy the file again",
        )  # fmt: skip


def damaged() -> list[tuple[str, bytes]]:
    """Return a picture's name and bytes for each kind of damage."""
    file = (data("all") / imagenet.CUT).read_bytes()
    return [
        (imagenet.CUT, b"\xff\xd8\xff"),
        (imagenet.PNG, b"no picture"),
        (imagenet.CUT, file[: file.index(b"\xff\xda") + 2]),
        (imagenet.CUT, file[:-9]),  # all but the last pixels are there
        (
            imagenet.CUT,
            file.replace(b"\xff\xdb", b"\xff\xfe"),
        ),  # found only where it is decoded: no quantization tables
    ]


def damaged_data(name: str, content: bytes) -> Path:
    shutil.rmtree(SCRATCH / "encoded damaged", ignore_errors=True)
    path = data("damaged")
    (path / name).write_bytes(content)
    return path


def check_changes_on_the_host_are_refused() -> None:
    for reader in ("torchvision", "dali"):
        for key, value in (("augment", "randaugment"), ("augment", "trivialaugment"), ("erase", 0.1)):
            raises(
                ImagesError,
                lambda reader=reader, change={key: value}: batches(
                    reader, data("all"), train=True, **{**PLAIN, **change}
                ),
                f"{key}={value!r} cannot be combined", f"reader={reader!r}", "set reader = 'pillow'",
            )  # fmt: skip
    raises(
        ImagesError,
        lambda: batches("nvjpeg", data("all"), train=False),
        "reader='nvjpeg'", "'pillow' or 'torchvision' or 'dali'",
    )  # fmt: skip


def check_boxes_are_whole_pixels_of_the_picture() -> None:
    assert whole((0.4, 1.6, 10.5, 20.4), 11, 21) == (0, 2, 10, 20)
    assert whole((9.9, 0.0, 10.0, 0.3), 10, 5) == (9, 0, 10, 1)
    assert folders.center_box(1.0)(3, 2, None) == (0.5, 0, 2.5, 2)  # type: ignore[arg-type]
    assert torch.tensor(whole((0.5, 0, 2.5, 2), 3, 2)).tolist() == [0, 0, 2, 2]
