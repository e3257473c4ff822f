"""Pictures for the device to decode: the reader reads files, and draws boxes and mirroring as for decoded pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from common.images.folders import FolderImages, ImagesError
from common.images.mixing import Mix
from common.shares import Array, Draw

END = b"\xff\xd9"
"""The last bytes of a JPEG file. Decoders of devices accept files that were cut: Pillow judges those without them."""


class Encoded(NamedTuple):
    """A batch."""

    data: Array
    """The bytes of all pictures, one after the other."""
    ends: Array
    """Where each picture ends in ``data``."""
    shapes: Array
    """(N, 2): height and width of a picture that is decoded already; zeros for a JPEG file."""
    boxes: Array
    """(N, 4): left, top, right, bottom, in pixels of the stored picture."""
    labels: Array
    names: Sequence[str]
    """The paths, for error messages."""
    size: int
    """The height and width to which the boxes are resized."""
    mirrored: Array | None = None
    mix: Mix | None = None


class EncodedImages(FolderImages):
    """Files of a listing for the device to decode; all but complete grey or RGB JPEG files are decoded here."""

    def __getitem__(self, draw: Draw) -> Encoded:  # type: ignore[override]
        pictures, shapes, boxes, mirrored = [], [], [], []
        for index, rng in self.generators(draw):
            data, shape, (width, height) = self._bytes(index)
            pictures.append(data)
            shapes.append(shape)
            boxes.append(self.box(width, height, rng))
            mirrored.append(self.mirror and rng.random() < 0.5)
        return Encoded(
            np.concatenate(pictures),
            np.cumsum([len(data) for data in pictures]),
            np.array(shapes),
            np.array(boxes),
            self.labels[draw.indices],
            [str(self.listing.path(int(index))) for index in draw.indices],
            self.size,
            np.array(mirrored) if self.mirror else None,
        )

    def _bytes(self, index: int) -> tuple[Array, tuple[int, int], tuple[int, int]]:
        """Return a picture's bytes, the shape of the decoded picture, and its width and height."""
        path = self.listing.path(index)
        try:
            content = path.read_bytes()
            with Image.open(io.BytesIO(content)) as file:  # reads only the header
                if file.format == "JPEG" and file.mode in ("L", "RGB") and content.endswith(END):
                    return np.frombuffer(content, np.uint8), (0, 0), file.size
                pixels = np.asarray(file.convert("RGB"))
        except Exception as error:  # a damaged file may raise any error in Pillow
            raise ImagesError(f"{path}: cannot be read as an image: {error}; copy the file again") from error
        height, width = pixels.shape[:2]
        return pixels.reshape(-1), (height, width), (width, height)


def whole(box: Sequence[float], width: int, height: int) -> tuple[int, int, int, int]:
    """Round a box to whole pixels, at least one in each direction."""
    left, top = min(round(box[0]), width - 1), min(round(box[1]), height - 1)
    return left, top, max(round(box[2]), left + 1), max(round(box[3]), top + 1)
