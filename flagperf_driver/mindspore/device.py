"""The rank's device by its name in MindSpore: CPU or an accelerator; its precision and its clock."""

from __future__ import annotations

import os
from typing import Any, Sequence

import mindspore as ms

from flagperf_driver.training.timeline import HostMarks, Marks
from flagperf_driver.training.trainer import DeviceError

LOWER = {"bf16": ms.bfloat16, "fp16": ms.float16}
"""The data type of automatic mixed precision, by precision."""


def set_device(name: str, local_rank: int) -> None:
    """Make this rank's device the current device; on the CPU, with as many threads as the rank may use."""
    try:
        if name == "CPU":
            # Otherwise graphs run in a second thread, and the wait for it is a busy loop that takes half the core.
            os.environ.setdefault("MS_DEV_JIT_PIPELINE", "0")
            ms.set_device(name)
            ms.device_context.cpu.op_tuning.threads_num(int(os.environ.get("OMP_NUM_THREADS") or 1))
        else:
            ms.set_device(name, local_rank)
    except (ValueError, RuntimeError, TypeError) as error:
        raise DeviceError(
            f"device {name!r} (device of [framework.mindspore] in vendor.toml) not found by mindspore "
            f"{ms.__version__}: {error}; check the driver and whether the device's software is installed"
        ) from error


def is_host() -> bool:
    """Return True on the CPU."""
    return bool(ms.get_context("device_target") == "CPU")


def name() -> str:
    """Return the device's product name."""
    return "cpu" if is_host() else str(ms.hal.get_device_name(ms.get_context("device_id")))


def check_precision(precision: str) -> None:
    """Raise an error for a precision that the CPU's operations do not have."""
    if precision == "bf16" and is_host():
        raise DeviceError(f"precision='bf16': mindspore {ms.__version__} has no bf16 on 'CPU'; use fp32 or fp16")


def synchronize() -> None:
    """Wait for all work of the device."""
    if not is_host():
        ms.runtime.synchronize()


class DeviceMarks:
    """Marks by events in the device's stream."""

    name = "device events"

    def mark(self) -> Any:
        event = ms.runtime.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        marks[-1].synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in zip(marks, marks[1:])]


def marks() -> Marks:
    """Return the marks for the device's timeline."""
    return HostMarks() if is_host() else DeviceMarks()
