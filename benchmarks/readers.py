"""The speed of the suites' readers: how many cores a card needs for its input (``read_batches.py``)."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_flagperf.catalog import Catalog

from . import whole_run
from .section import REPO, Section, table, timed

PICTURES, SEQUENCES = 192, 8192
"""The number of generated samples."""
READERS = [
    ("resnet50", PICTURES, []),
    ("resnet50", PICTURES, ["reader=torchvision"]),
    ("vit", PICTURES, []),
    ("efficientnet", PICTURES, []),
    ("swin_transformer", PICTURES, []),
    ("bigtransfer", PICTURES, []),
    ("faster_rcnn", PICTURES, []),
    ("mask_rcnn", PICTURES, []),
    ("bert", SEQUENCES, []),
]
"""Models with different readers, and config keys."""


def read(python: str, model: str, samples: int, config: Sequence[str] = ()) -> dict[str, float]:
    """Measure one reader in the PyTorch environment of the suites."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        environment = {
            **os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache),
        }  # fmt: skip
        command = [python, "-m", "benchmarks.read_batches", model, str(samples), str(Path(folder) / "data"), *config]
        measured: dict[str, float] = json.loads(timed(command, environment=environment).stdout.splitlines()[-1])
    return measured


def measure() -> Section:
    """Measure the readers one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        python = whole_run.python_of(whole_run.first_round(Path(folder)))
    catalog = Catalog.scan([REPO])
    rows = []
    for model, samples, config in READERS:
        unit, measured = catalog.suite(model, "pytorch").sample_unit, read(python, model, samples, config)
        size = f"{measured['bytes_per_sample'] / 1000:.1f} kB"
        rows.append((" ".join([model, *config]), size, f"{measured['per_cpu_second']:,.0f} {unit}/s"))
    head = ("suite", "size of a sample in its files", "read per second of one core")
    return Section([table(head, rows), f"Measured on {time.strftime('%Y-%m-%d')}."], [])
