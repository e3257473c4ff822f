"""COCO's mean average precision of boxes and masks, computed by faster-coco-eval.

The package is imported when a precision is computed: training on synthetic pictures computes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from common.detection.coco import Index
from common.shares import Array

MOST = 100
"""The number of a picture's predictions that count: those with the highest scores."""


class MetricError(ValueError):
    """The predictions do not belong to the pictures."""


class Prediction(NamedTuple):
    """What a model found in one picture."""

    picture: int
    """The picture's id."""
    boxes: Array
    """(n, 4): left, top, right, bottom in pixels of the stored picture."""
    scores: Array
    labels: Array
    """From 1, as in the index."""
    masks: Sequence[Any] = ()
    """From ``encoded``, for each box; only needed for the precision of masks."""


def encoded(mask: Array) -> Any:
    """Return a mask of the whole stored picture in a short form."""
    from faster_coco_eval import mask as masks

    return masks.encode(np.asfortranarray(mask, np.uint8))


def evaluate(index: Index, predictions: Sequence[Prediction], *, with_masks: bool = False) -> dict[str, float]:
    """Return the mean average precisions: ``map`` over the overlaps 0.50 to 0.95, and ``map50``."""
    check_pictures(index, predictions)
    truth = ground_truth(index)
    precisions = dict(zip(("map", "map50"), _precisions(truth, results(index, predictions), "bbox"), strict=True))
    if with_masks:
        found = results(index, predictions, of_masks=True)
        precisions.update(zip(("map_segm", "map50_segm"), _precisions(truth, found, "segm"), strict=True))
    return precisions


def check_pictures(index: Index, predictions: Sequence[Prediction]) -> None:
    """Raise an error unless there is exactly one prediction for each picture."""
    counts = Counter(prediction.picture for prediction in predictions)
    expected = set(index.ids.tolist())
    for problem, pictures in (
        ("several predictions for", [picture for picture, count in counts.items() if count > 1]),
        ("predictions for unknown", list(counts.keys() - expected)),
        ("no predictions for", list(expected - counts.keys())),
    ):
        if pictures:
            some = ", ".join(map(str, sorted(pictures)[:5]))
            raise MetricError(
                f"{problem} {len(pictures)} of {len(expected)} pictures (image id {some}); "
                "the ranks' shares must contain every picture once"
            )


def ground_truth(index: Index) -> dict[str, Any]:
    """Return the annotations as COCO's file has them."""
    pictures = np.repeat(np.arange(len(index)), np.diff(index.first)).tolist()
    annotations = [
        {
            "id": item + 1,
            "image_id": int(index.ids[picture]),
            "category_id": int(index.labels[item]),
            "bbox": _with_sides(index.boxes[item]),
            "area": float(index.areas[item]),
            "iscrowd": int(index.crowds[item]),
            "segmentation": _segmentation(index, item, index.sizes[picture].tolist()),
        }
        for item, picture in enumerate(pictures)
    ]
    images = [
        {"id": id_, "height": height, "width": width}
        for id_, (height, width) in zip(index.ids.tolist(), index.sizes.tolist(), strict=True)
    ]
    categories = [{"id": label, "name": str(label)} for label in range(1, len(index.categories) + 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def results(index: Index, predictions: Sequence[Prediction], *, of_masks: bool = False) -> list[dict[str, Any]]:
    """Return the predictions in the form of COCO's result files."""
    order = {id_: place for place, id_ in enumerate(index.ids.tolist())}
    return [
        {
            "image_id": prediction.picture,
            "category_id": int(prediction.labels[place]),
            "score": float(prediction.scores[place]),
            **(
                {"segmentation": prediction.masks[place]}
                if of_masks
                else {"bbox": _with_sides(prediction.boxes[place])}
            ),
        }
        for prediction in sorted(
            predictions, key=lambda prediction: order[prediction.picture]
        )  # the same for any number of ranks
        for place in range(len(prediction.scores))
    ]


def _with_sides(box: Array) -> list[float]:
    left, top, right, bottom = box.tolist()
    return [left, top, right - left, bottom - top]


def _segmentation(index: Index, item: int, size: list[int]) -> Any:
    parts = [part.tolist() for part in index.mask(item)]
    return {"size": size, "counts": [int(run) for run in parts[0]]} if index.runs[item] else parts


def _precisions(truth: dict[str, Any], found: list[dict[str, Any]], kind: str) -> tuple[float, float]:
    if not found:
        return 0.0, 0.0
    from faster_coco_eval import COCO, COCOeval_faster

    annotations = COCO(truth)
    evaluation = COCOeval_faster(annotations, annotations.loadRes(found), kind, print_function=_ignored)
    evaluation.params.maxDets = [1, 10, MOST]
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


def _ignored(*_: object) -> None:
    """The library prints a table; the log has the metrics."""
