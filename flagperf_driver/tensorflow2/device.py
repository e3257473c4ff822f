"""The rank's device, its precision and its clock."""

from __future__ import annotations

import os
import time
from typing import Callable, Sequence

import keras
import tensorflow as tf

from flagperf_driver.training.timeline import HostMarks, Marks
from flagperf_driver.training.trainer import DeviceError

POLICIES = {"fp32": "float32", "tf32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
"""Keras' policy of data types, by precision."""


def set_device(name: str, local_rank: int) -> None:
    """Use this rank's device only, and as many threads as the rank may use."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if name == "CPU":
        tf.config.set_visible_devices([], "GPU")
        return
    found = tf.config.list_physical_devices(name)
    if len(found) <= local_rank:
        raise DeviceError(
            f"device {name!r} (device of [framework.tensorflow2] in vendor.toml): local rank {local_rank} needs number "
            f"{local_rank}, but tensorflow {tf.__version__} finds {len(found)}; check the driver, the visible-devices "
            "variable, and whether this tensorflow is built for the device"
        )
    tf.config.set_visible_devices(found[local_rank], name)


def set_precision(precision: str) -> None:
    """Set the data type of models that are built from now on."""
    keras.config.set_dtype_policy(POLICIES[precision])
    tf.config.experimental.enable_tensor_float_32_execution(precision != "fp32")


def accelerator() -> str | None:
    """Return TensorFlow's name of the rank's device; None on the CPU."""
    devices = [device for device in tf.config.get_visible_devices() if device.device_type != "CPU"]
    return f"{devices[0].device_type}:0" if devices else None


def name() -> str:
    """Return the device's product name."""
    devices = [device for device in tf.config.get_visible_devices() if device.device_type != "CPU"]
    if not devices:
        return "cpu"
    return str(tf.config.experimental.get_device_details(devices[0]).get("device_name", devices[0].name))


def synchronize() -> None:
    """Wait for all work of the device."""
    if accelerator():
        tf.test.experimental.sync_devices()


class WindowMarks:
    """Marks for a device without events: the time of a window is shared out evenly over its steps.

    Only the begin and the end of a window are measured, when the device has done all its work. A step's time includes
    its wait for input.
    """

    name = "host clock, windows"

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait
        self.mark = time.perf_counter

    def seconds(self, marks: Sequence[float]) -> list[float]:
        self._wait()
        steps = max(1, len(marks) // 2)
        return [0.0, (time.perf_counter() - marks[0]) / steps] * (len(marks) // 2)


def marks() -> Marks:
    """Return the marks for the device's timeline."""
    return WindowMarks(synchronize) if accelerator() else HostMarks()
