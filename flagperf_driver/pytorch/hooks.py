"""A vendor's support for its device: modules to import, and functions that replace the default hooks."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterable

import torch

from flagperf_driver import extern
from flagperf_driver.driver import RunCase, World
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import profiler as profiling
from flagperf_driver.training.profile import Profiler
from flagperf_driver.training.timeline import Marks
from flagperf_driver.training.trainer import DeviceError


@dataclass(frozen=True)
class Hooks:
    """Functions that the training calls for its device. The defaults use ``torch.<type>``.

    A function in a vendor's ``device.py`` replaces the hook of the same name. The file is imported before the device is
    used, so it may also add a missing module to torch: ``torch.acme = acme.runtime``.
    """

    set_device: Callable[[str, int, int], torch.device] = devices.set_device
    """``(type, local_rank, local_world_size)``: make this rank's device the current device and return it.
    Default: ``torch.<type>.set_device``, after ``is_available`` and ``device_count``."""
    settings: Callable[[torch.device, Any], None] = devices.settings
    """``(device, config)``: apply ``config.precision`` (may fp32 be computed as tf32?), ``config.cudnn_benchmark`` and
    ``config.cudnn_deterministic`` to the whole process. Default: the switches of torch and cuDNN."""
    seed: Callable[[torch.device, int], None] = devices.seed
    """``(device, value)``: seed the device's generator; torch, numpy and Python are seeded already.
    Default: do nothing, because ``torch.manual_seed`` seeds the devices that torch knows."""
    autocast: Callable[[torch.device, torch.dtype], ContextManager[Any]] = devices.autocast
    """``(device, dtype)``: return a context for forward passes that can be entered repeatedly.
    Default: ``torch.autocast``."""
    grad_scaler: Callable[[torch.device], Any] = devices.grad_scaler
    """``(device)``: return the loss scaler for fp16. Default: ``torch.amp.GradScaler``."""
    copy_stream: Callable[[torch.device], Any] = devices.copy_stream
    """``(device)``: return a stream of ``torch.<type>`` that copies the next batch during this step, or None; with a
    stream, tensors must have ``record_stream``. Default: ``torch.<type>.Stream()``, None if torch has no such class."""
    synchronize: Callable[[torch.device], None] = devices.synchronize
    """``(device)``: wait for all work of the device. Default: ``torch.<type>.synchronize``."""
    events: Callable[[torch.device], Marks] = devices.events
    """``(device)``: return marks on the device's timeline, ``Marks`` in ``training/timeline.py``; steps do not wait for
    them. Default: ``torch.<type>.Event(enable_timing=True)``; on the CPU, the host's clock."""
    memory: Callable[[torch.device], int | None] = devices.memory
    """``(device)``: return the peak memory of tensors in bytes, or None if unknown.
    Default: ``torch.<type>.max_memory_allocated``, None if torch has no such function."""
    profiler: Callable[[torch.device], Profiler | None] = profiling.profiler
    """``(device)``: return a ``Profiler`` of ``training/profile.py`` that records the device's kernels and copies, or
    None. Default: ``torch.profiler`` with the activities of the device's type, None if torch has no such activities."""

    @property
    def replaced(self) -> tuple[str, ...]:
        """The names of the hooks that a vendor replaced."""
        return tuple(sorted(hook.name for hook in fields(self) if getattr(self, hook.name) is not hook.default))


_MUST_RETURN = ("autocast", "events", "grad_scaler")
"""Hooks that must not return None. The result of set_device has its own check; all other hooks may return None."""


def set_up_device(case: RunCase, world: World) -> tuple[Hooks, torch.device]:
    """Import the vendor's modules and hooks, then set and return this rank's device."""
    import_modules(case.modules, case.device)
    hooks = load_hooks(case.device_module)
    device = hooks.set_device(case.device, world.local_rank, world.local_world_size)
    if not isinstance(device, torch.device):
        raise DeviceError(f"{case.device_module}: set_device() returned {device!r}; expected a torch.device")
    return hooks, device


def import_modules(modules: Iterable[str], device: str) -> None:
    """Import the modules that provide the device and its collectives, in the given order."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # without its driver a plug-in may raise anything
            raise DeviceError(
                f"device {device!r} needs the module {name!r} (modules of [framework.pytorch] in vendor.toml), "
                f"which cannot be imported by {sys.executable} (torch {torch.__version__}): "
                f"{type(error).__name__}: {error}; install it beside torch, or use a runtime that has it"
            ) from error


def module_versions(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the modules that have a ``__version__``."""
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in modules}
    return {name: str(version) for name, version in versions.items() if version is not None}


def load_hooks(path: Path | None) -> Hooks:
    """Return the hooks, with those of a vendor's ``device.py``."""
    if path is None:
        return Hooks()
    try:
        theirs = extern.load_functions(path, extern.HOOKS, "device hook")
    except extern.ExternError:
        raise
    except Exception as error:  # a vendor's code may raise anything
        raise DeviceError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return replace(Hooks(), **{name: _with_location(path, name, function) for name, function in theirs.items()})


def _with_location(path: Path, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a vendor's hook so that its errors name the vendor's file and the hook."""

    @functools.wraps(function)
    def hook(*values: Any) -> Any:
        try:
            result = function(*values)
        except Exception as error:  # a vendor's code may raise anything
            raise DeviceError(f"{path}: {name} raised {type(error).__name__}: {error}") from error
        if result is None and name in _MUST_RETURN:
            raise DeviceError(f"{path}: {name}() returned None; docs/vendors.md describes its return value")
        return result

    return hook


def forward_context(hooks: Hooks, precision: str, device: torch.device) -> ContextManager[Any]:
    """Return the context of forward passes in this precision; all steps use the same object."""
    dtype = devices.AUTOCAST_TYPES.get(precision)
    return contextlib.nullcontext() if dtype is None else hooks.autocast(device, dtype)
