"""ImageNet in TFRecord files, each picture found by its place: the ranks' shares are as exact as with folders."""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import cached
from common.images import folders
from common.images.folders import FolderImages, Images, ImagesError, Listing
from common.shares import Array, Draw
from PIL import Image

PATTERN = "*-of-*"
"""Files such as train-00000-of-01024 and validation-00000-of-00128."""
_LENGTH, _FRAME = struct.Struct("<Q"), 16
"""A record is its length and the length's checksum (12 bytes), the data, and the data's checksum (4 bytes)."""


def is_record_folder(folder: Path) -> bool:
    """Return True if the folder has TFRecord files."""
    return folder.is_dir() and any(folder.glob(PATTERN))


class RecordImages(FolderImages):
    """Pictures of TFRecord files, cropped and mirrored as those of folders."""

    def __init__(self, folder: Path, ctx: Any, *, train: bool) -> None:
        config, size = ctx.config, ctx.config.image_size
        self._files, arrays = _places(folder)
        self._place, self._start, self._end = (arrays[name] for name in ("files", "starts", "ends"))
        self._shuffles = train and config.shuffle_labels
        self._classes = config.num_classes
        count = len(self._place)
        box = folders.random_box if train else folders.center_box(size / config.resize_size)
        super().__init__(
            Listing(folder, (), np.zeros(count, np.bytes_), np.zeros(count, np.int64)),
            size,
            box,
            np.zeros(count, np.int64),
            mirror=train,
            seed=ctx.seed,
        )

    def __getitem__(self, draw: Draw) -> Images:
        pixels: Array = np.empty((len(draw.indices), self.size, self.size, 3), np.uint8)
        mirrored: Array = np.zeros(len(draw.indices), np.bool_)
        labels: Array = np.empty(len(draw.indices), np.int64)
        for place, (index, rng) in enumerate(self.generators(draw)):
            picture, labels[place] = self._read_record(index, rng)
            mirrored[place] = self.mirror and rng.random() < 0.5
            pixels[place] = np.asarray(picture)
        return Images(pixels, labels, mirrored if self.mirror else None)

    def _read_record(self, index: int, rng: np.random.Generator) -> tuple[Image.Image, int]:
        path, start, end = self._files[self._place[index]], int(self._start[index]), int(self._end[index])
        try:
            with path.open("rb") as file:
                file.seek(start)
                features = tf.train.Example.FromString(file.read(end - start)).features.feature
            label = features["image/class/label"].int64_list.value[0] - 1  # 0 is the background
            with Image.open(io.BytesIO(features["image/encoded"].bytes_list.value[0])) as encoded:
                picture = encoded.convert("RGB")
        except Exception as error:  # damaged data may raise any error in the libraries
            raise ImagesError(
                f"{path}: the record at byte {start} cannot be read: {error}; copy the file again"
            ) from error
        if not 0 <= label < self._classes:
            raise ImagesError(
                f"{path}: the record at byte {start} has label {label + 1}; expected 1 to {self._classes}"
            )
        if self._shuffles:
            label = int(np.random.default_rng((self.seed, index)).integers(self._classes))
        box = self.box(picture.width, picture.height, rng)
        return picture.resize((self.size, self.size), self.resampling, box), label


def _places(folder: Path) -> tuple[list[Path], dict[str, Array]]:
    """Return the files and the place of each record; the places are kept in the user's cache."""
    files = sorted(path for path in folder.glob(PATTERN) if path.is_file())
    texts = [str(folder.resolve()), *(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)]
    name = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:24]
    cache = cached.default_folder() / f"records-{name}.npz"
    arrays = cached.load(cache, ("files", "starts", "ends"))
    if arrays is None:
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda file: list(_records_of(file)), files))
        numbers = np.repeat(np.arange(len(files)), [len(records) for records in found])
        places: Array = np.array([place for records in found for place in records], np.int64).reshape(-1, 2)
        arrays = {"files": numbers, "starts": places[:, 0], "ends": places[:, 1]}
        cached.store(cache, arrays)
    return files, arrays


def _records_of(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of the data of each record, without reading the data."""
    size, start = path.stat().st_size, 0
    with path.open("rb") as file:
        while start < size:
            file.seek(start)
            head = file.read(_LENGTH.size)
            end = start + _FRAME + _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else size + 1
            if end > size:
                raise ImagesError(f"{path}: the record at byte {start} is incomplete; copy the file again")
            yield start + 12, end - 4
            start = end
