"""Measure the reader of MLPerf's data of FLUX.1: samples per second of one core, and the time to open many files.

    PYTHONPATH=.:suites:suites/flux1/pytorch PYTHON benchmarks/encoded_pictures.py

PYTHON has PyTorch and numpy. The samples have the sizes of MLPerf's, 2.16 MB each, and are in the cache of the file
system; the many files are links to one. The times are those of the processor, not of the clock.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arrow_folder import ArrowFolder
from common.shares import Draw
from pictures import EncodedPictures, Samples

from flagperf_driver import options
from flagperf_driver.driver import Config
from tests.suites.tiny_data import arrow_folders as tiny

SUITE = Path(__file__).parents[1] / "suites/flux1/pytorch"
BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--files", type=int, default=4800, help="about as many as MLPerf's training set has")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config: Any = Config(options.values("pytorch", SUITE / "config/_base.py"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, config, arguments.samples)
        album = EncodedPictures(folder / tiny.TRAIN, folder / tiny.EMPTY, config)
        samples, rng = Samples(album, config, seed=1), np.random.default_rng(1)
        draws = [Draw(0, rng.integers(0, len(album), BATCH)) for _ in range(arguments.batches)]
        for what, read in (
            ("read", lambda draw: [album[int(number)] for number in draw.indices]),
            ("read, noised and joined", lambda draw: samples[draw]),
        ):
            read(draws[0])
            began = time.process_time()
            for draw in draws:
                read(draw)
            rate = BATCH * arguments.batches / (time.process_time() - began)
            print(f"{what}: {rate:.0f} samples/s of one core, {rate * 2.165e-3:.2f} GB/s")
        many = links(folder, arguments.files)
        began = time.process_time()
        count = len(ArrowFolder(many, list(tiny.COLUMNS)))
        print(f"{arguments.files} files, {count} samples: opened in {time.process_time() - began:.2f} s of one core")


def write(folder: Path, config: Any, count: int) -> None:
    """Write a folder with equal samples of the real sizes, and the encodings of an empty text."""
    rng = np.random.default_rng(1)
    shapes = {
        "t5_encodings": (config.text_tokens, config.text_size), "clip_encodings": (config.pooled_size,),
        **dict.fromkeys(("mean", "logvar"), (config.latent_channels, config.latent_side, config.latent_side)),
    }  # fmt: skip
    values = {name: tiny.saved(rng.standard_normal(shape, np.float32)) for name, shape in shapes.items()}
    rows = [{"__key__": f"{number:09d}", **values, "timestep": None} for number in range(count)]
    tiny.write_folder(folder / tiny.TRAIN, rows, count // 2)
    (folder / tiny.EMPTY).mkdir()
    for name, file in (("t5_encodings", "t5_empty.npy"), ("clip_encodings", "clip_empty.npy")):
        np.save(folder / tiny.EMPTY / file, np.zeros((1, *shapes[name]), np.float16))


def links(folder: Path, count: int) -> Path:
    """Return a folder of many files, which are links to one."""
    many = folder / "many"
    many.mkdir()
    names = [f"data-{number:05d}-of-{count:05d}.arrow" for number in range(count)]
    first = next((folder / tiny.TRAIN).glob("*.arrow"))
    for name in names:
        (many / name).symlink_to(first)
    (many / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return many


if __name__ == "__main__":
    main()
