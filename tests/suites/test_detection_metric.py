"""The precision of detectors equals pycocotools' to ten digits, on made-up hard cases and for a trained detector."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

REPO = Path(__file__).resolve().parents[2]
DIGITS = 1e-10
SIZE = 200
Content = dict[str, Any]


@pytest.fixture(scope="module")
def home() -> Iterator[Any]:
    """The shared code of detection, as a suite imports it."""
    sys.path.insert(0, str(REPO / "suites"))
    from common.detection import coco, metric

    yield type("Home", (), {"coco": coco, "metric": metric})
    sys.path.remove(str(REPO / "suites"))


def judged(truth: Content, found: list[Content], kind: str) -> tuple[float, float]:
    """Return both precisions as pycocotools computes them."""
    with redirect_stdout(StringIO()):
        annotations = COCO()
        annotations.dataset = truth
        annotations.createIndex()
        evaluation = COCOeval(annotations, annotations.loadRes(found), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


def both(home: Any, truth: Content, predictions: list[Any]) -> dict[str, tuple[float, float]]:
    """Return by metric the value of the suite's library and that of pycocotools."""
    index = home.coco.parse(json.loads(json.dumps(truth)), "made-up truth")
    ours = home.metric.evaluate(index, predictions, with_masks=True)
    theirs: list[float] = []
    for kind, of_masks in (("bbox", False), ("segm", True)):
        theirs += judged(json.loads(json.dumps(truth)), results(index, predictions, of_masks=of_masks), kind)
    return {name: (value, other) for (name, value), other in zip(ours.items(), theirs, strict=True)}


def results(index: Any, predictions: list[Any], *, of_masks: bool) -> list[Content]:
    """Return COCO's results, written apart from the code under test."""
    rows = []
    for prediction in predictions:
        for place, (left, top, right, bottom) in enumerate(prediction.boxes.tolist()):
            row = {
                "image_id": prediction.picture,
                "category_id": int(index.categories[prediction.labels[place] - 1]),
                "score": float(prediction.scores[place]),
            }
            where = {"bbox": [left, top, right - left, bottom - top]}
            rows.append(row | ({"segmentation": prediction.masks[place]} if of_masks else where))
    return rows


def polygon(left: float, top: float, width: float, height: float) -> list[float]:
    return [left, top, left + width, top, left + width, top + height, left, top + height]


def runs(left: int, top: int, width: int, height: int) -> Content:
    mask: Any = np.zeros((SIZE, SIZE), int)
    mask[top : top + height, left : left + width] = 1
    flat = mask.T.reshape(-1)
    ends = [*(np.flatnonzero(np.diff(flat, prepend=0))).tolist(), flat.size]
    return {"size": [SIZE, SIZE], "counts": np.diff([0, *ends]).tolist()}


def hard_case(home: Any, seed: int, *, pictures: int = 12, categories: tuple[int, ...] = (3, 7, 90)) -> Any:
    """Make truth and predictions with what is hard: see the comments."""
    rng = random.Random(seed)
    truth: Content = {"images": [], "annotations": [], "categories": [{"id": one, "name": ""} for one in categories]}
    predictions = []
    for place in range(pictures):
        picture = 100 - 7 * place  # ids in no order
        truth["images"].append({"id": picture, "file_name": f"{picture}.jpg", "height": SIZE, "width": SIZE})
        boxes = [] if place == 2 else [_box(rng) for _ in range(rng.randint(1, 8))]  # a picture without objects
        for box in boxes:
            crowd = rng.random() < 0.25
            parts = [polygon(*box), polygon(box[0], box[1], 5, 5)]  # a mask of several parts
            truth["annotations"].append({
                "id": len(truth["annotations"]) + 1, "image_id": picture, "category_id": rng.choice(categories),
                "bbox": list(box), "area": box[2] * box[3] * rng.choice([0.3, 1.0]), "iscrowd": int(crowd),
                "segmentation": runs(*box) if crowd or rng.random() < 0.3 else parts,
            })  # fmt: skip
        count = 0 if place == 4 else 130 if place == 5 else rng.randint(1, 20)  # none; more than count
        predictions.append(_prediction(home, picture, boxes, count, len(categories), rng))
    return truth, predictions


def _box(rng: random.Random) -> tuple[int, int, int, int]:
    side = rng.choice([12, 40, 90])  # COCO's small, medium and large areas
    return rng.randint(0, SIZE - side - 10), rng.randint(0, SIZE - side - 10), side, side + rng.randint(0, 9)


def _prediction(home: Any, picture: int, boxes: list[Any], count: int, classes: int, rng: random.Random) -> Any:
    found, masks = [], []
    for _ in range(count):
        left, top, width, height = rng.choice(boxes) if boxes and rng.random() < 0.8 else _box(rng)
        left, top = max(0, left + rng.randint(-4, 4)), max(0, top + rng.randint(-4, 4))
        found.append([left, top, left + width + rng.random(), top + height])
        mask: Any = np.zeros((SIZE, SIZE), np.uint8)
        mask[top : top + height, left : left + width] = 1
        masks.append(home.metric.encoded(mask))
    scores = np.array([rng.choice([0.2, 0.5, 0.50001, 0.9]) for _ in range(count)], np.float32)  # many ties
    labels = np.array([rng.randint(1, classes) for _ in range(count)], int)
    return home.metric.Prediction(picture, np.array(found, np.float32).reshape(-1, 4), scores, labels, masks)


@pytest.mark.parametrize("seed", range(8))
def test_hard_cases_have_the_judges_precision(home: Any, seed: int) -> None:
    truth, predictions = hard_case(home, seed)
    values = both(home, truth, predictions)
    assert set(values) == {"map", "map50", "map_segm", "map50_segm"}
    assert all(0 < ours < 1 for ours, _ in values.values()), values
    assert all(abs(ours - theirs) < DIGITS for ours, theirs in values.values()), values


@pytest.mark.parametrize("change", ["scores", "crowds", "labels", "most", "areas"])
def test_the_judge_notices_a_small_difference(home: Any, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """The control: each hard property changes the precision, so an error in it would be found."""
    truth, predictions = hard_case(home, 3)
    index = home.coco.parse(truth, "made-up truth")
    right = home.metric.evaluate(index, predictions, with_masks=True)
    if change == "scores":
        predictions = [one._replace(scores=one.scores[::-1]) for one in predictions]
    elif change == "labels":
        predictions = [one._replace(labels=one.labels % 3 + 1) for one in predictions]
    elif change == "crowds":
        for annotation in truth["annotations"]:
            annotation["iscrowd"] = 0
    elif change == "areas":
        for annotation in truth["annotations"]:
            annotation["bbox"][2] += 3
            annotation["segmentation"] = runs(0, 0, 3, 3)
    else:
        monkeypatch.setattr(home.metric, "MOST", 10)
    wrong = home.metric.evaluate(home.coco.parse(truth, "changed truth"), predictions, with_masks=True)
    assert all(abs(right[name] - wrong[name]) > DIGITS for name in right), (right, wrong)


def test_the_order_of_predictions_does_not_matter_and_without_any_the_precision_is_zero(home: Any) -> None:
    truth, predictions = hard_case(home, 1)
    empty = [one._replace(boxes=one.boxes[:0], scores=one.scores[:0], labels=one.labels[:0]) for one in predictions]
    index = home.coco.parse(truth, "made-up truth")
    assert set(home.metric.evaluate(index, empty, with_masks=True).values()) == {0.0}
    truth, predictions = hard_case(home, 2)
    index = home.coco.parse(truth, "made-up truth")
    assert home.metric.evaluate(index, predictions) == home.metric.evaluate(index, predictions[::-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: [*found, found[0]], "several predictions for 1 of 12 pictures (image id 100)"),
        (lambda found: found[1:], "no predictions for 1 of 12 pictures (image id 100)"),
        (lambda found: [*found[1:], found[0]._replace(picture=5)], "predictions for unknown 1 of 12"),
    ],
    ids=["doubled", "missing", "unknown"],
)
def test_a_doubled_missing_or_unknown_picture_is_an_error(
    home: Any, change: Callable[[list[Any]], list[Any]], words: str
) -> None:
    truth, predictions = hard_case(home, 1)
    index = home.coco.parse(truth, "made-up truth")
    home.metric.evaluate(index, predictions)
    with pytest.raises(home.metric.MetricError) as caught:
        home.metric.evaluate(index, change(predictions))
    assert words in str(caught.value)


@pytest.mark.slow
def test_a_trained_detector_has_the_same_precision_in_both_libraries(
    suite_python: Callable[[Path], str], tmp_path: Path
) -> None:
    suite = REPO / "suites/faster_rcnn/pytorch"
    argv = [suite_python(suite), "-B", "-m", "tests.suites.detections", str(suite), str(tmp_path)]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    metrics, truth, found = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("metrics", "truth", "found")
    )
    assert metrics["map50"] > 0.1, "the detector found nothing"
    for name, value in zip(("map", "map50"), judged(truth, found, "bbox"), strict=True):
        assert abs(metrics[name] - value) < DIGITS, (name, metrics[name], value)
    found[0]["score"], found[-1]["bbox"][0] = 0.0, 0.0
    assert judged(truth, found, "bbox")[0] != metrics["map"], "the control: another prediction"
