"""How fast a rank reads files that are not in the host's memory: in sequence, and at random places as a sampler.

What was read is checked: it is read again in another way.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

import files
import numpy as np
import torch
from common.measuring.answers import Array, Samples

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context

MIB = 1 << 20
_BLOCKS = 8
"""The part of a rank has at least so many of the largest blocks."""


class Storage(Measurement):
    """Reads of a block into a buffer. What Linux has of a file in its cache is dropped before each pass over it.

    Each point has a fixed time, so its figure is the mean: Linux reads ahead, so most reads take almost no time.
    """

    on_host = True

    def __init__(self, ctx: Context) -> None:
        self._ctx, config = ctx, ctx.config
        most = config.read_mib * MIB
        self._extents = (
            files.of_folder(ctx.data_dir, most, ctx.rank, ctx.world_size) if ctx.data_dir else [files.temporary(most)]
        )
        self._random = random.Random(ctx.seed + ctx.rank)
        # The largest files are first: the mean size of a read must not depend on how far a pass comes.
        self._random.shuffle(self._extents)
        least = _BLOCKS * max(*config.sequential_blocks, *config.random_blocks, config.sample_bytes)
        if (size := files.size(self._extents)) < least:
            place = f"--data-dir={ctx.data_dir}" if ctx.data_dir else f"read_mib={config.read_mib}"
            raise ValueError(
                f"{place}: rank {ctx.rank} has {size} bytes to read, expected at least {least}: {_BLOCKS} of the"
                " largest blocks; use more data or smaller blocks"
            )
        self._places: list[tuple[files.Extent, int, int]] = []
        self._next = self._asked = self._reads = 0
        self._before: int | None = None
        self._after: int | None = None

    def points(self) -> Iterator[Point]:
        config = self._ctx.config
        for block in sorted(config.sequential_blocks):
            yield Point(f"sequential {block}", {"order": "sequential", "block": block}, seconds=config.point_least_s)
        for block in sorted({*config.random_blocks, config.sample_bytes}):
            yield Point(f"random {block}", {"order": "random", "block": block}, seconds=config.point_least_s)

    def work(self, point: Point) -> Mapping[str, float]:
        """Return the bytes of a read, which are less in a file that is shorter: ``figures`` counts what was read."""
        return {f"{point.values['order']}_read": float(point.values["block"])}

    def prepare(self, point: Point) -> None:
        block, at_random = point.values["block"], point.values["order"] == "random"
        self._buffer = memoryview(mmap.mmap(-1, block))
        blocks = files.Extent.at_random if at_random else files.Extent.in_sequence
        self._places = [(extent, at, size) for extent in self._extents for at, size in blocks(extent, block)]
        if at_random:
            self._random.shuffle(self._places)
        self._reader = files.Reader(os.POSIX_FADV_RANDOM if at_random else os.POSIX_FADV_SEQUENTIAL)
        self._next = len(self._places)
        self._before, self._asked, self._reads = files.fetched(), 0, 0
        self._samples = Samples(torch.device("cpu"))
        self._bytes = torch.frombuffer(self._buffer, dtype=torch.uint8)

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            if self._next == len(self._places):
                self._next = 0
                self._reader.close()
            extent, at, size = self._places[self._next]
            self._asked += self._reader.read(extent, at, self._buffer[:size])
            self._next += 1
            self._samples.after(self._bytes, size)
        self._reads += iterations

    def check(self, point: Point) -> None:
        def again(read: int, places: Array) -> Array:
            extent, at, _ = self._places[read % len(self._places)]
            return np.fromfile(extent.path, np.uint8, len(places), offset=at + int(places[0]))

        self._after = files.fetched()
        self._samples.check(f"rank {self._ctx.rank}: {point.name}", again)

    def figures(self, point: Point, seconds: float) -> Mapping[str, float]:
        figures = {f"{point.values['order']}_read": self._asked / self._reads / seconds}
        if point.values == {"order": "random", "block": self._ctx.config.sample_bytes}:
            figures["sample_reads"] = 1 / seconds
        share = self._share()
        return figures if share is None else {**figures, "from_storage": share}

    def facts(self) -> Mapping[str, Any]:
        return {
            "folder": "data folder" if self._ctx.data_dir else "temporary folder",
            "files": len(self._extents),
            "bytes": files.size(self._extents),
            "bytes_of_a_read": round(self._asked / self._reads),
        }

    def release(self) -> None:
        self._reader.close()
        self._places = []

    def _share(self) -> float | None:
        """Return the share of the bytes read until ``check`` that came from the storage; None if unknown."""
        if self._after is None or self._before is None:
            return None
        return min(1.0, (self._after - self._before) / self._asked)
