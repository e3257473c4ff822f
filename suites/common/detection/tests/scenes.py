"""Checks of the scenes of the small scale, and of the steps on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from checking import context
from common.detection import metric, scenes, steps
from common.detection.coco import Form, encode_runs
from common.detection.metric import Prediction


def check_scenes_have_exact_boxes_and_masks() -> None:
    index = scenes.load(train=True).index
    assert len(index) == scenes.TRAIN
    assert set(index.labels.tolist()) == {1, 2, 3}
    for item, (left, top, right, bottom) in enumerate(index.boxes.astype(int)):
        mask = steps.coco.decode_runs(index.mask(item)[0], (scenes.SIZE, scenes.SIZE))
        assert mask.sum() == mask[top:bottom, left:right].sum() == index.areas[item]
        inner = mask[top:bottom, left:right]
        assert inner[0].any() and inner[-1].any() and inner[:, 0].any() and inner[:, -1].any()  # noqa: PT018
        assert encode_runs(mask) == index.mask(item)[0].tolist()
    counts = np.diff(index.first)
    assert set(counts.tolist()) == {1, 2, 3}


def check_the_digits_of_both_parts_are_different_people_s_pictures() -> None:
    pixels = [scenes.load(train=part).pixels for part in (True, False)]
    assert [len(part) for part in pixels] == [scenes.TRAIN, scenes.EVAL]
    assert (pixels[0][: scenes.EVAL] != pixels[1]).any()
    scenes.load.cache_clear()
    assert (scenes.load(train=True).pixels == pixels[0]).all(), "scenes must not depend on the round's seed"


def oracle(ctx: Any, miss: int | None = None) -> list[Prediction]:
    """Return all objects of the evaluation set as predictions, except those of one label."""
    predictions = []
    for batch in steps.create_eval_data(ctx):
        for place, count in enumerate(batch.counts):
            chosen = batch.labels[place, :count] != (0 if miss is None else miss)
            boxes, labels = batch.boxes[place, :count][chosen], batch.labels[place, :count][chosen]
            predictions.append(Prediction(int(batch.ids[place]), boxes, np.ones(len(labels), np.float32), labels))
    return predictions


def check_every_picture_is_evaluated_once_for_any_number_of_ranks() -> None:
    for ranks in (1, 3):
        ctx = context(masks=False, eval_batch_size=7)
        parts = [oracle(replace(ctx, rank=rank, world_size=ranks)) for rank in range(ranks)]
        everything = [prediction for part in parts for prediction in part]
        assert steps.summarize(ctx, everything) == {"map": 1.0, "map50": 1.0}
    missed = steps.summarize(ctx, oracle(ctx, miss=2))
    assert abs(missed["map"] - 2 / 3) < 1e-9, "the control: one of three classes is missing"


def check_masks_have_a_precision_of_their_own() -> None:
    index = scenes.load(train=False).index
    found = {prediction.picture: prediction for prediction in oracle(context(masks=False))}
    predictions = []
    for place, picture in enumerate(index.ids.tolist()):
        items = range(index.first[place], index.first[place + 1])
        size = (scenes.SIZE, scenes.SIZE)
        masks = [metric.encoded(steps.coco.decode_runs(index.mask(item)[0], size)) for item in items]
        predictions.append(found[picture]._replace(masks=masks))
    assert set(metric.evaluate(index, predictions, with_masks=True).values()) == {1.0}
    swapped = [one._replace(masks=[metric.encoded(np.ones(size, np.uint8)) for _ in one.masks]) for one in predictions]
    worse = metric.evaluate(index, swapped, with_masks=True)
    assert worse["map"] == 1.0
    assert worse["map_segm"] < 0.1


def check_shuffled_boxes_are_in_the_training_only() -> None:
    def boxes(data: Any, *, shuffle: bool) -> list[Any]:
        return [batch.boxes.tolist() for batch in data(context(shuffle_labels=shuffle))]

    assert boxes(steps.create_train_data, shuffle=True) != boxes(steps.create_train_data, shuffle=False)
    assert boxes(steps.create_eval_data, shuffle=True) == boxes(steps.create_eval_data, shuffle=False)


def check_synthetic_batches_have_the_real_shape() -> None:
    ctx = replace(context("reference", train_batch_size=2), synthetic=True, world_size=8)
    data: Any = steps.create_train_data(ctx)
    assert len(data) == steps.COCO_TRAIN // 16
    batch = next(iter(data))
    form = Form(ctx.config.shapes, 800, 1333, ctx.config.max_boxes, (0, 0, 0))
    assert batch.pixels.shape == (2, *form.shapes[0], 3)
    assert batch.boxes.shape == (2, form.max_boxes, 4)
    prepared = steps.prepare_batch(ctx, batch)
    assert [len(target["boxes"]) for target in prepared.targets()] == batch.counts.tolist()
