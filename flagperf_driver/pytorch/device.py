"""The device by its torch type: what is used of ``torch.<type>``, with an answer where a type lacks it."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from dataclasses import fields, is_dataclass, replace
from types import ModuleType
from typing import Any, ContextManager, Iterable, Iterator

import torch

from flagperf_driver import seeds


class DeviceError(RuntimeError):
    """The device that the case asks for is not there."""


def find(name: str, plugin: str | None, local_rank: int, local_world_size: int) -> torch.device:
    """Give this rank its device, made the current one."""
    if plugin:
        _import_plugin(name, plugin)
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
    backend(device).set_device(device)
    return device


def _import_plugin(name: str, plugin: str) -> None:
    try:
        importlib.import_module(plugin)
    except ImportError as error:
        raise DeviceError(
            f"device {name!r} needs the torch plug-in {plugin!r}, which cannot be imported "
            f"by {sys.executable} (torch {torch.__version__}): {error}; "
            "install it beside torch, or take a runtime that has it"
        ) from error


def _count(name: str) -> int:
    module = getattr(torch, name, None)
    build = f"torch {torch.__version__} in {sys.executable}"
    if module is None or not hasattr(module, "is_available"):
        raise DeviceError(
            f"device {name!r}: {build} knows no torch.{name}; name the plug-in that brings it "
            "(torch_plugin in vendor.toml), or take a torch that is built for it"
        )
    if not module.is_available():
        raise DeviceError(
            f"device {name!r} is not there: {build} finds none; look at the driver, the visible-devices "
            "variable, and whether this build of torch is for this device"
        )
    return int(module.device_count())


def backend(device: torch.device) -> ModuleType:
    """``torch.<type>``."""
    module: ModuleType = getattr(torch, device.type)
    return module


def is_host(device: torch.device) -> bool:
    """Whether work is done when a call returns, so that the host's clock measures it."""
    return bool(device.type == "cpu")


def synchronize(device: torch.device) -> None:
    """Wait for all work of the device."""
    if not is_host(device):
        backend(device).synchronize()


def name(device: torch.device) -> str:
    """What the device calls itself."""
    return str(_call(device, "get_device_name", device.type))


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that tensors held at once; None where the device does not count."""
    peak = None if is_host(device) else _call(device, "max_memory_allocated", None)
    return None if peak is None else int(peak)


def _call(device: torch.device, function: str, default: Any) -> Any:
    found = getattr(backend(device), function, None)
    return default if found is None or is_host(device) else found()


def seed(value: int) -> None:
    """Seed torch on the host and on the device, and numpy and Python where code draws from them."""
    torch.manual_seed(value)
    random.seed(value)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(value)


def seed_model(value: int) -> None:
    """The same on every rank: what the initial weights are drawn from."""
    seed(seeds.derive(value, seeds.MODEL))


def seed_rank(value: int, rank: int) -> None:
    """Another on every rank: dropout and augmentation."""
    seed(seeds.derive(value, seeds.RANK, rank))


def set_precision(precision: str, device: torch.device) -> None:
    """Fp32 means it: tf32 is for those who ask for it, and for what autocast leaves in fp32."""
    lower = precision != "fp32"
    torch.set_float32_matmul_precision("high" if lower and not is_host(device) else "highest")
    torch.backends.cudnn.allow_tf32 = lower


AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device) -> ContextManager[Any]:
    """The context of forward passes; one object serves all steps."""
    dtype = AUTOCAST.get(precision)
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


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
    """Every tensor of a batch."""
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    parts: Iterable[Any] = ()
    if isinstance(batch, dict):
        parts = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    elif is_dataclass(batch) and not isinstance(batch, type):
        parts = (getattr(batch, item.name) for item in fields(batch))
    for part in parts:
        yield from tensors(part)
