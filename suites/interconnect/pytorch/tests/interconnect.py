"""Checks of the arithmetic, with values computed by hand, and of the answers of two ranks."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import bandwidth
import checking
import measurement

_MEETINGS = itertools.count()
S, MS = 67_108_864, 1e-3


def close(got: float, expected: float) -> bool:
    return math.isclose(got, expected, abs_tol=0.0005)


def check_bandwidths_of_recorded_times() -> None:
    """By hand: 67,108,864 B / 35.7474 ms = 1.877 GB/s, times 2 x 1/2; / 166.4169 ms = 0.403 GB/s, times 2 x 3/4; ..."""
    for operation, ranks, time, algorithm, bus in (
        ("all_reduce", 2, 35.7474, 1.877, 1.877),
        ("all_reduce", 4, 166.4169, 0.403, 0.605),
        ("all_gather", 4, 235.917, 0.284, 0.213),
        ("reduce_scatter", 4, 235.917, 0.284, 0.213),
        ("all_to_all", 4, 235.917, 0.284, 0.213),
        ("broadcast", 4, 235.917, 0.284, 0.284),
    ):
        assert close(S / (time * MS) / 1e9, algorithm)
        assert close(bandwidth.bus_bytes(operation, S, ranks) / (time * MS) / 1e9, bus), operation


def check_flagperf_doubles_its_figures_within_a_host_alone() -> None:
    """Its published 467.87 GB/s of eight A100 are 4 GiB in 32.13 ms: a bus bandwidth of 233.94 GB/s."""
    algorithm = 4 * 2**30 / (32.13 * MS) / 1e9
    figures = bandwidth.flagperf_all_reduce(algorithm, 8, 8)
    assert figures.keys() == {"MPI_intraserver"}
    assert abs(figures["MPI_intraserver"] - 467.87) < 0.1
    assert abs(bandwidth.bus_bytes("all_reduce", algorithm, 8) - 233.94) < 0.05
    # Across hosts: 1.877 x 2 x 7/8 for eight ranks on each of two hosts, where the bus bandwidth is 1.877 x 2 x 15/16.
    assert close(bandwidth.flagperf_all_reduce(1.877, 16, 8)["MPI_interserver"], 3.285)
    assert close(bandwidth.bus_bytes("all_reduce", 1.877, 16), 3.519)
    assert bandwidth.flagperf_all_reduce(1.877, 2, 1) == {}
    assert close(bandwidth.flagperf_all_reduce(1.877, 2, 2)["MPI_intraserver"], 3.754)


def check_flagperf_measures_two_pairs() -> None:
    assert bandwidth.flagperf_pair(10.0, 0, 1, 8) == {"P2P_intraserver": 20.0}
    assert bandwidth.flagperf_pair(10.0, 0, 8, 8) == {"P2P_interserver": 10.0}
    assert bandwidth.flagperf_pair(10.0, 0, 1, 1) == {"P2P_interserver": 10.0}
    assert bandwidth.flagperf_pair(10.0, 1, 0, 8) == {}


def answers(patch: str) -> str:
    """Run all points on two ranks, with code that replaces functions of torch.distributed; return rank 1's error."""
    program = f"""
import datetime, itertools, os, sys
rank = int(sys.argv[1])
from dataclasses import replace
import checking
from torch import distributed as dist
import measurement
store = dist.FileStore({str(checking.SCRATCH / "meeting")!r} + sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
ctx = checking.context("small", sizes=[1024, 65536], pair_bytes=4096, rank=rank, world_size=2)
made, calls = measurement.Interconnect(replace(ctx, local_world_size=2)), itertools.count()
points = list(made.points())
{patch}
for point in points:
    made.prepare(point)
    made.run(150)
    try:
        made.check(point)
    except RuntimeError as error:
        print(error, flush=True)
os._exit(0)
"""
    begin = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from tests.suites import checking
sys.modules["checking"] = checking
checking.SUITE, checking.SCRATCH = Path({str(checking.SUITE)!r}), Path({str(checking.SCRATCH)!r})
"""
    name = str(next(_MEETINGS))
    ranks = [
        subprocess.Popen([sys.executable, "-c", begin + program, str(rank), name], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return outputs[1]


def check_data_that_do_not_arrive_are_found() -> None:
    """A collective of every 16th time or of a quarter, messages of a quarter."""
    assert answers("") == ""
    names = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")
    for work in (
        "next(calls) % 16 or real(*given)",
        "real(*(a[: len(a) // 4] if hasattr(a, 'view') else a for a in given))",
    ):
        found = answers(
            f"for name in {names!r}:\n"
            "    def patched(*given, real=getattr(dist, name), calls=itertools.count()):\n"
            f"        return {work}\n"
            "    setattr(dist, name, patched)"
        )
        for operation in measurement.OPERATIONS:
            for size in (1024, 65536):
                assert f"rank 1: {operation} {size}: wrong answer of iteration" in found, (operation, size, found)
    found = answers(
        "send, recv = dist.send, dist.recv\n"
        "dist.send = lambda data, to: send(data[: max(1, len(data) // 4)], to)\n"
        "dist.recv = lambda data, source: recv(data[: max(1, len(data) // 4)], source)"
    )
    assert "rank 1: pair 0->1: wrong answer" in found
    assert "rank 1: pair_latency 0->1: wrong answer" in found
