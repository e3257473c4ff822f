"""Checks of the memory's bandwidth and capacity."""

from __future__ import annotations

import functools
import itertools
import json
import math
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import capacity
import checking
import measurement
import torch

from flagperf_driver.measuring.measurement import Point
from flagperf_driver.pytorch import distributed
from tests.suites import bare_loop

WITHIN = 0.05
MIB, GIB = 1 << 20, 1 << 30


def memory(**settings: Any) -> measurement.MainMemory:
    return measurement.MainMemory(checking.context("small", **settings))


def check_each_operation_counts_the_bytes_that_it_reads_and_writes() -> None:
    made = memory()
    moved = {}
    for operation in measurement.OPERATIONS:
        point = Point("", {"operation": operation, "bytes": MIB})
        ((figure, moved[operation]),) = made.work(point).items()
        assert figure == f"{operation}_bandwidth"
    assert moved == {"copy": 2 * MIB, "read": MIB, "write": MIB, "update": 2 * MIB}
    assert made.work(Point("capacity")) == {}


def answer(operation: str, name: str, patch: Callable[..., object] | None = None) -> None:
    """Run a point with a method of tensors, or torch.sum, replaced, and check it."""
    made, point = memory(), Point(operation, {"operation": operation, "bytes": MIB})
    made.prepare(point)
    owner = torch if name == "sum" else torch.Tensor
    with mock.patch.object(owner, name, patch or getattr(owner, name)):
        made.run(300)
    made.check(point)


def check_less_than_the_whole_work_is_found() -> None:
    methods = {"copy": "copy_", "read": "sum", "write": "fill_", "update": "neg_"}
    for operation, name in methods.items():
        original, calls = getattr(torch if name == "sum" else torch.Tensor, name), itertools.count()

        def part(array: torch.Tensor, *values: Any, work: Any = original, **options: Any) -> object:
            quarter = len(array) // 4
            values = tuple(value[:quarter] if isinstance(value, torch.Tensor) else value for value in values)
            return work(array[:quarter], *values, **options)

        def every_16th(*values: Any, work: Any = original, turn: Any = calls, **options: Any) -> object:
            return work(*values, **options) if next(turn) % 16 == 0 else values[0]

        answer(operation, name)
        for patch in (part, every_16th, lambda *_, **__: None):
            checking.raises(RuntimeError, functools.partial(answer, operation, name, patch), "wrong answer", operation)


def check_the_largest_array_is_beyond_the_last_cache() -> None:
    assert measurement.sizes_up_to(GIB, [128 * MIB, MIB], 32 * MIB) == [MIB, 128 * MIB]
    assert measurement.sizes_up_to(4 * GIB, [MIB, 128 * MIB], 100 * MIB) == [MIB, 128 * MIB, 512 * MIB]
    assert measurement.sizes_up_to(64 * MIB, [MIB, 128 * MIB], 32 * MIB) == [MIB], "not more than the memory allows"
    assert measurement.last_cache(torch.device("cpu"), caches({"1": "1024K", "3": "32M"})) == 32 * MIB
    assert measurement.last_cache(torch.device("cpu"), checking.SCRATCH / "no-such-folder") == 0


def check_ranks_of_unequal_hosts_measure_the_same_sizes() -> None:
    def sizes(own: tuple[int, int], other: tuple[int, int]) -> set[int]:
        with (
            mock.patch.object(measurement.MainMemory, "_memory", return_value=own[0]),
            mock.patch.object(measurement, "last_cache", return_value=own[1]),
            mock.patch.object(distributed, "minimum", lambda values, _: [min(*values, other[0])]),
            mock.patch.object(distributed, "maximum", lambda values, _: [max(*values, other[1])]),
        ):
            points = memory(sizes=[MIB, 128 * MIB]).points()
            return {point.values["bytes"] for point in points if point.values}

    usual, full, cached = (99 * GIB, 8 * MIB), (GIB // 2, 8 * MIB), (99 * GIB, 40 * MIB)
    assert sizes(usual, usual) == {MIB, 128 * MIB}
    assert sizes(usual, full) == sizes(full, usual) == {MIB, 32 * MIB}
    assert sizes(usual, cached) == sizes(cached, usual) == {MIB, 128 * MIB, 256 * MIB}


def caches(sizes: dict[str, str]) -> Path:
    for level, size in sizes.items():
        folder = checking.SCRATCH / "caches" / f"index{level}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "size").write_text(f"{size}\n")
    return checking.SCRATCH / "caches"


def check_a_copy_takes_as_long_as_in_a_bare_loop() -> None:
    point = Point("copy", {"operation": "copy", "bytes": 64 * MIB})

    class SameArrays(measurement.MainMemory):
        def prepare(self, point: Point) -> None:  # noqa: ARG002 - other arrays lie differently in caches and pages
            self._arrays = arrays

    arrays = measurement.Arrays(checking.context("small"), "copy", 64 * MIB // 4)

    def bare() -> object:
        return arrays._result.copy_(arrays._sources[0])

    ratio = bare_loop.ratio(SameArrays(checking.context("small")), point, bare, WITHIN)
    assert abs(ratio - 1) <= WITHIN, ratio

    class Slower(SameArrays):
        def run(self, iterations: int) -> None:
            super().run(math.ceil(iterations * 1.25))  # the control

    ratio = bare_loop.ratio(Slower(checking.context("small")), point, bare, WITHIN)
    assert ratio > 1 + WITHIN, ratio


def check_capacity_is_found_in_steps_that_are_halved() -> None:
    left = [1000]

    def allocate(size: int) -> int:
        if size > left[0]:
            raise RuntimeError("CUDA out of memory.")
        left[0] -= size
        return size

    assert capacity.allocated(allocate, 256, 1) == (1000, "memory")
    left[0] = 1000
    assert capacity.allocated(allocate, 256, 8) == (1000 // 8 * 8, "memory"), (
        "what is smaller than the last step is left"
    )
    left[0] = 1000
    checked: list[Any] = []
    assert capacity.allocated(allocate, 256, 1, ceiling=700, check=checked.extend) == (700, "ceiling")
    assert sum(checked) == 700

    left[0] = 1000
    assert capacity.allocated(allocate, 256, 1, most_s=0.0) == (0, "time")
    with mock.patch.object(capacity.time, "monotonic", side_effect=range(9)):
        assert capacity.allocated(allocate, 256, 1, most_s=3.0) == (512, "time")

    def broken(_: int) -> None:
        raise RuntimeError("the device is gone")

    checking.raises(RuntimeError, lambda: capacity.allocated(broken, 256, 1), "the device is gone")


def check_memory_that_is_not_there_is_found() -> None:
    pieces = [torch.empty(100, dtype=torch.uint8) for _ in range(4)]
    measurement._check_memory(pieces)
    checking.raises(RuntimeError, lambda: measurement._check_memory([*pieces, pieces[0]]), "part 1 of 5", "got 4", "0")


def check_the_capacity_of_a_host_is_found_in_another_process_under_a_ceiling_and_under_a_limit() -> None:
    assert capacity.of_host(200 * MIB, 60.0) == (192 * MIB, "ceiling"), "the steps are of at least 16 MiB"
    program = (
        f"import json, resource, sys\nsys.path[:0] = {sys.path!r}\nimport capacity\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({GIB}, {GIB}))\n"
        f"print(json.dumps(capacity.of_host({8 * GIB}, 60.0)))"
    )
    text = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, cwd=checking.SUITE
    ).stdout
    found, ended_by = json.loads(text)
    assert 0.8 * GIB < found < GIB, found
    assert ended_by == "memory"
    assert capacity.of_host(8 * GIB, 0.0) == (0, "time")


def check_the_capacity_is_bound_in_time_and_left_out_of_a_preflight() -> None:
    with mock.patch.object(capacity, "of_host", return_value=(5, "time")) as of_host:
        made = memory(hang_timeout_s=100.0)
        point = list(made.points())[-1]
        made.prepare(point)
    assert of_host.call_args.args[1] == 50.0
    assert made.figures(point, math.nan) == {"capacity": 5.0}
    assert made.facts() == {"ended_by": "time"}
    scales = tomllib.loads((checking.SUITE / "suite.toml").read_text())["scales"]
    assert all("capacity_most=0" in scale["preflight"] for scale in scales.values())
    assert "capacity" not in {point.name for point in memory(capacity_most=0).points()}


def check_the_ceiling_is_the_least_of_free_memory_and_all_control_groups() -> None:
    proc, groups = checking.SCRATCH / "proc", checking.SCRATCH / "cgroup"
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {10 * MIB} kB\n")
    (proc / "self" / "cgroup").write_text("4:cpu:/x\n0::/outer/inner\n")
    inner = groups / "outer" / "inner"
    inner.mkdir(parents=True, exist_ok=True)
    assert capacity.host_ceiling(1, groups, proc) == 8 * GIB
    assert capacity.host_ceiling(4, groups, proc) == 2 * GIB, "each of the ranks gets its part"
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("0\n")
    (groups / "outer" / "memory.max").write_text(f"{7 * GIB}\n")
    (groups / "outer" / "memory.current").write_text(f"{GIB}\n")
    assert capacity.host_ceiling(1, groups, proc) == 4 * GIB
    (proc / "self" / "cgroup").write_text("9:memory:/old\n")
    old = groups / "memory" / "old"
    old.mkdir(parents=True, exist_ok=True)
    (old / "memory.limit_in_bytes").write_text(f"{4 * GIB}\n")
    (old / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    assert capacity.host_ceiling(1, groups, proc) == GIB
