"""Functions on a device by its torch type: they use ``torch.<type>``, and handle types with missing functions.

``hooks.py`` lists the functions that a vendor may replace.
"""

from __future__ import annotations

import functools
import random
import sys
import warnings
from typing import Any, ContextManager

import torch

from flagperf_driver.training.batches import converted
from flagperf_driver.training.timeline import EventMarks, HostMarks, Marks
from flagperf_driver.training.trainer import DeviceError


def backend(device: torch.device) -> Any:
    """Return ``torch.<type>``; None if torch has no such module."""
    return getattr(torch, device.type, None)


def is_host(device: torch.device) -> bool:
    """Return True if calls return when their work is done, so that the host's clock can measure it."""
    return bool(device.type == "cpu")


def required(device: torch.device, name: str, hook: str) -> Any:
    """Return ``torch.<type>.<name>``; raise an error that names the vendor's hook if it does not exist."""
    attribute = getattr(backend(device), name, None)
    if attribute is None:
        raise DeviceError(
            f"torch.{device.type} has no {name}; define {hook!r} in the vendor's device.py (docs/vendors.md)"
        )
    return attribute


# -- the rank's device -------------------------------------------------------------------------------------


def set_device(name: str, local_rank: int, local_world_size: int) -> torch.device:
    """Make this rank's device the current device and return it."""
    if name == "cpu":
        return torch.device("cpu")
    count = _count(name)
    if count != 1 and count < local_world_size:
        raise DeviceError(
            f"{local_world_size} ranks of this host need one {name!r} device each, but torch finds {count}; "
            "use a smaller shape or check the vendor's visible-devices variable"
        )
    # A launcher may make only one device visible to each rank.
    device = torch.device(name, 0 if count == 1 else local_rank)
    required(device, "set_device", "set_device")(device)
    return device


def _count(name: str) -> int:
    module = getattr(torch, name, None)
    build = f"torch {torch.__version__} in {sys.executable}"
    if module is None or not hasattr(module, "is_available"):
        raise DeviceError(
            f"device {name!r}: {build} has no torch.{name}; add the module that provides it to modules of "
            "[framework.pytorch] in vendor.toml, or use a torch that is built for this device"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = module.is_available()
    if not found:
        reasons = "".join(f": {str(warning.message).partition(' (Triggered')[0]}" for warning in caught[:1])
        raise DeviceError(
            f"device {name!r} not found by {build}{reasons}; check the driver, the visible-devices variable, "
            "and whether this torch is built for this device"
        )
    return int(module.device_count())


def synchronize(device: torch.device) -> None:
    """Wait for all work of the device."""
    if not is_host(device):
        required(device, "synchronize", "synchronize")()


def copy_stream(device: torch.device) -> Any:
    """Return a stream that copies batches in parallel to the steps; None if the device has no streams."""
    kind = None if is_host(device) else getattr(backend(device), "Stream", None)
    return None if kind is None else kind()


def name(device: torch.device) -> str:
    """Return the device's product name."""
    get_name = None if is_host(device) else getattr(backend(device), "get_device_name", None)
    return device.type if get_name is None else str(get_name())


def libraries(device: torch.device) -> dict[str, str]:
    """Return the versions of torch and of the libraries that it was built for."""
    versions: dict[str, str] = {"torch": torch.__version__}
    if torch.version.cuda and device.type == "cuda":
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = str(torch.backends.cudnn.version())
    return versions


def memory(device: torch.device) -> int | None:
    """Return the peak memory of tensors in bytes; None if the device does not count it."""
    get_peak = None if is_host(device) else getattr(backend(device), "max_memory_allocated", None)
    return None if get_peak is None else int(get_peak())


@functools.lru_cache(maxsize=None)
def pins(device: torch.device) -> bool:
    """Return True if host memory can be pinned for the device, so that copies are asynchronous."""
    if is_host(device):
        return False
    try:
        return bool(torch.empty(1).pin_memory().is_pinned())
    except (RuntimeError, AssertionError):
        return False


def events(device: torch.device) -> Marks:
    """Return the marks for the device's timeline."""
    return HostMarks() if is_host(device) else EventMarks(required(device, "Event", "events"))


# -- random numbers ----------------------------------------------------------------------------------------


def seed_host(value: int) -> None:
    """Seed Python, torch with all devices that it knows, and numpy if it is imported."""
    torch.manual_seed(value)
    random.seed(value)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(value)


def seed(device: torch.device, value: int) -> None:
    """Do nothing: ``torch.manual_seed`` has seeded the devices that torch knows."""


def random_state(device: torch.device) -> torch.Tensor | None:
    """Return the state of the device's random generator; None if torch cannot read it."""
    get_state = None if is_host(device) else getattr(backend(device), "get_rng_state", None)
    return None if get_state is None else get_state()


# -- precision ---------------------------------------------------------------------------------------------


def settings(device: torch.device, config: Any) -> None:
    """Disable tf32 for precision fp32; other precisions use it where autocast keeps fp32. Configure cuDNN."""
    lower = config.precision != "fp32"
    torch.set_float32_matmul_precision("high" if lower and not is_host(device) else "highest")
    torch.backends.cudnn.allow_tf32 = lower
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    torch.backends.cudnn.deterministic = config.cudnn_deterministic


AUTOCAST_TYPES = {"fp16": torch.float16, **dict.fromkeys(("bf16", "float8", "mxfp8", "nvfp4"), torch.bfloat16)}
"""The data type of autocast, by precision; the last three are of products that a suite computes itself."""


def autocast(device: torch.device, dtype: torch.dtype) -> ContextManager[Any]:
    """Return the context of forward passes; every step enters it."""
    try:
        context: Any = torch.autocast(device.type, dtype=dtype)
    except RuntimeError as error:
        raise _no_autocast(device, dtype, str(error)) from error
    # Torch only warns and computes in fp32.
    if not context._enabled:
        raise _no_autocast(device, dtype, "torch would compute in fp32")
    entered: ContextManager[Any] = context
    return entered


def _no_autocast(device: torch.device, dtype: torch.dtype, reason: str) -> DeviceError:
    requested = next(precision for precision, lower_type in AUTOCAST_TYPES.items() if lower_type is dtype)
    return DeviceError(
        f"precision={requested!r}: torch {torch.__version__} cannot autocast to {dtype} on {device.type!r} ({reason}); "
        "use another precision, or define 'autocast' in the vendor's device.py"
    )


def grad_scaler(device: torch.device) -> Any:
    """Return the loss scaler for fp16."""
    general = getattr(torch.amp, "GradScaler", None)  # torch 2.3
    scaler = required(device, "amp", "grad_scaler").GradScaler() if general is None else general(device.type)
    # Torch only warns and does not scale the loss.
    if not scaler.is_enabled():
        raise DeviceError(
            f"precision='fp16': torch {torch.__version__} has no loss scaler for {device.type!r}; use bf16 or fp32, "
            "or define 'grad_scaler' in the vendor's device.py"
        )
    return scaler


# -- batches -----------------------------------------------------------------------------------------------


def to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch with all nested tensors and arrays as tensors on the device; the copies are asynchronous."""

    def convert(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item.to(device, non_blocking=True)
        if type(item).__module__ == "numpy" and type(item).__name__ == "ndarray":
            return convert(torch.from_numpy(item))
        return item

    return converted(batch, convert)


def tensors(batch: Any) -> list[torch.Tensor]:
    """Return every tensor of a batch."""
    found: list[torch.Tensor] = []

    def note(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            found.append(item)
        return item

    converted(batch, note)
    return found
