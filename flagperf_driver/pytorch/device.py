"""The device by its torch type: what is used of ``torch.<type>``, with an answer where a type lacks it.

What a vendor may replace of it is in ``hooks.py``.
"""

from __future__ import annotations

import functools
import random
import sys
from dataclasses import fields, is_dataclass, replace
from typing import Any, ContextManager, Iterable, Iterator

import torch


class DeviceError(RuntimeError):
    """The device that the case asks for is not there, or cannot do what is asked of it."""


def backend(device: torch.device) -> Any:
    """``torch.<type>``; None where torch has none."""
    return getattr(torch, device.type, None)


def is_host(device: torch.device) -> bool:
    """Whether work is done when a call returns, so that the host's clock measures it."""
    return bool(device.type == "cpu")


def part(device: torch.device, name: str, hook: str) -> Any:
    """What nothing can be measured without, of ``torch.<type>``."""
    found = getattr(backend(device), name, None)
    if found is None:
        raise DeviceError(
            f"torch.{device.type} has no {name}: the vendor's device.py must give {hook!r} (docs/vendors.md)"
        )
    return found


# -- where work is done ------------------------------------------------------------------------------------


def set_device(name: str, local_rank: int, local_world_size: int) -> torch.device:
    """Give this rank its device, made the current one."""
    if name == "cpu":
        return torch.device("cpu")
    count = _count(name)
    if count != 1 and count < local_world_size:
        raise DeviceError(
            f"{local_world_size} ranks of this host need a {name!r} device each, and torch sees {count}; "
            "use a smaller shape, or look at the vendor's visible-devices variable"
        )
    # A launcher may show each rank its own device only.
    device = torch.device(name, 0 if count == 1 else local_rank)
    part(device, "set_device", "set_device")(device)
    return device


def _count(name: str) -> int:
    module = getattr(torch, name, None)
    build = f"torch {torch.__version__} in {sys.executable}"
    if module is None or not hasattr(module, "is_available"):
        raise DeviceError(
            f"device {name!r}: {build} knows no torch.{name}; name the module that brings it "
            "(modules in vendor.toml), or take a torch that is built for it"
        )
    if not module.is_available():
        raise DeviceError(
            f"device {name!r} is not there: {build} finds none; look at the driver, the visible-devices "
            "variable, and whether this build of torch is for this device"
        )
    return int(module.device_count())


def synchronize(device: torch.device) -> None:
    """Wait for all work of the device."""
    if not is_host(device):
        part(device, "synchronize", "synchronize")()


def copy_stream(device: torch.device) -> Any:
    """Give a stream to copy batches in, beside the steps; None where there are no streams."""
    kind = None if is_host(device) else getattr(backend(device), "Stream", None)
    return None if kind is None else kind()


def name(device: torch.device) -> str:
    """What the device calls itself."""
    found = None if is_host(device) else getattr(backend(device), "get_device_name", None)
    return device.type if found is None else str(found())


def memory(device: torch.device) -> int | None:
    """The most bytes that tensors held at once; None where the device does not count."""
    found = None if is_host(device) else getattr(backend(device), "max_memory_allocated", None)
    return None if found is None else int(found())


@functools.lru_cache(maxsize=None)
def pins(device: torch.device) -> bool:
    """Whether host memory can be pinned for it, so that a copy need not be waited for."""
    if is_host(device):
        return False
    try:
        return bool(torch.empty(1).pin_memory().is_pinned())
    except (RuntimeError, AssertionError):
        return False


# -- what is drawn -----------------------------------------------------------------------------------------


def seed_host(value: int) -> None:
    """Seed torch, with all devices that it knows, and numpy and Python where code draws from them."""
    torch.manual_seed(value)
    random.seed(value)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(value)


def seed(device: torch.device, value: int) -> None:
    """Leave it: ``torch.manual_seed`` has seeded the devices that torch knows."""


def random_state(device: torch.device) -> torch.Tensor | None:
    """Where the device's generator stands; None where it cannot be asked."""
    found = None if is_host(device) else getattr(backend(device), "get_rng_state", None)
    return None if found is None else found()


# -- how it computes ---------------------------------------------------------------------------------------


def settings(device: torch.device, config: Any) -> None:
    """Fp32 means it: tf32 is for those who ask for it, and for what autocast leaves in fp32."""
    lower = config.precision != "fp32"
    torch.set_float32_matmul_precision("high" if lower and not is_host(device) else "highest")
    torch.backends.cudnn.allow_tf32 = lower
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    torch.backends.cudnn.deterministic = config.cudnn_deterministic


LOWERED = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What autocast computes in, by precision."""


def autocast(device: torch.device, dtype: torch.dtype) -> ContextManager[Any]:
    """The context of forward passes, entered at every step."""
    try:
        context: Any = torch.autocast(device.type, dtype=dtype)
    except RuntimeError as error:
        raise _no_autocast(device, dtype, str(error)) from error
    # Torch only warns, and computes in fp32.
    if not context._enabled:
        raise _no_autocast(device, dtype, "it would stay in fp32")
    entered: ContextManager[Any] = context
    return entered


def _no_autocast(device: torch.device, dtype: torch.dtype, why: str) -> DeviceError:
    asked = next(precision for precision, lowered in LOWERED.items() if lowered is dtype)
    return DeviceError(
        f"precision={asked!r}: torch {torch.__version__} cannot autocast to {dtype} on {device.type!r} ({why}); "
        "take another precision, or let the vendor's device.py give 'autocast'"
    )


def grad_scaler(device: torch.device) -> Any:
    """Give fp16 its loss scaler."""
    general = getattr(torch.amp, "GradScaler", None)  # torch 2.3
    scaler = part(device, "amp", "grad_scaler").GradScaler() if general is None else general(device.type)
    # Torch only warns, and scales nothing.
    if not scaler.is_enabled():
        raise DeviceError(
            f"precision='fp16': torch {torch.__version__} scales no loss on {device.type!r}; take bf16 or fp32, "
            "or let the vendor's device.py give 'grad_scaler'"
        )
    return scaler


# -- batches -----------------------------------------------------------------------------------------------


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device, however they are nested; the copies are not waited for."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(item, device) for item in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        parts = {item.name: to_device(getattr(batch, item.name), device) for item in fields(batch)}
        return replace(batch, **parts)
    return batch


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a batch; those of a dict by their keys, in whatever order it was filled."""
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    parts: Iterable[Any] = ()
    if isinstance(batch, dict):
        parts = (batch[key] for key in sorted(batch, key=str))
    elif isinstance(batch, (list, tuple)):
        parts = batch
    elif is_dataclass(batch) and not isinstance(batch, type):
        parts = (getattr(batch, item.name) for item in fields(batch))
    for part in parts:
        yield from tensors(part)
