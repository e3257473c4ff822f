"""Labelled images for the vision suites: folders in ImageNet's layout, tensors in memory, synthetic images.

A *source* reads the batch that a ``Draw`` selects. A *share* selects one rank's batches, epoch by epoch. A
*loader* combines the two, with or without worker processes. Pixels are copied as bytes and become normalised floats
on the device: the copy is four times smaller and the workers only decode.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".webp"})

Array: TypeAlias = npt.NDArray[Any]

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels of the stored picture."""


class ImagesError(ValueError):
    """The images were not found, are unreadable or have another layout, or too few for a batch."""


class Images(NamedTuple):
    """A batch."""

    pixels: Tensor
    """(N, 3, H, W): bytes from a source, floats after ``prepare``."""
    labels: Tensor
    mirrored: Tensor | None = None
    """For each image, whether ``prepare`` mirrors it; None: mirror no image."""


class Draw(NamedTuple):
    """The samples of one batch, and their epoch; random augmentation depends on both."""

    epoch: int
    indices: Array


class ImageSource(Protocol):
    """Reads batches of images."""

    def __len__(self) -> int: ...

    def __getitem__(self, draw: Draw) -> Images: ...


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
    cache_file = (cache or default_cache()) / f"{_fingerprint(root, folders)}.npz"
    classes = tuple(folder.name for folder in folders)
    if (cached := _load(cache_file)) is not None:
        return Listing(root, classes, *cached)
    names, labels = _scan(folders)
    _store(cache_file, names, labels)
    return Listing(root, classes, names, labels)


def default_cache() -> Path:
    """Return the folder of cached listings."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(home) / "pytest-flagperf" / "listings"


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


def _load(path: Path) -> tuple[Array, Array] | None:
    try:
        with np.load(path) as cached:
            return cached["names"], cached["labels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # not found or incomplete: scan the folders


def _store(path: Path, names: Array, labels: Array) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            np.savez(file, names=names, labels=labels)
        Path(file.name).replace(path)
    except OSError:
        return  # without a cache, the next call scans the folders again


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
    mirror: bool = False
    seed: int = 0

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, draw: Draw) -> Images:
        pixels: Array = np.empty((len(draw.indices), self.size, self.size, 3), np.uint8)
        mirrored: Array = np.zeros(len(draw.indices), np.bool_)
        for place, index in enumerate(draw.indices):
            rng = np.random.default_rng((self.seed, draw.epoch, int(index)))
            pixels[place] = self._read(int(index), rng)
            mirrored[place] = self.mirror and rng.random() < 0.5
        labels = torch.from_numpy(self.labels[draw.indices])
        return Images(_as_images(pixels), labels, torch.from_numpy(mirrored) if self.mirror else None)

    def _read(self, index: int, rng: np.random.Generator) -> Array:
        path = self.listing.path(index)
        try:
            with Image.open(path) as file:
                picture = file.convert("RGB")
        except Exception as error:  # a damaged file may raise any error in Pillow
            raise ImagesError(f"{path}: cannot be read as an image: {error}; copy the file again") from error
        box = self.box(picture.width, picture.height, rng)
        return np.asarray(picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box))


def _as_images(pixels: Array) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)  # channels last in memory, as decoded


@dataclass(frozen=True)
class MemoryImages:
    """Images in memory."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, draw: Draw) -> Images:
        chosen = torch.from_numpy(draw.indices)
        return Images(self.pixels[chosen], self.labels[chosen])


class BatchShape(NamedTuple):
    """Number of images, their width and height, and number of classes."""

    images: int
    size: int
    classes: int


class SyntheticImages:
    """Random images of the real shape, for throughput only: a few batches made once and returned in turn.

    They cost no more than the copy to the device.
    """

    POOL = 4

    def __init__(self, samples: int, shape: BatchShape, seed: int, *, pin: bool) -> None:
        rng = np.random.default_rng(seed)
        self._samples, self._turn = samples, 0
        self._pool = [_random_images(shape, rng, pin=pin) for _ in range(self.POOL)]

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, draw: Draw) -> Images:
        self._turn = (self._turn + 1) % self.POOL
        batch, count = self._pool[self._turn], len(draw.indices)
        return Images(batch.pixels[:count], batch.labels[:count])


def _random_images(shape: BatchShape, rng: np.random.Generator, *, pin: bool) -> Images:
    count, size, classes = shape
    pixels = _as_images(rng.integers(0, 256, (count, size, size, 3), np.uint8))
    labels = torch.from_numpy(rng.integers(0, classes, count))
    return Images(pixels.pin_memory(), labels.pin_memory()) if pin else Images(pixels, labels)


def shuffled(labels: Array, seed: int) -> Array:
    """Permute the labels among the samples, for a control training that must not converge."""
    permuted: Array = np.random.default_rng((seed, 0x5EED)).permutation(labels)
    return permuted


# -- shares of the ranks -----------------------------------------------------------------------------------


class Share(Protocol):
    """One rank's batches of an epoch."""

    def set_epoch(self, epoch: int) -> None: ...

    def skip(self, batches: int) -> None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Draw]: ...


class TrainShare:
    """One rank's part of each global batch; every epoch has a new order, the same on all ranks.

    Samples that do not fill a global batch are left out, different samples in each epoch. With equal global
    batches the order does not depend on the number of ranks.
    """

    def __init__(self, samples: int, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        self._samples, self._batch_size, self._rank, self._world_size = samples, batch_size, rank, world_size
        self._seed, self._epoch, self._start = seed, 0, 0
        if not len(self):
            raise ImagesError(
                f"{samples} samples are too few for one batch of {batch_size} on each of {world_size} ranks; "
                "reduce train_batch_size"
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._epoch = epoch

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the next pass, which a resumed training has done."""
        self._start = batches

    def __len__(self) -> int:
        return self._samples // (self._batch_size * self._world_size)

    def __iter__(self) -> Iterator[Draw]:
        epoch, start, self._start = self._epoch, self._start, 0  # only this pass skips batches
        order = np.random.default_rng((self._seed, epoch)).permutation(self._samples)
        stride = self._batch_size * self._world_size
        for batch in range(start, len(self)):
            first = batch * stride + self._rank * self._batch_size
            yield Draw(epoch, order[first : first + self._batch_size])


class EvalShare:
    """One rank's part of all samples; the last batch may be shorter, and a rank may have no batch."""

    def __init__(self, samples: int, batch_size: int, rank: int, world_size: int) -> None:
        self._mine, self._batch_size = np.arange(rank, samples, world_size), batch_size

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: all epochs are the same."""

    def skip(self, batches: int) -> None:
        """Do nothing: an evaluation is never resumed."""

    def __len__(self) -> int:
        return math.ceil(len(self._mine) / self._batch_size)

    def __iter__(self) -> Iterator[Draw]:
        for first in range(0, len(self._mine), self._batch_size):
            yield Draw(0, self._mine[first : first + self._batch_size])


# -- loading -----------------------------------------------------------------------------------------------


class Loader:
    """Reads a rank's share of a source, in this process or in advance by worker processes."""

    def __init__(self, source: ImageSource, share: Share, num_workers: int = 0, *, pin: bool = False) -> None:
        self._share = share
        self._batches: Iterable[Images | ImagesError] = (
            _parallel(source, share, num_workers, pin=pin) if num_workers else _Inline(source, share)
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._share.set_epoch(epoch)

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the next pass, without reading them."""
        self._share.skip(batches)

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[Images]:
        for batch in self._batches:
            if isinstance(batch, ImagesError):
                raise batch
            yield batch


@dataclass(frozen=True)
class _Inline:
    source: ImageSource
    share: Share

    def __iter__(self) -> Iterator[Images]:
        return (self.source[draw] for draw in self.share)


@dataclass(frozen=True)
class _ErrorsAsBatches:
    """Returns a worker's error as its batch: the DataLoader would put the worker's traceback into the message."""

    source: ImageSource

    def __getitem__(self, draw: Draw) -> Images | ImagesError:
        try:
            return self.source[draw]
        except ImagesError as error:
            return error


def _parallel(source: ImageSource, share: Share, num_workers: int, *, pin: bool) -> DataLoader[Any]:
    return DataLoader(
        _ErrorsAsBatches(source),  # a key is a Draw, not an int
        sampler=share,
        batch_size=None,  # a draw is a batch already
        num_workers=num_workers,
        pin_memory=pin,
        # Newer Pythons default to new processes, which would import the rank's program and its framework again.
        multiprocessing_context="fork",
        persistent_workers=True,
        prefetch_factor=4,
    )


def prepare(images: Images, device: torch.device, *, channels_last: bool) -> Images:
    """Copy a batch to the device as bytes, then mirror and normalise it there."""
    pixels = images.pixels.to(device, non_blocking=True)
    if images.mirrored is not None:
        mirrored = images.mirrored.to(device, non_blocking=True)
        pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    mean, deviation = _moments(device)
    floats = (pixels.to(torch.float32, memory_format=layout) - mean).div_(deviation)
    return Images(floats, images.labels.to(device, non_blocking=True))


_MOMENTS: dict[torch.device, tuple[Tensor, Tensor]] = {}


def _moments(device: torch.device) -> tuple[Tensor, Tensor]:
    if device not in _MOMENTS:  # a copy to the device per batch would be a synchronization per batch
        mean, deviation = (torch.tensor(of, device=device).mul_(255).view(3, 1, 1) for of in (MEAN, STD))
        _MOMENTS[device] = mean, deviation
    return _MOMENTS[device]
