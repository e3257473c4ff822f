"""Measure how many samples a suite's reader reads per second of CPU time.

``read_batches.py MODEL SAMPLES FOLDER [KEY=TEXT...]``; the keys are config keys of the suite.

The program writes generated data in the original format into the folder, and reads them with the suite's own
``create_train_data`` in one process. It runs in the PyTorch environment of the suites and prints JSON.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flagperf_driver.driver import Config
from tests.suites import children
from tests.suites.flops import context
from tests.suites.tiny_data import bert_shards, imagenet
from tests.suites.trainers import steps_of

PASSES = 5
"""Measured passes over the data, after a pass that fills the caches."""
PICTURE = (500, 375)
"""The commonest size in ImageNet, in pixels."""
NOISE, QUALITY = 15, 95
"""They give files of ImageNet's mean size, 115 kB: ILSVRC2012_img_train.tar has 148 GB for 1,281,167 pictures."""
SCENE = (640, 480)
"""The commonest size in COCO, in pixels."""
SCENE_NOISE = 11
"""It gives files of COCO's mean size, 163 kB: train2017.zip has 19.3 GB for 118,287 pictures."""
OBJECTS, CORNERS = 7, 24
"""COCO's mean numbers of a picture's objects, and of the corners of an object's mask."""
SHARDS = 2
BATCH = 32
"""Pictures of a batch."""


def write_pictures(folder: Path, samples: int) -> dict[str, Any]:
    """Write ImageNet's folders with pictures of one size."""
    rng = np.random.default_rng(7)
    for number in range(samples):
        wnid, colour = list(imagenet.CLASSES.items())[number % len(imagenet.CLASSES)]
        path = folder / "train" / wnid / f"{wnid}_{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        imagenet.picture(colour, PICTURE, rng, NOISE).save(path, "JPEG", quality=QUALITY)
    return {"num_classes": len(imagenet.CLASSES), "train_batch_size": BATCH}


def write_scenes(folder: Path, samples: int) -> dict[str, Any]:
    """Write COCO's pictures of one size, and their annotations."""
    rng = np.random.default_rng(7)
    pictures, objects = [], []
    (folder / "train2017").mkdir(parents=True)
    for number in range(samples):
        name = f"{number:012d}.jpg"
        imagenet.picture((120, 120, 120), SCENE, rng, SCENE_NOISE).save(folder / "train2017" / name, quality=QUALITY)
        pictures.append({"id": number, "file_name": name, "width": SCENE[0], "height": SCENE[1]})
        objects += [_object(number, rng) for _ in range(OBJECTS)]
    content = {
        "images": pictures,
        "annotations": [{"id": number, **thing} for number, thing in enumerate(objects)],
        "categories": [{"id": 1, "name": "person"}],
    }
    (folder / "annotations").mkdir()
    (folder / "annotations/instances_train2017.json").write_text(json.dumps(content))
    return {"train_batch_size": BATCH}


def _object(picture: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the annotation of an object whose mask is an ellipse."""
    (across, down), radius = rng.uniform(100, 380, 2), rng.uniform(20, 100)
    turns = [2 * math.pi * corner / CORNERS for corner in range(CORNERS)]
    corners = [(across + radius * math.cos(turn), down + radius / 2 * math.sin(turn)) for turn in turns]
    box = [across - radius, down - radius / 2, 2 * radius, radius]
    return {
        "image_id": picture, "category_id": 1, "iscrowd": 0, "bbox": box, "area": math.pi * radius**2 / 2,
        "segmentation": [[value for corner in corners for value in corner]],
    }  # fmt: skip


def write_sequences(folder: Path, samples: int) -> dict[str, Any]:
    """Write BERT's shards."""
    rng = np.random.default_rng(7)
    for shard in range(SHARDS):
        path = folder / bert_shards.TRAIN / f"part_{shard}_of_{SHARDS}.hdf5"
        bert_shards.write_file(path, samples // SHARDS, rng)
    return {}


WRITERS: Mapping[str, Callable[[Path, int], dict[str, Any]]] = {
    "bert": write_sequences,
    "faster_rcnn": write_scenes,
    "mask_rcnn": write_scenes,
}
"""By model, a function that writes so many training samples and returns the config for them; others read ImageNet."""


def measure(model: str, samples: int, folder: Path, **config: str) -> dict[str, float]:
    """Return the median of the passes, and the size of the files."""
    suite = Path(__file__).resolve().parents[1] / "suites" / model / "pytorch"
    children.use_modules_of(suite)
    settings = {**WRITERS.get(model, write_pictures)(folder, samples), "num_workers": 0, **config}
    ctx = context(suite, "reference", "cpu", batch=None)
    ctx = replace(ctx, config=Config({**ctx.config.as_dict(), **settings}), synthetic=False, data_dir=folder)
    steps = steps_of(suite)
    data = steps.create_train_data(ctx)
    speeds, read = [], 0
    for epoch in range(1 + PASSES):
        data.set_epoch(epoch)
        began = time.process_time()  # of all threads
        read = sum(steps.count_samples(ctx, batch) for batch in data)
        speeds.append(read / (time.process_time() - began))
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {"samples": read, "per_cpu_second": statistics.median(speeds[1:]), "bytes_per_sample": size / samples}


def main() -> None:
    model, samples, folder, *config = sys.argv[1:]
    torch.set_num_threads(1)
    print(json.dumps(measure(model, int(samples), Path(folder), **dict(pair.split("=") for pair in config))))


if __name__ == "__main__":
    main()
