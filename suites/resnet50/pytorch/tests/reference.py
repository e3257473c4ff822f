"""ResNet-50's reference scale: ImageNet's folders are read as published; a step of the full model."""

from __future__ import annotations

import shutil
from pathlib import Path

import checking
import numpy as np
import torch
from common.images import folders
from common.shares import Draw
from PIL import Image, ImageOps
from torchvision.models import resnet

from tests.suites import trials
from tests.suites.tiny_data import imagenet

SMALLER = {**imagenet.RESNET, "learning_rate": 0.005}
CUT = imagenet.CUT
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, imagenet.write)
write = TINY.write
PARAMETERS = 25_557_032
"""num_params of torchvision's ``ResNet50_Weights.IMAGENET1K_V1``."""
STEP = {"train_batch_size": 2}
FROZEN = "layer4.2.bn3.weight"
OTHER = {"layers": [3, 4, 23, 3]}


def published() -> resnet.ResNet:
    return resnet.resnet50()


# -- the pictures


def pixels(path: Path, name: str) -> torch.Tensor:
    """Return the middle of a training picture as the reader returns it."""
    listing = folders.list_folder(path / "train")
    source = folders.FolderImages(listing, 32, folders.center_box(1.0), listing.labels)
    index = [listing.path(number).relative_to(path).as_posix() for number in range(len(listing))].index(name)
    return torch.from_numpy(source[Draw(0, np.array([index]))].pixels[0]).permute(2, 0, 1).float()


def check_unusual_pictures_are_read_as_their_colours() -> None:
    path = TINY.folder("unusual")
    usual = pixels(path, "train/n01440764/n01440764_5.JPEG").mean((1, 2))
    for name in (imagenet.CMYK, imagenet.PNG, imagenet.TURNED):
        assert torch.allclose(pixels(path, name).mean((1, 2)), usual, atol=8), name
    red, green, blue = pixels(path, imagenet.GREY).mean((1, 2))
    assert red == green == blue
    assert abs(float(red) - float(usual @ torch.tensor([0.299, 0.587, 0.114]))) < 8


def check_the_orientation_is_ignored_as_by_other_users_of_imagenet() -> None:
    def darker_at_the_top(name: str) -> bool:
        top, bottom = pixels(path, name).chunk(2, dim=1)
        return bool(bottom.mean() - top.mean() > 20)

    path = TINY.folder("turned")
    with Image.open(path / imagenet.TURNED) as picture:
        assert picture.getexif()[imagenet.ORIENTATION] == imagenet.ROTATED
        turned = ImageOps.exif_transpose(picture)
    assert darker_at_the_top(imagenet.TURNED)
    turned.save(path / imagenet.TURNED, "JPEG")
    assert not darker_at_the_top(imagenet.TURNED), "the control: a turned picture is darker at its side"


# -- damaged, missing and surplus files


def check_missing_and_unknown_classes_are_named() -> None:
    def rename(path: Path) -> None:
        (path / "val/n01443537").rename(path / "val/n99999999")

    TINY.damaged(rename, "/val", "unknown class n99999999", "the same data set")
    TINY.damaged(lambda path: shutil.rmtree(path / "train/n02105855"), "/train", "2 class folders", "num_classes = 3")


def check_files_that_are_no_pictures_are_ignored() -> None:
    path = TINY.folder("surplus")
    for name in ("train/.DS_Store", "train/README.txt", "train/n01440764/README", "train/n01440764/._n01440764_1.JPEG"):
        (path / name).write_text("surplus")
    (path / "train/.cache").mkdir()
    (path / "train/.cache/n01440764_1.JPEG").write_text("surplus")
    assert TINY.train(path, max_steps=3) == TINY.train(TINY.folder("without surplus"), max_steps=3)


def check_too_few_pictures_are_an_error() -> None:
    path = TINY.folder("few")
    trials.fails(lambda: TINY.train(path, train_batch_size=25), "24 samples are too few", "reduce train_batch_size")
