"""Measure the reader of Megatron's data: tokens per second of one core, and the time to arrange the samples.

    PYTHONPATH=.:suites PYTHON benchmarks/tokens.py
    PYTHONPATH=.:suites PYTHON benchmarks/tokens.py --documents 45000000    # about as many as MLPerf trains on

PYTHON has numpy. The documents have about as many tokens as those of C4. The file of tokens has no content, so it needs
no space; its pages are read into the cache of the file system at first use, as those of any file are.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from common.language.megatron import Documents, Samples
from common.language.tokens import OrderedTrainShare, SplitRows

from tests.suites.tiny_data import megatron

LENGTH, VOCAB_SIZE, BATCH = 8192, 128256, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        prefix = Path(name, "text_document")
        with ProcessPoolExecutor(1) as other:  # whose memory is not counted here
            other.submit(write, prefix, arguments.documents).result()
        before, began = memory(), time.perf_counter()
        samples = Samples(Documents(Path(f"{prefix}.bin")), LENGTH, VOCAB_SIZE, seed=1)
        took = time.perf_counter() - began
        print(f"{arguments.documents} documents, {len(samples)} samples: arranged in {took:.2f} s of one core")
        print(f"peak memory rose by {(memory() - before) / 1e9:.2f} GB, pages of the index included")
        source, share = SplitRows(samples), OrderedTrainShare(len(samples), BATCH, 0, 1, seed=1)
        for turn in ("first pass", "second pass"):
            began, count = time.perf_counter(), 0
            for draw, _ in zip(share, range(arguments.batches), strict=False):
                count += source[draw].inputs.size
            print(f"{turn}: {count / (time.perf_counter() - began) / 1e6:.1f} million tokens/s of one core")


def write(prefix: Path, count: int) -> None:
    """Write the index of documents of 50 to 899 tokens, and a file of their size."""
    sizes = np.random.default_rng(1).integers(50, 900, count)
    megatron.write_index(prefix, sizes)
    with Path(f"{prefix}.bin").open("wb") as file:
        file.truncate(int(sizes.sum()) * 4)


def memory() -> float:
    """Return the largest memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
