"""Labelled images for the vision suites: folders in ImageNet's layout, arrays in memory, synthetic images.

Pixels stay bytes until they are on the device: the copy is four times smaller, and the readers only decode.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from common import cached
from common.images.mixing import Mix
from common.shares import Array, Draw, SourceError

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".webp"})

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels of the stored picture."""


class ImagesError(SourceError):
    """The images were not found, are unreadable or have another layout."""


class Images(NamedTuple):
    """A batch."""

    pixels: Array
    """(N, H, W, 3), bytes."""
    labels: Array
    mirrored: Array | None = None
    """For each image, whether left and right are exchanged on the device; None: in no image."""
    mix: Mix | None = None
    """How the images are mixed on the device; None: not at all."""


# -- listing a folder --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """The images of ``<root>/<class>/<image>``, in arrays, which worker processes share without copying."""

    root: Path
    classes: tuple[str, ...]
    names: Array
    """Paths below the root, as bytes."""
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        """Return the path of one image."""
        return self.root / os.fsdecode(bytes(self.names[index]))

    def relabelled(self, classes: Sequence[str]) -> Listing:
        """Number the classes as in another listing, e.g. validation as training."""
        if unknown := sorted(set(self.classes) - set(classes)):
            raise ImagesError(
                f"{self.root}: unknown class {_some(unknown)}; not in the {len(classes)} training classes: "
                "both folders must come from the same data set"
            )
        numbers: Array = np.searchsorted(np.array(classes), np.array(self.classes))  # both are sorted
        return Listing(self.root, tuple(classes), self.names, numbers[self.labels])


def list_folder(root: Path, cache: Path | None = None) -> Listing:
    """List a folder of class folders; use the cached listing if no folder has changed.

    The cache is among the user's other caches, because data folders may be read-only or shared.
    """
    folders = _class_folders(root)
    cache_file = (cache or cached.default_folder()) / f"{_fingerprint(root, folders)}.npz"
    classes = tuple(folder.name for folder in folders)
    if (arrays := cached.load(cache_file, ("names", "labels"))) is None:
        names, labels = _scan(folders)
        cached.store(cache_file, arrays := {"names": names, "labels": labels})
    return Listing(root, classes, **arrays)


def _class_folders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise ImagesError(f"{root}: folder not found; expected <class>/<image> below it")
    if folders := sorted(Path(entry.path) for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != "."):
        return folders
    raise ImagesError(f"{root}: no class folders; expected <class>/<image> below it")


def _fingerprint(root: Path, folders: Sequence[Path]) -> str:
    parts = [os.fspath(root.resolve()), *(f"{folder.name} {folder.stat().st_mtime_ns}" for folder in folders)]
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:24]


def _scan(folders: Sequence[Path]) -> tuple[Array, Array]:
    with ThreadPoolExecutor(16) as pool:  # on a network file system each folder is a round trip
        names_by_class = list(pool.map(_images_in, folders))
    if empty := [folder.name for folder, names in zip(folders, names_by_class, strict=True) if not names]:
        known = " ".join(sorted(SUFFIXES))
        raise ImagesError(f"{folders[0].parent}: no images in {_some(empty)}; expected files with suffix {known}")
    labels: Array = np.repeat(np.arange(len(folders)), [len(names) for names in names_by_class])
    return np.array([name for names in names_by_class for name in names], dtype=np.bytes_), labels


def _images_in(folder: Path) -> list[bytes]:
    names = (entry.name for entry in os.scandir(folder))
    # macOS adds hidden files such as ._n01440764_18.JPEG.
    known = (name for name in names if name[0] != "." and Path(name).suffix.lower() in SUFFIXES)
    return sorted(os.fsencode(f"{folder.name}/{name}") for name in known)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# -- sources -----------------------------------------------------------------------------------------------


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Choose a box of 8 to 100 % of the area with an aspect of 3:4 to 4:3; the middle after ten misfits."""
    for _ in range(10):
        area, aspect = width * height * rng.uniform(0.08, 1.0), math.exp(rng.uniform(-1, 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    return _middle(width, height, min(width, height * 4 / 3), min(height, width * 4 / 3))


def center_box(fraction: float) -> Callable[[int, int, np.random.Generator], Box]:
    """Choose the middle square, a fraction of the shorter side: 224/256 is Resize(256), CenterCrop(224)."""

    def choose(width: int, height: int, _: np.random.Generator) -> Box:
        side = min(width, height) * fraction
        return _middle(width, height, side, side)

    return choose


def whole_box(width: int, height: int, _: np.random.Generator) -> Box:
    """Choose the whole picture."""
    return 0, 0, width, height


def shifted_box(fraction: float) -> Callable[[int, int, np.random.Generator], Box]:
    """Choose a box of this fraction of both sides, at a random place."""

    def choose(width: int, height: int, rng: np.random.Generator) -> Box:
        left, top = (side * (1 - fraction) * rng.random() for side in (width, height))
        return left, top, left + width * fraction, top + height * fraction

    return choose


def _middle(width: int, height: int, w: float, h: float) -> Box:
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


@dataclass(frozen=True)
class FolderImages:
    """Files of a listing, each cropped to a box and resized in one resampling."""

    listing: Listing
    size: int
    box: Callable[[int, int, np.random.Generator], Box]
    labels: Array
    resampling: Image.Resampling = Image.Resampling.BILINEAR
    mirror: bool = False
    change: Callable[[Image.Image, np.random.Generator], Image.Image] | None = None
    """A random change of the resized picture."""
    erase: Callable[[Array, np.random.Generator], Array] | None = None
    """A random change of its pixels."""
    seed: int = 0

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, draw: Draw) -> Images:
        pixels: Array = np.empty((len(draw.indices), self.size, self.size, 3), np.uint8)
        mirrored: Array = np.zeros(len(draw.indices), np.bool_)
        for place, (index, rng) in enumerate(self.generators(draw)):
            picture = self._read(index, rng)
            mirrored[place] = self.mirror and rng.random() < 0.5
            pixels[place] = self._changed(picture, rng)
        return Images(pixels, self.labels[draw.indices], mirrored if self.mirror else None)

    def generators(self, draw: Draw) -> Iterator[tuple[int, np.random.Generator]]:
        """Yield the index of each picture, and the generator of its random changes."""
        copies = np.zeros(len(draw.indices), np.int64) if draw.copies is None else draw.copies
        for index, copy in zip(draw.indices.tolist(), copies.tolist(), strict=True):
            # A training without copies sees the first copy of each picture.
            yield index, np.random.default_rng((self.seed, draw.epoch, index, *([copy] if copy else [])))

    def _read(self, index: int, rng: np.random.Generator) -> Image.Image:
        path = self.listing.path(index)
        try:
            with Image.open(path) as file:
                picture = file.convert("RGB")
        except Exception as error:  # a damaged file may raise any error in Pillow
            raise ImagesError(f"{path}: cannot be read as an image: {error}; copy the file again") from error
        box = self.box(picture.width, picture.height, rng)
        return picture.resize((self.size, self.size), self.resampling, box)

    def _changed(self, picture: Image.Image, rng: np.random.Generator) -> Array:
        pixels = np.asarray(picture if self.change is None else self.change(picture, rng))
        return pixels if self.erase is None else self.erase(pixels, rng)


@dataclass(frozen=True)
class MemoryImages:
    """Images in memory."""

    pixels: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, draw: Draw) -> Images:
        return Images(self.pixels[draw.indices], self.labels[draw.indices])


class BatchShape(NamedTuple):
    """Number of images, their width and height, and number of classes."""

    images: int
    size: int
    classes: int


def random_images(shape: BatchShape, rng: np.random.Generator) -> Images:
    """Return a batch of random bytes."""
    count, size, classes = shape
    return Images(rng.integers(0, 256, (count, size, size, 3), np.uint8), rng.integers(0, classes, count))


def shuffled(labels: Array, seed: int) -> Array:
    """Permute the labels among the samples, for a control training that must not converge."""
    permuted: Array = np.random.default_rng((seed, 0x5EED)).permutation(labels)
    return permuted
