"""The unit and the better direction of every figure that a round may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

RATE = "samples/s"
"""The unit of throughputs; a suite's sample_unit, such as images, replaces ``samples``."""


class FigureKind(NamedTuple):
    """The unit of a figure, and ``higher``, ``lower`` or None for its better direction."""

    unit: str
    direction: str | None


_SECONDS = FigureKind("s", "lower")
_THROUGHPUT = FigureKind(RATE, "higher")
FIGURES: Mapping[str, FigureKind] = {
    "p_whole": _THROUGHPUT,
    "p_train": _THROUGHPUT,
    "p_core": _THROUGHPUT,
    "mfu": FigureKind("share", "higher"),
    "e2e_time": _SECONDS,
    "init_time": _SECONDS,
    "raw_train_time": _SECONDS,
    "train_no_eval_time": _SECONDS,
    "pure_training_computing_time": _SECONDS,
    "eval_time": _SECONDS,
    "compile_time": _SECONDS,
    "time_to_target": _SECONDS,
    "samples_to_target": FigureKind("samples", "lower"),
    "step_time_mean": _SECONDS,
    "step_time_p50": _SECONDS,
    "step_time_p90": _SECONDS,
    "step_time_p99": _SECONDS,
    "input_wait_share": FigureKind("share", "lower"),
    "peak_memory": FigureKind("bytes", "lower"),
    "final_loss": FigureKind("", "lower"),
    "vendor_factor": FigureKind("x", None),
    "straggler_spread": FigureKind("x", "lower"),
    "device_power": FigureKind("W", "lower"),
    "device_power_highest": FigureKind("W", "lower"),
    "device_temperature": FigureKind("C", "lower"),
    "device_temperature_highest": FigureKind("C", "lower"),
    "device_utilization": FigureKind("share", None),
    "device_memory": FigureKind("bytes", "lower"),
    "device_memory_mean": FigureKind("bytes", "lower"),
    "device_memory_total": FigureKind("bytes", None),
    "device_sm_clock": FigureKind("MHz", None),
    "device_memory_clock": FigureKind("MHz", None),
    "device_throttled": FigureKind("share", "lower"),
    "device_energy": FigureKind("J", "lower"),
    "device_energy_covered": FigureKind("share", "higher"),
    "device_energy_per_sample": FigureKind("J/sample", "lower"),
    "host_cpu": FigureKind("share", None),
    "host_memory": FigureKind("share", "lower"),
    "host_power": FigureKind("W", "lower"),
    "host_energy": FigureKind("J", "lower"),
    "host_energy_covered": FigureKind("share", "higher"),
    "host_energy_per_sample": FigureKind("J/sample", "lower"),
    "monitor_gaps": _SECONDS,
    "core_wait": FigureKind("share", "lower"),
    "other_cores": FigureKind("cores", "lower"),
    "core_stolen": FigureKind("share", "lower"),
}
"""By name. A test compares this table with the figures of measured rounds."""
