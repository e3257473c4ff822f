"""Compare the readers of labelled pictures: the rate from JPEG files to batches on the device, and the decoded pixels.

    PYTHONPATH=.:suites TORCH_PYTHON benchmarks/readers.py                             # on a GPU
    PYTHONPATH=.:suites TORCH_PYTHON benchmarks/readers.py --pictures 64 --batch 16    # on a CPU

The pictures have ImageNet's usual size and lie in the cache of the file system. Each reader reads an epoch before the
measured one. The pixels of the validation pictures are compared with Pillow's, in steps of 255.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.images import sources, steps
from common.images.folders import ImagesError
from PIL import Image

from flagperf_driver import options
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context

CLASSES = 8
DISTINCT = 64
SIZE = (500, 375)
"""The usual width and height of ImageNet's pictures."""


def write_pictures(folder: Path, count: int) -> None:
    """Write JPEG files in ImageNet's layout; only some differ, so that writing is quick."""
    rng = np.random.default_rng(1)
    files = []
    for _ in range(min(count, DISTINCT)):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
            SIZE, Image.Resampling.BICUBIC
        )
        noisy = np.clip(np.asarray(coarse, np.int16) + rng.integers(-20, 21, (SIZE[1], SIZE[0], 3)), 0, 255)
        file = io.BytesIO()
        Image.fromarray(noisy.astype(np.uint8)).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    for part in ("train", "val"):
        for number in range(count):
            path = folder / part / f"class{number % CLASSES}" / f"{number}.jpeg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[number % len(files)])


def context(folder: Path, reader: str, batch: int, workers: int) -> Context:
    """Return the context of a rank that reads the pictures."""
    values = {
        **options.values("pytorch"), "dataset": "imagenet", "image_size": 224, "resize_size": 256,
        "num_classes": CLASSES, "reader": reader, "train_batch_size": batch, "eval_batch_size": batch,
        "num_workers": workers, "channels_last": True,
    }  # fmt: skip
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    return Context(config=Config(values), device=device, seed=1, data_dir=folder)


def rate(ctx: Context) -> float:
    """Return the pictures per second of the second epoch."""
    loader: Any = steps.create_train_data(ctx)
    for epoch in range(2):
        loader.set_epoch(epoch)
        count, began = 0, time.perf_counter()
        for batch in loader:
            pixels = steps.prepare_batch(ctx, batch).pixels
            count += len(pixels)
        float(pixels[-1, -1, -1, -1])  # waits for the device
    return count / (time.perf_counter() - began)


def pixels_of(ctx: Context) -> torch.Tensor:
    """Return the pixels of the first validation batch, from 0 to 255."""
    pixels = steps.prepare_batch(ctx, next(iter(steps.create_eval_data(ctx)))).pixels.float().cpu()
    deviation, mean = (
        torch.tensor(sources.OPTIONAL[name])[:, None, None] for name in ("pixel_deviation", "pixel_mean")
    )
    return (pixels * deviation + mean) * 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pictures", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pictures(folder, arguments.pictures)
        expected = pixels_of(context(folder, sources.READERS[0], arguments.batch, 0))
        for reader in sources.READERS:
            try:
                ctx = context(folder, reader, arguments.batch, arguments.workers)
                difference = float((pixels_of(ctx) - expected).abs().mean())
                print(f"{reader} {rate(ctx):.0f} images/s, pixels differ by {difference:.3f}", flush=True)
            except ImagesError as error:
                print(f"{reader}: not measured: {error}", flush=True)


if __name__ == "__main__":
    main()
