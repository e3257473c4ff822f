"""Checks of the reader of COCO's annotations and pictures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from checking import SCRATCH, raises
from common.detection import coco
from common.detection.coco import CocoError, CocoPictures, Form, Index
from common.shares import Draw
from PIL import Image

from tests.suites.tiny_data import coco as tiny

COUNTER = itertools.count()
FORM = Form([(64, 96), (96, 64)], min_size=60, max_size=90, max_boxes=4, fill=(1, 2, 3))
WITH_MASKS = Form(**{**vars(FORM), "mask_size": 20})


def folder() -> Path:
    path = SCRATCH / f"coco{next(COUNTER)}"
    tiny.write(path)
    return path


def file_of(path: Path) -> Path:
    return path / "annotations/instances_train2017.json"


def index(path: Path) -> Index:
    return coco.read_index(file_of(path), path / "cache")


def pictures(path: Path, form: Form = FORM, **how: Any) -> CocoPictures:
    listed = index(path)
    return CocoPictures(listed, coco.reader(listed, path / "train2017"), form, **how)


def draw(*indices: int, epoch: int = 0) -> Draw:
    return Draw(epoch, np.array(indices))


def changed(change: Callable[[dict[str, Any]], object], *words: str) -> None:
    """Check the error of an annotation file with a change."""
    path = folder()
    content = json.loads(file_of(path).read_text())
    change(content)
    file_of(path).write_text(json.dumps(content))
    raises(CocoError, lambda: index(path), str(file_of(path)), *words)


# -- annotations -------------------------------------------------------------------------------------------


def check_annotations_are_indexed() -> None:
    listed = index(folder())
    assert listed.ids.tolist() == list(range(1, tiny.TRAIN + 1))
    assert listed.categories.tolist() == [1, 18, 90]
    assert np.diff(listed.first).tolist() == [{tiny.EMPTY: 0, tiny.CROWD: 2}.get(number, 1) for number in listed.ids]
    assert listed.labels.tolist()[:2] == [2, 3], "labels are numbered from 1 in the order of the categories' ids"
    assert listed.crowds.sum() == 1
    assert listed.valid().sum() == tiny.TRAIN - 1
    parts = np.diff(listed.parts)[listed.first[tiny.PARTS - 1]]
    assert parts == 2
    width = tiny.SIZES[tiny.BEYOND % 2][0]
    place = listed.first[tiny.BEYOND - 1]
    assert (listed.boxes[place, 2], listed.clipped()[place, 2]) == (width + 10, width)


def check_an_index_is_cached_until_the_file_changes() -> None:
    path = folder()
    first, parse = index(path), coco.parse
    coco.parse = lambda *_: (_ for _ in ()).throw(AssertionError("the file was parsed again"))
    try:
        again = index(path)
    finally:
        coco.parse = parse
    assert all((vars(first)[name] == vars(again)[name]).all() for name in vars(first))
    content = json.loads(file_of(path).read_text())
    content["images"].append({"id": 999, "file_name": "new.jpg", "width": 8, "height": 8})
    file_of(path).write_text(json.dumps(content))
    assert len(index(path)) == len(first) + 1


def check_wrong_annotations_are_named_with_the_fix() -> None:
    again = "copy the file again"
    changed(lambda content: content.pop("images"), "not an annotation file of COCO")
    changed(lambda content: content["annotations"][3].pop("bbox"), "annotations[3]", "no key 'bbox'", again)
    changed(lambda content: content["annotations"][2].update(bbox=[1, 2]), "annotations[2]", again)
    changed(lambda content: content["annotations"][0].update(category_id=7), "1000 has category id 7", again)
    changed(lambda content: content["annotations"][1].update(image_id=77), "1001 has image id 77", again)
    changed(lambda content: content["images"].append(content["images"][4]), "image id 5 occurs twice")
    changed(lambda content: content["categories"].append(content["categories"][1]), "category id 18 occurs twice")
    changed(lambda content: content["annotations"][0].update(segmentation={"counts": "abc"}), "compressed")
    path = folder()
    file_of(path).write_text('{"images": [')
    raises(CocoError, lambda: index(path), "cannot be read as JSON", again)
    file_of(path).unlink()
    raises(CocoError, lambda: index(path), "file not found", "annotations_trainval2017.zip")


def check_runs_are_decoded_as_they_were_encoded() -> None:
    rng = np.random.default_rng(0)
    for mask in (rng.integers(0, 2, (5, 7), np.uint8), np.ones((2, 3), np.uint8), np.zeros((2, 3), np.uint8)):
        runs = np.array(coco.encode_runs(mask))
        assert (coco.decode_runs(runs, mask.shape) == mask).all()
    assert (coco.decode_runs(np.array([1, 2, 3]), (3, 2)) == [[0, 0], [1, 0], [1, 0]]).all(), "runs go down columns"


# -- pictures ----------------------------------------------------------------------------------------------


def check_boxes_lie_on_their_objects() -> None:
    path = folder()
    for epoch in range(3):  # mirrored and not mirrored
        source = pictures(path, WITH_MASKS, train=True, seed=1)
        for sample in range(len(source)):
            batch = source[draw(sample, epoch=epoch)]
            assert batch.masks is not None
            if batch.ids[0] in (tiny.GREY, tiny.CMYK):
                continue
            assert batch.counts.tolist() == [1], "a crowd is not trained on"
            left, top, right, bottom = batch.boxes[0, 0].round().astype(int)
            colour = list(tiny.CATEGORIES.values())[batch.labels[0, 0] - 1][1]
            inside = batch.pixels[0, top + 2 : bottom - 2, left + 2 : right - 2].reshape(-1, 3).mean(axis=0)
            assert abs(inside - colour).max() < 12, (batch.ids, inside, colour)
            height, width = batch.sizes[0]
            whole = batch.pixels[0, :height, :width].reshape(-1, 3).mean(axis=0)
            assert abs(whole - colour).max() > 20, "the control: the whole picture has the object's colour"
            assert right <= width
            assert bottom <= height
            columns = batch.masks[0, 0].mean(axis=0)
            assert (columns.min() < 0.1) == (batch.ids[0] == tiny.PARTS), "a mask of two parts has a gap"
            assert columns.mean() > 0.7


def check_pictures_are_padded_to_the_smallest_shape() -> None:
    source = pictures(folder())
    shapes = set()
    for sample in range(len(source)):
        batch = source[draw(sample)]
        height, width = batch.sizes[0]
        assert (height, width) == ((60, 80) if width > height else (80, 60))
        assert (batch.pixels[0, height:] == FORM.fill).all()
        assert (batch.pixels[0, :, width:] == FORM.fill).all()
        assert (batch.pixels[0, :height, :width] != FORM.fill).any()
        shapes.add(batch.pixels.shape)
    assert shapes == {(1, 64, 96, 3), (1, 96, 64, 3)}
    narrow = Form(**{**vars(FORM), "shapes": [(64, 96)]})
    raises(CocoError, lambda: pictures(folder(), narrow), "height 80 and width 60", "(64, 96)", "add a shape")


def check_training_leaves_out_pictures_without_boxes_and_evaluation_does_not() -> None:
    path = folder()
    trained, evaluated = pictures(path, train=True), pictures(path)
    assert (len(trained), len(evaluated)) == (tiny.TRAIN - 1, tiny.TRAIN)
    ids = [int(evaluated[draw(sample)].ids[0]) for sample in range(len(evaluated))]
    assert tiny.EMPTY in ids
    assert tiny.EMPTY not in [int(trained[draw(sample)].ids[0]) for sample in range(len(trained))]


def check_mirroring_depends_on_seed_epoch_and_sample_only() -> None:
    path = folder()

    def lefts(seed: int, epoch: int, *, train: bool = True) -> list[float]:
        source = pictures(path, train=train, seed=seed)
        return [float(source[draw(sample, epoch=epoch)].boxes[0, 0, 0]) for sample in range(len(source))]

    assert lefts(1, 0) == lefts(1, 0)
    assert lefts(1, 0) != lefts(1, 1)
    assert lefts(1, 0) != lefts(2, 0)
    assert lefts(1, 0, train=False) == lefts(2, 1, train=False)


def check_shuffled_boxes_belong_to_other_pictures() -> None:
    path = folder()
    own, others = pictures(path, train=True), pictures(path, train=True, shuffle=True)
    assert (own.groups == others.groups).all()
    batches = [(own[draw(sample)], others[draw(sample)]) for sample in range(len(own))]
    assert all((one.pixels == other.pixels).all() for one, other in batches)
    different = sum(bool((one.boxes != other.boxes).any()) for one, other in batches)
    assert different > len(own) / 2
    assert all((other.boxes[0, 0, 2:] <= other.sizes[0, ::-1]).all() for _, other in batches)


def check_damaged_missing_and_other_pictures_are_named() -> None:
    path, name = folder(), f"{5:012d}.jpg"
    source = pictures(path)
    (path / "train2017" / name).write_bytes(b"no picture")
    raises(CocoError, lambda: source[draw(4)], name, "cannot be read", "copy the file again")
    Image.new("RGB", (30, 20)).save(path / "train2017" / name)
    raises(CocoError, lambda: source[draw(4)], name, "20 x 30", "same data set")
    (path / "train2017" / name).unlink()
    raises(CocoError, lambda: source[draw(4)], name, "file not found", "train2017.zip")
    raises(CocoError, lambda: coco.reader(index(path), path / "nowhere"), "nowhere", "folder not found")


def check_too_many_boxes_are_an_error() -> None:
    few = Form(**{**vars(FORM), "max_boxes": 0})
    raises(CocoError, lambda: pictures(folder(), few), "000000000001.jpg has 1 boxes", "max_boxes = 0")
