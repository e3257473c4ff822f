"""How fast a rank reads files that are not in the host's memory: in sequence, and at random places as a sampler."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

import files

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context

MIB = 1 << 20
_BLOCKS = 8
"""The part of a rank has at least so many of the largest blocks."""


class Storage(Measurement):
    """Reads of a block into a buffer. Linux's cache of the files is emptied before each pass over them.

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
        least = _BLOCKS * max(*config.sequential_blocks, *config.random_blocks, config.sample_bytes)
        if (size := files.size(self._extents)) < least:
            place = f"--data-dir={ctx.data_dir}" if ctx.data_dir else f"read_mib={config.read_mib}"
            raise ValueError(
                f"{place}: rank {ctx.rank} has {size} bytes to read, expected at least {least}: {_BLOCKS} of the"
                " largest blocks; use more data or smaller blocks"
            )
        self._places: list[tuple[int, int]] = []
        self._next = self._asked = 0
        self._before: int | None = None

    def points(self) -> Iterator[Point]:
        config = self._ctx.config
        for block in sorted(config.sequential_blocks):
            yield Point(f"sequential {block}", {"order": "sequential", "block": block}, seconds=config.point_least_s)
        for block in sorted({*config.random_blocks, config.sample_bytes}):
            yield Point(f"random {block}", {"order": "random", "block": block}, seconds=config.point_least_s)

    def work(self, point: Point) -> Mapping[str, float]:
        return {f"{point.values['order']}_read": float(point.values["block"])}

    def prepare(self, point: Point) -> None:
        block, order = point.values["block"], point.values["order"]
        self._buffer = [mmap.mmap(-1, block)]
        self._places = [place for extent in self._extents for place in extent.blocks(block)]
        if order == "random":
            self._random.shuffle(self._places)
        advice = os.POSIX_FADV_RANDOM if order == "random" else os.POSIX_FADV_SEQUENTIAL
        for extent in self._extents:
            os.posix_fadvise(extent.file, 0, 0, advice)
        self._next = len(self._places)
        self._before, self._asked = files.fetched(), 0

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            if self._next == len(self._places):
                self._next = 0
                for extent in self._extents:
                    extent.drop()
            file, place = self._places[self._next]
            self._asked += os.preadv(file, self._buffer, place)
            self._next += 1

    def figures(self, point: Point, seconds: float) -> Mapping[str, float]:
        figures = dict(super().figures(point, seconds))
        if point.values == {"order": "random", "block": self._ctx.config.sample_bytes}:
            figures["sample_reads"] = 1 / seconds
        share = self._share()
        return figures if share is None else {**figures, "from_storage": share}

    def facts(self) -> Mapping[str, Any]:
        return {
            "folder": "data folder" if self._ctx.data_dir else "temporary folder",
            "bytes": files.size(self._extents),
        }

    def release(self) -> None:
        self._buffer, self._places = [], []

    def _share(self) -> float | None:
        """Return the share of the bytes read since ``prepare`` that came from the storage; None if unknown."""
        now = files.fetched()
        return None if now is None or self._before is None else min(1.0, (now - self._before) / self._asked)
