"""The rank's device by its name in Paddle: cpu, gpu, xpu, or a plug-in's."""

from __future__ import annotations

import paddle

from flagperf_driver.training.timeline import EventMarks, HostMarks, Marks
from flagperf_driver.training.trainer import DeviceError


def set_device(name: str, local_rank: int) -> None:
    """Make this rank's device the current device."""
    try:
        paddle.set_device(name if name == "cpu" else f"{name}:{local_rank}")
    except (ValueError, RuntimeError, OSError, SystemError) as error:
        raise DeviceError(
            f"device {name!r} (device of [framework.paddle] in vendor.toml) not found by paddle {paddle.__version__}: "
            f"{error}; check the driver and whether this paddle is built for the device"
        ) from error


def is_host() -> bool:
    """Return True if calls return when their work is done, so that the host's clock can measure it."""
    return bool(paddle.get_device() == "cpu")


def name() -> str:
    """Return the device's product name."""
    if is_host():
        return "cpu"
    properties = getattr(paddle.device, "get_device_properties", None)
    return str(getattr(properties(), "name", paddle.get_device())) if properties else str(paddle.get_device())


def check_precision(precision: str) -> None:
    """Raise an error for a precision that Paddle would ignore with a warning."""
    if precision in ("bf16", "fp16") and is_host():
        raise DeviceError(
            f"precision={precision!r}: paddle {paddle.__version__} has no mixed precision on 'cpu'; use fp32"
        )


def allow_tf32(allowed: bool) -> None:
    """Allow or forbid tf32 in matrix products and convolutions, where this build of Paddle has the switches."""
    for switch in ("set_cublas_switch", "set_cudnn_switch"):
        function = getattr(paddle.base.core, switch, None)
        if function is not None:
            function(allowed)


def marks() -> Marks:
    """Return the marks for the device's timeline."""
    return HostMarks() if is_host() else EventMarks(paddle.device.Event)
