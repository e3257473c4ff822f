"""Checks of reading files: who reads what, what came from the storage, and what remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

import checking
import files
import measurement

from flagperf_driver.measuring.measurement import Point

MIB = 1 << 20
SEQUENTIAL, RANDOM = ({"order": order, "block": 1 << 16} for order in ("sequential", "random"))


def storage(data_dir: Path | None, **settings: Any) -> measurement.Storage:
    blocks = {"sequential_blocks": [1 << 16], "random_blocks": [1 << 12], "sample_bytes": 1 << 16, "read_mib": 8}
    return measurement.Storage(replace(checking.context("small", **{**blocks, **settings}), data_dir=data_dir))


def folder(name: str, *sizes: int) -> Path:
    made = checking.SCRATCH / name
    (made / "sub").mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        (made / "sub" / str(number)).write_bytes(os.urandom(size))  # in the cache, and not written yet
    return made


def check_ranks_read_all_bytes_of_the_largest_files_once() -> None:
    data = folder("parts", 1000, 70, 500, 3)
    for most, expected in ((10_000, 1573), (400, 1200)):
        read: dict[tuple[int, int], int] = {}
        for rank in range(3):
            for extent in files.of_folder(data, most, rank, 3):
                for at in range(extent.start, extent.start + extent.size):
                    place = os.fstat(extent.file).st_ino, at
                    read[place] = read.get(place, 0) + 1
                os.close(extent.file)
        assert len(read) == expected
        assert set(read.values()) == {1}


def check_blocks_are_whole_and_aligned_and_a_small_folder_is_refused() -> None:
    assert list(files.Extent(7, 10, 100).blocks(32)) == [(7, 32), (7, 64)]
    checking.raises(ValueError, lambda: storage(folder("small", 1000)), "has 1000 bytes to read", "at least 524288")


def check_the_share_from_the_storage_tells_a_cached_file() -> None:
    if kind(checking.SCRATCH) in ("tmpfs", "overlay", "ramfs"):
        raise unittest.SkipTest(f"the scratch folder is on {kind(checking.SCRATCH)}")
    reader = storage(folder("data", 8 * MIB))
    for values in (SEQUENTIAL, RANDOM):
        assert share(reader, values) > 0.95
    for extent in reader._extents:
        os.pread(extent.file, extent.size, extent.start)
    files.Extent.drop, drop = lambda _: None, files.Extent.drop
    try:
        assert share(reader, SEQUENTIAL) < 0.05, "the control: without dropping the cache"
    finally:
        files.Extent.drop = drop


def share(reader: measurement.Storage, values: dict[str, Any]) -> float:
    point = Point("", values)
    reader.prepare(point)
    reader.run(128)
    figures = reader.figures(point, 0.5)
    assert figures[f"{values['order']}_read"] == 2 * (1 << 16)
    assert figures.get("sample_reads") == (2.0 if values["order"] == "random" else None)
    reader.release()
    return figures["from_storage"]


def kind(path: Path) -> str:
    """Return the type of the file system of a path."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return max((words for words in mounts if path.resolve().is_relative_to(words[1])), key=lambda words: len(words[1]))[
        2
    ]


def check_nothing_remains_of_a_killed_measurement() -> None:
    place = folder("temporary")
    program = (
        "import files, sys, time\n"
        f"extent = files.temporary({MIB}, {str(place)!r})\n"
        "print(extent.size, flush=True)\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=checking.SUITE)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == MIB
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [path.name for path in place.iterdir()] == ["sub"]
    original = os.O_TMPFILE
    os.O_TMPFILE = os.O_DIRECTORY  # a file system without files that have no name
    try:
        extent = files.temporary(MIB, str(place))
    finally:
        os.O_TMPFILE = original
    assert os.fstat(extent.file).st_size == MIB
    assert os.fstat(extent.file).st_nlink == 0
    os.close(extent.file)
