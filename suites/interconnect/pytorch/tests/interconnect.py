"""Checks of the arithmetic, with values computed by hand, and of the results of wrong exchanges."""

from __future__ import annotations

import functools
import math

import bandwidth
import measurement
import torch
from checking import raises

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


def check_a_wrong_result_is_an_error() -> None:
    right = {"all_reduce": [3.0, 3.0], "all_gather": [1.0, 2.0], "all_to_all": [1.0, 2.0], "broadcast": [1.0, 1.0]}
    for operation, values in right.items():
        measurement.check(operation, torch.tensor(values), 0, 2)
        wrong = torch.tensor([*values[:-1], 7.0])
        call = functools.partial(measurement.check, operation, wrong, 1, 2)
        raises(RuntimeError, call, "rank 1: wrong result of", operation)
