"""Pictures with boxes and masks in COCO's format: its annotation files, and batches of pictures of few shapes.

Pixels stay bytes until they are on the device. A batch has one of few shapes, so that a device compiles its operations
once for each shape.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from common import cached
from common.shares import Array, Draw, SourceError

Shape: TypeAlias = tuple[int, int]
"""Height and width."""
LEAST_SIDE = 1.0
"""A box with a side of at most one pixel does not count as a box."""
OBJECTS = 7
"""The mean number of objects in COCO's pictures."""


class CocoError(SourceError):
    """The annotations or pictures were not found, are unreadable or contradict each other."""


class Pictures(NamedTuple):
    """A batch; B is the config's ``max_boxes``."""

    pixels: Array
    """(N, H, W, 3), bytes; beside a picture the mean colour."""
    sizes: Array
    """(N, 2): height and width of each resized picture, at the top left of its place."""
    originals: Array
    """(N, 2): height and width of each stored picture."""
    ids: Array
    boxes: Array
    """(N, B, 4) float32: left, top, right, bottom in pixels of the resized picture."""
    labels: Array
    """(N, B), from 1; 0 at places without a box."""
    counts: Array
    """(N,): the number of boxes."""
    masks: Array | None = None
    """(N, B, S, S) bytes, 0 or 1: S x S points of each object's box."""


# -- annotations -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """The annotations of a set of pictures, in flat arrays, which worker processes share without copying."""

    ids: Array
    """The pictures' ids, in rising order."""
    names: Array
    """File names, as bytes."""
    sizes: Array
    """(N, 2): height and width."""
    first: Array
    """(N + 1): the objects of picture i are those from first[i] to first[i + 1]."""
    boxes: Array
    """(M, 4): left, top, right, bottom."""
    labels: Array
    """From 1, in the order of the categories' ids."""
    areas: Array
    crowds: Array
    """Whether an object is a crowd; crowds are not trained on."""
    runs: Array
    """Whether a mask is given as lengths of runs, column by column; else as polygons."""
    parts: Array
    """(M + 1): the mask of object i consists of the parts from parts[i] to parts[i + 1]."""
    points: Array
    """(P + 1): the values of part i are those from points[i] to points[i + 1]."""
    values: Array
    """Coordinates x, y, x, y, ... of polygons, or lengths of runs."""
    categories: Array
    """The ids of the categories, in rising order."""

    def __len__(self) -> int:
        return len(self.ids)

    def mask(self, item: int) -> list[Array]:
        """Return the polygons of an object, or one array of runs."""
        parts = range(self.parts[item], self.parts[item + 1])
        return [self.values[self.points[part] : self.points[part + 1]] for part in parts]

    def clipped(self) -> Array:
        """Return the boxes without what is beside their pictures."""
        height, width = self.sizes[np.repeat(np.arange(len(self)), np.diff(self.first))].T
        limits = np.stack([width, height, width, height], axis=1)
        return np.clip(self.boxes, 0, limits)

    def valid(self) -> Array:
        """Return which objects can be trained on."""
        left, top, right, bottom = self.clipped().T
        large: Array = (right - left > LEAST_SIDE) & (bottom - top > LEAST_SIDE) & ~self.crowds
        return large


def read_index(file: Path, cache: Path | None = None) -> Index:
    """Read an annotation file, or its cached index if the file has not changed."""
    if not file.is_file():
        raise CocoError(f"{file}: file not found; unpack annotations_trainval2017.zip into the data directory")
    state = file.stat()
    key = f"{os.fspath(file.resolve())} {state.st_size} {state.st_mtime_ns}"
    name = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:24]
    path = (cache or cached.default_folder()) / f"coco-{name}.npz"
    names = [field.name for field in fields(Index)]
    if (arrays := cached.load(path, names)) is not None:
        return Index(**arrays)
    index = parse(_content(file), str(file))
    cached.store(path, {name: getattr(index, name) for name in names})
    return index


def _content(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise CocoError(f"{file}: cannot be read as JSON: {error}; copy the file again") from error
    kinds = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(kind), list) for kind in kinds):
        raise CocoError(f"{file}: not an annotation file of COCO: expected an object with lists {', '.join(kinds)}")
    return content


def parse(content: Mapping[str, Any], source: str) -> Index:
    """Return the index of COCO's annotations; errors name the source."""
    images = sorted(_rows(content, "images", source, lambda row: (
        int(row["id"]), os.fsencode(row["file_name"]), (int(row["height"]), int(row["width"])),
    )))  # fmt: skip
    ids: Array = np.array([image[0] for image in images], np.int64)
    categories: Array = np.array(sorted(_rows(content, "categories", source, lambda row: int(row["id"]))), np.int64)
    for kind, numbers in (("image", ids), ("category", categories)):
        if (doubled := numbers[1:][numbers[1:] == numbers[:-1]]).size:
            raise CocoError(f"{source}: the {kind} id {doubled[0]} occurs twice; copy the file again")
    objects = list(_rows(content, "annotations", source, _object))
    pictures = _places(ids, [item.picture for item in objects], objects, "image", source)
    labels = _places(categories, [item.category for item in objects], objects, "category", source) + 1
    order = np.argsort(pictures, kind="stable")
    masks = [objects[place].mask for place in order]
    parts = [part for mask in masks for part in mask]
    return Index(
        ids=ids,
        names=np.array([image[1] for image in images], np.bytes_),
        sizes=np.array([image[2] for image in images], np.int64).reshape(-1, 2),
        first=np.searchsorted(pictures[order], np.arange(len(ids) + 1)),
        boxes=np.array([item.box for item in objects], np.float64).reshape(-1, 4)[order],
        labels=labels[order],
        areas=np.array([item.area for item in objects], np.float64)[order],
        crowds=np.array([item.crowd for item in objects], np.bool_)[order],
        runs=np.array([item.runs for item in objects], np.bool_)[order],
        parts=_offsets(masks),
        points=_offsets(parts),
        values=np.fromiter(itertools.chain.from_iterable(parts), np.float64),
        categories=categories,
    )


class _Object(NamedTuple):
    id: Any
    picture: int
    category: int
    box: tuple[float, float, float, float]
    area: float
    crowd: bool
    runs: bool
    mask: Sequence[Sequence[float]]


def _object(row: Mapping[str, Any]) -> _Object:
    left, top, width, height = map(float, row["bbox"])
    mask = row["segmentation"]
    runs = isinstance(mask, dict)
    if runs and isinstance(mask["counts"], str):
        raise ValueError("the mask's runs are compressed; expected a list of numbers")
    box = (left, top, left + width, top + height)
    parts = [mask["counts"]] if runs else mask
    return _Object(
        row.get("id"), int(row["image_id"]), int(row["category_id"]), box, float(row["area"]), bool(row["iscrowd"]),
        runs, parts,
    )  # fmt: skip


def _rows(
    content: Mapping[str, Any], kind: str, source: str, convert: Callable[[Mapping[str, Any]], Any]
) -> Iterator[Any]:
    for place, row in enumerate(content[kind]):
        try:
            yield convert(row)
        except (KeyError, TypeError, ValueError) as error:
            what = f"no key {error}" if isinstance(error, KeyError) else str(error)
            raise CocoError(f"{source}: {kind}[{place}]: {what}; copy the file again") from error


def _places(known: Array, numbers: list[int], objects: Sequence[_Object], kind: str, source: str) -> Array:
    """Return the place of each number among the known ones."""
    places: Array = np.searchsorted(known, np.array(numbers, np.int64))
    found = known[np.minimum(places, len(known) - 1)] == numbers if len(known) else np.zeros(len(places), bool)
    if not np.all(found):
        wrong = int(np.argmin(found))
        raise CocoError(
            f"{source}: annotation {objects[wrong].id} has {kind} id {numbers[wrong]}, which the file does not list; "
            "copy the file again"
        )
    return places


def _offsets(lists: Sequence[Sequence[Any]]) -> Array:
    offsets: Array = np.concatenate([[0], np.cumsum([len(part) for part in lists])]).astype(np.int64)
    return offsets


# -- masks -------------------------------------------------------------------------------------------------


def decode_runs(runs: Array, shape: Shape) -> Array:
    """Return the mask whose runs of 0 and 1 go down the columns."""
    height, width = shape
    flat = np.repeat(np.arange(len(runs)) % 2, runs.astype(np.int64))
    return flat.astype(np.uint8).reshape(width, height).T


def encode_runs(mask: Array) -> list[int]:
    """Return the lengths of the runs of a mask, column by column; the first run is of 0."""
    flat = mask.T.reshape(-1).astype(np.int8)
    changes = np.flatnonzero(np.diff(flat, prepend=0)).tolist()
    ends: list[int] = [*changes, len(flat)]
    return [end - start for start, end in zip([0, *changes], ends, strict=True)]


def mask_in_box(index: Index, item: int, shape: Shape, box: Array, points: int) -> Array:
    """Return an object's mask at points x points places of its box."""
    left, top, right, bottom = box
    if index.runs[item]:
        whole = Image.fromarray(decode_runs(index.mask(item)[0], shape))
        return np.asarray(whole.resize((points, points), Image.Resampling.NEAREST, (left, top, right, bottom)))
    picture = Image.new("L", (points, points))
    scale = points / np.array([right - left, bottom - top])
    for polygon in index.mask(item):
        corners = (polygon.reshape(-1, 2) - (left, top)) * scale - 0.5  # Pillow counts from the pixels' middles
        ImageDraw.Draw(picture).polygon([(float(x), float(y)) for x, y in corners], fill=1)
    return np.asarray(picture)


# -- pictures ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """How pictures become a batch."""

    shapes: Sequence[Shape]
    """The shapes of batches."""
    min_size: int
    """The length to which the shorter side is resized."""
    max_size: int
    """The greatest length of the longer side after that."""
    max_boxes: int
    """The number of places for boxes."""
    fill: tuple[int, int, int]
    """The colour beside a picture."""
    mask_size: int | None = None
    """Points along a side of a mask; None: no masks."""

    def resized(self, sizes: Array) -> Array:
        """Return the sizes after the resizing."""
        scale = np.minimum(self.min_size / sizes.min(axis=1), self.max_size / sizes.max(axis=1))
        return np.maximum(np.rint(sizes * scale[:, None]), 1).astype(np.int64)

    def groups(self, sizes: Array) -> Array:
        """Return the number of the smallest shape that has room for each resized size."""
        shapes = np.array(self.shapes)
        fits = (sizes[:, None] <= shapes[None]).all(axis=2)
        if not fits.any(axis=1).all():
            height, width = sizes[np.argmin(fits.any(axis=1))]
            raise CocoError(
                f"a picture of height {height} and width {width} after the resizing fits none of the config's shapes "
                f"{[tuple(shape) for shape in self.shapes]}; add a shape"
            )
        groups: Array = np.where(fits, shapes.prod(axis=1), shapes.prod(axis=1).max() + 1).argmin(axis=1)
        return groups


class CocoPictures:
    """Reads the pictures of an index, or a part of them, as batches."""

    def __init__(
        self,
        index: Index,
        read: Callable[[int], Image.Image],
        form: Form,
        *,
        train: bool = False,
        seed: int = 0,
        shuffle: bool = False,
    ) -> None:
        """Take all pictures; with ``train`` those with boxes, mirrored at random, with ``shuffle`` others' boxes."""
        self._index, self._read, self._form, self._train, self._seed = index, read, form, train, seed
        valid = index.valid()
        self._items = np.flatnonzero(valid)
        self._first = np.concatenate([[0], np.cumsum(valid)])[index.first]
        self._boxes = index.clipped()
        counts = np.diff(self._first)
        if (most := counts.max(initial=0)) > form.max_boxes:
            name = os.fsdecode(bytes(index.names[counts.argmax()]))
            raise CocoError(f"{name} has {most} boxes; max_boxes = {form.max_boxes} is too small")
        self._chosen = np.flatnonzero(counts) if train else np.arange(len(index))
        self._annotated = np.random.default_rng((seed, 0x5EED)).permutation(self._chosen) if shuffle else self._chosen
        self._sizes = form.resized(index.sizes[self._chosen])
        self.groups = form.groups(self._sizes)
        """The number of each picture's shape; the pictures of a batch must have the same."""

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, draw: Draw) -> Pictures:
        count, form = len(draw.indices), self._form
        (group,) = set(self.groups[draw.indices].tolist())
        pixels: Array = np.full((count, *form.shapes[group], 3), form.fill, np.uint8)
        boxes: Array = np.zeros((count, form.max_boxes, 4), np.float32)
        labels: Array = np.zeros((count, form.max_boxes), np.int64)
        counts: Array = np.zeros(count, np.int64)
        masks = None if form.mask_size is None else np.zeros((*labels.shape, form.mask_size, form.mask_size), np.uint8)
        for place, sample in enumerate(draw.indices):
            height, width = self._sizes[sample]
            rng = np.random.default_rng((self._seed, draw.epoch, int(sample)))
            mirrored = self._train and rng.random() < 0.5
            picture = self._pixels(int(sample))
            pixels[place, :height, :width] = picture[:, ::-1] if mirrored else picture
            items = self._items_of(sample)
            counts[place] = many = len(items)
            labels[place, :many] = self._index.labels[items]
            boxes[place, :many] = self._scaled(items, sample, mirrored=mirrored)
            if masks is not None:
                masks[place, :many] = self._masks(items, sample, mirrored=mirrored)
        chosen = self._chosen[draw.indices]
        sizes, originals = self._sizes[draw.indices], self._index.sizes[chosen]
        return Pictures(pixels, sizes, originals, self._index.ids[chosen], boxes, labels, counts, masks)

    def _items_of(self, sample: int) -> Array:
        picture = self._annotated[sample]
        return self._items[self._first[picture] : self._first[picture + 1]]

    def _scaled(self, items: Array, sample: int, *, mirrored: bool) -> Array:
        width = self._sizes[sample, 1]
        scale = self._sizes[sample] / self._index.sizes[self._annotated[sample]]
        boxes = self._boxes[items] * np.tile(scale[::-1], 2)
        if mirrored:
            boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
        return boxes

    def _masks(self, items: Array, sample: int, *, mirrored: bool) -> Array:
        points, shape = self._form.mask_size or 0, tuple(self._index.sizes[self._annotated[sample]])
        masks = [mask_in_box(self._index, item, shape, self._boxes[item], points) for item in items]
        stacked: Array = np.stack(masks) if masks else np.zeros((0, points, points), np.uint8)
        return stacked[:, :, ::-1] if mirrored else stacked

    def _pixels(self, sample: int) -> Array:
        height, width = self._sizes[sample]
        number = int(self._chosen[sample])
        picture = self._read(number)
        expected = tuple(self._index.sizes[number])
        if (picture.height, picture.width) != expected:
            raise CocoError(
                f"{os.fsdecode(bytes(self._index.names[number]))}: {picture.height} x {picture.width} pixels; its "
                f"annotation says {expected[0]} x {expected[1]}: use pictures and annotations of the same data set"
            )
        if picture.size != (width, height):
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(picture)


def reader(index: Index, folder: Path) -> Callable[[int], Image.Image]:
    """Return the reader of a folder's pictures."""
    if not folder.is_dir():
        raise CocoError(f"{folder}: folder not found; unpack {folder.name}.zip into the data directory")

    def read(number: int) -> Image.Image:
        path = folder / os.fsdecode(bytes(index.names[number]))
        try:
            with Image.open(path) as file:
                return file.convert("RGB")
        except FileNotFoundError as error:
            raise CocoError(f"{path}: file not found; unpack {folder.name}.zip again") from error
        except Exception as error:  # a damaged file may raise any error in Pillow
            raise CocoError(f"{path}: cannot be read as an image: {error}; copy the file again") from error

    return read


def random_pictures(count: int, shape: Shape, form: Form, classes: int, rng: np.random.Generator) -> Pictures:
    """Return a batch of random bytes with random boxes."""
    height, width = shape
    objects = min(OBJECTS, form.max_boxes)
    corners = rng.random((count, objects, 2)) * 0.5
    sides = 0.1 + rng.random((count, objects, 2)) * 0.4
    boxes: Array = np.zeros((count, form.max_boxes, 4), np.float32)
    boxes[:, :objects] = np.concatenate([corners, corners + sides], axis=2) * [width, height, width, height]
    labels: Array = np.zeros((count, form.max_boxes), np.int64)
    labels[:, :objects] = rng.integers(1, classes, (count, objects))
    sizes = np.tile(np.array(shape), (count, 1))
    pixels = rng.integers(0, 256, (count, height, width, 3), np.uint8)
    masks = form.mask_size and rng.integers(0, 2, (*labels.shape, form.mask_size, form.mask_size), np.uint8)
    return Pictures(pixels, sizes, sizes, np.arange(count), boxes, labels, np.full(count, objects), masks)
