"""The possible range of each sampled quantity and each logged figure: one table, used where a value enters.

A reading outside its range is dropped, counted and reported; a logged figure outside its range fails the round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Mapping

from flagperf_driver import events
from flagperf_driver.logged_step import STEP_FIGURES

POWER_FACTOR = 2.0
"""A board may draw this many times its power limit for the length of one reading."""


@dataclass(frozen=True)
class Range:
    """From ``low`` to ``high``, both included."""

    low: float
    high: float
    unit: str = ""

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


_BYTES = Range(0, 1e13, "B/s")
HOST = {
    "cpu": Range(0, 1),
    "memory": Range(0, 1),
    "net_rx": _BYTES,
    "net_tx": _BYTES,
    "rdma_rx": _BYTES,
    "rdma_tx": _BYTES,
    "disk_read": _BYTES,
    "disk_write": _BYTES,
    "power": Range(0, 200_000, "W"),
    "energy": Range(0, 1e12, "J"),
}
"""The ranges by column of host.series.csv; ``cpu`` and ``memory`` are shares of the host."""
LOAD = dict.fromkeys(("waited", "others", "stolen"), Range(0, math.inf, "s"))
"""The ranges by column of load.series.csv."""
DEVICE = {
    "temperature": Range(-50, 150, "C"),
    "power": Range(0, 10_000, "W"),
    "memory_used": Range(0, 16 * 2**20, "MiB"),
    "memory_total": Range(0, 16 * 2**20, "MiB"),
    "utilization": Range(0, 100, "%"),
    "sm_clock": Range(0, 10_000, "MHz"),
    "memory_clock": Range(0, 50_000, "MHz"),
    "energy": Range(0, 1e12, "J"),
}
"""The ranges by column of devices.series.csv."""
ANY_NUMBER = Range(-1e300, 1e300)
"""The range of an unknown column."""


def of_device(power_limit: float | None) -> Mapping[str, Range]:
    """The ranges of one device; the power range depends on the board's power limit (W), if known."""
    if power_limit is None or not power_limit > 0:
        return DEVICE
    power = DEVICE["power"]
    return {**DEVICE, "power": Range(power.low, min(power.high, POWER_FACTOR * power_limit), power.unit)}


# -- readings ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DroppedReadings:
    """Readings of one quantity that were outside its range; ``device`` is None for the host's own."""

    device: int | None
    name: str
    times: int
    first: float
    allowed: Range


class DropCounter:
    """Count the readings of a host that are outside their ranges."""

    def __init__(self) -> None:
        self._dropped: dict[tuple[int | None, str], DroppedReadings] = {}

    def drop(self, device: int | None, name: str, value: float, allowed: Range) -> None:
        before = self._dropped.get((device, name), DroppedReadings(device, name, 0, value, allowed))
        self._dropped[device, name] = DroppedReadings(device, name, before.times + 1, before.first, before.allowed)

    def dropped(self) -> tuple[DroppedReadings, ...]:
        return tuple(self._dropped.values())


# -- logged figures ------------------------------------------------------------------------------------------

NOT_NEGATIVE = Range(0, math.inf)
_SECONDS = Range(0, math.inf, "s")
_BYTES_HELD = Range(0, math.inf, "bytes")
_WHERE = {"step": NOT_NEGATIVE, "samples": NOT_NEGATIVE}
_EVALUATION = {**_WHERE, "time": _SECONDS}
_STEP_FIGURES = {name: Range(one.low, one.high, one.unit) for name, one in STEP_FIGURES.items()}
LOGGED: Mapping[str, Mapping[str, Range]] = {
    events.STEP_END: {
        **_WHERE,
        "epoch": NOT_NEGATIVE,
        "learning_rate": NOT_NEGATIVE,
        "step_time": _SECONDS,
        "throughput": NOT_NEGATIVE,
        "input_wait": _SECONDS,
        **_STEP_FIGURES,
    },
    events.INIT_EVALUATION: _EVALUATION,
    events.EVALUATE: _EVALUATION,
    events.CHECKPOINT: {"step": NOT_NEGATIVE, **dict.fromkeys(("pause", "write_time"), _SECONDS), "bytes": _BYTES_HELD},
    events.FINISHED: {
        **dict.fromkeys(
            ("e2e_time", "init_time", "raw_train_time", "train_no_eval_time", "pure_training_computing_time"), _SECONDS
        ),
        **dict.fromkeys(("eval_time", "compile_time", "forward_time", "input_wait_time"), _SECONDS),
        **dict.fromkeys(("save_pause", "save_write_time"), _SECONDS),
        **dict.fromkeys((f"step_time.{name}" for name in ("mean", "p50", "p90", "p99")), _SECONDS),
        **dict.fromkeys(("p_whole", "p_train", "p_core"), NOT_NEGATIVE),
        **dict.fromkeys(("steps", "samples", "epochs"), NOT_NEGATIVE),
        **dict.fromkeys(("measured_steps", "measured_samples", "warmup_steps"), NOT_NEGATIVE),
        "peak_memory_bytes": _BYTES_HELD,
        **dict.fromkeys(("padding_share", "token_share"), Range(0, 1, "share")),
        **_STEP_FIGURES,
    },
}
"""The ranges by record and field; the suite sets those of loss and metric. Other verdicts judge missing values."""
