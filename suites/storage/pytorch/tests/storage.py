"""Checks of reading files: who reads what, what came from the storage, and what remains."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

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
    (data / "link to nothing").symlink_to("nowhere")
    for most, expected in ((10_000, 1573), (400, 1200)):
        read: dict[tuple[str, int], int] = {}
        for rank in range(3):
            for extent in files.of_folder(data, most, rank, 3):
                for at, size in extent.in_sequence(32):
                    for place in range(at, at + size):
                        read[extent.path, place] = read.get((extent.path, place), 0) + 1
        assert len(read) == expected
        assert set(read.values()) == {1}


def check_random_blocks_are_aligned_and_a_short_file_is_one_block() -> None:
    assert files.Extent("", 10, 100).at_random(32) == [(32, 32), (64, 32)]
    assert files.Extent("", 10, 100).at_random(64) == [(10, 64)]
    assert files.Extent("", 0, 100).at_random(512) == [(0, 100)]


def check_a_folder_of_more_short_files_than_a_process_may_open() -> None:
    kept, size = 40, 5000
    data = folder("short", *[size] * 1500)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    files.KEPT_OPEN, usual = kept, files.KEPT_OPEN
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + kept + 20, before[1]))
    try:
        reader = storage(data, sequential_blocks=[4096, 1 << 16])
        for point, read in zip(reader.points(), (size / 2, size, 4096, size), strict=True):
            reader.prepare(point)
            reader.run(3000)
            reader.check(point)
            figures = reader.figures(point, 0.5)
            assert figures[f"{point.values['order']}_read"] == read / 0.5, (point, figures)
            assert reader.facts()["bytes_of_a_read"] == read
            assert reader.facts()["files"] == 1500
            reader.release()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        files.KEPT_OPEN = usual
    (data / "sub" / "7").write_bytes(b"")
    reader.prepare(point)
    checking.raises(OSError, lambda: reader.run(1500), "/sub/7 ends before byte 0: expected a file that nobody changes")
    reader.release()


def check_a_read_of_less_is_found() -> None:
    reader, read, calls = storage(folder("less", 8 * MIB)), os.preadv, itertools.count()
    point = Point("sequential 65536", SEQUENTIAL)

    def quarter(file: int, buffers: list[memoryview], at: int) -> int:
        return 4 * read(file, [buffers[0][: len(buffers[0]) // 4]], at)

    def every_16th(file: int, buffers: list[memoryview], at: int) -> int:
        return read(file, buffers, at) if next(calls) % 16 == 0 else len(buffers[0])

    for patch in (quarter, every_16th, lambda _, buffers, __: len(buffers[0])):
        reader.prepare(point)
        with mock.patch.object(os, "preadv", patch):
            reader.run(200)
        checking.raises(RuntimeError, lambda: reader.check(point), "rank 0: sequential 65536: wrong answer")
        reader.release()


def check_a_small_folder_is_refused() -> None:
    checking.raises(ValueError, lambda: storage(folder("small", 1000)), "has 1000 bytes to read", "at least 524288")


def check_the_share_from_the_storage_tells_a_cached_file() -> None:
    if kind(checking.SCRATCH) in ("tmpfs", "overlay", "ramfs"):
        raise unittest.SkipTest(f"the scratch folder is on {kind(checking.SCRATCH)}")
    for reader in (storage(folder("data", 8 * MIB)), storage(folder("short data", *[5000] * 1000))):
        for values in (SEQUENTIAL, RANDOM):
            assert share(reader, values) > 0.95
        for extent in reader._extents:
            Path(extent.path).read_bytes()
        files.Reader.drop, drop = staticmethod(lambda *_: None), files.Reader.drop
        try:
            assert share(reader, SEQUENTIAL) < 0.05, "the control: without dropping the cache"
        finally:
            files.Reader.drop = staticmethod(drop)


def share(reader: measurement.Storage, values: dict[str, Any]) -> float:
    point = Point("", values)
    reader.prepare(point)
    reader.run(128)
    reader.check(point)
    figures = reader.figures(point, 0.5)
    assert figures[f"{values['order']}_read"] == 2 * reader._asked / 128
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
    found = Path(extent.path).stat()
    assert (found.st_size, found.st_nlink) == (MIB, 0)
    reader = files.Reader(os.POSIX_FADV_SEQUENTIAL)
    assert reader.read(extent, 1000, memoryview(bytearray(100))) == 100
    reader.close()
