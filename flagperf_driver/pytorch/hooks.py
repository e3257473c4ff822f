"""What a vendor plugs in for its device: modules that are imported, and functions that replace ours by name."""

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
from flagperf_driver.pytorch import clock
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch.device import DeviceError


@dataclass(frozen=True)
class Hooks:
    """What the training asks of its device. The defaults take what ``torch.<type>`` has.

    A vendor's ``device.py`` replaces any of them by a function of the same name. It is imported before the device is
    touched, so it may also give torch a module that it lacks: ``torch.acme = acme.runtime``.
    """

    set_device: Callable[[str, int, int], torch.device] = devices.set_device
    """``(type, local_rank, local_world_size)``: this rank's device, made the current one.
    Default: ``torch.<type>.set_device``, after ``is_available`` and ``device_count``."""
    settings: Callable[[torch.device, Any], None] = devices.settings
    """``(device, config)``: what is set for the whole process, by ``config.precision`` (whether fp32 may be computed as
    tf32), ``config.cudnn_benchmark`` and ``config.cudnn_deterministic``. Default: torch's own switches and cuDNN's."""
    seed: Callable[[torch.device, int], None] = devices.seed
    """``(device, value)``: seed the device's generator; torch, numpy and Python are seeded.
    Default: nothing, for ``torch.manual_seed`` reaches what torch knows."""
    autocast: Callable[[torch.device, torch.dtype], ContextManager[Any]] = devices.autocast
    """``(device, dtype)``: a context of forward passes that can be entered again and again.
    Default: ``torch.autocast``."""
    grad_scaler: Callable[[torch.device], Any] = devices.grad_scaler
    """``(device)``: fp16's loss scaler. Default: ``torch.amp.GradScaler``."""
    copy_stream: Callable[[torch.device], Any] = devices.copy_stream
    """``(device)``: a stream of ``torch.<type>`` in which the next batch is copied beside this step's work, or None;
    with one, tensors must know ``record_stream``. Default: ``torch.<type>.Stream()``, where there is one."""
    synchronize: Callable[[torch.device], None] = devices.synchronize
    """``(device)``: wait for all work. Default: ``torch.<type>.synchronize``."""
    events: Callable[[torch.device], clock.Marks] = clock.events
    """``(device)``: marks on the device's timeline, as ``Marks`` in ``clock.py``; no step waits for them.
    Default: ``torch.<type>.Event(enable_timing=True)``; on the CPU, the host's clock."""
    memory: Callable[[torch.device], int | None] = devices.memory
    """``(device)``: the most bytes that tensors held at once, or None.
    Default: ``torch.<type>.max_memory_allocated``, where there is one."""

    @property
    def replaced(self) -> tuple[str, ...]:
        """The names of those that are a vendor's."""
        return tuple(sorted(hook.name for hook in fields(self) if getattr(self, hook.name) is not hook.default))


_GIVING = ("autocast", "events", "grad_scaler")
"""Hooks whose result is used as it is; set_device's is looked at, and the others may give None."""


def plug_in(case: RunCase, world: World) -> tuple[Hooks, torch.device]:
    """The vendor's modules, its hooks and this rank's device, in the order in which one needs the other."""
    import_modules(case.modules, case.device)
    hooks = with_vendor(case.device_module)
    device = hooks.set_device(case.device, world.local_rank, world.local_world_size)
    if not isinstance(device, torch.device):
        raise DeviceError(f"{case.device_module}: set_device gives {device!r}, wanted is a torch.device")
    return hooks, device


def import_modules(modules: Iterable[str], device: str) -> None:
    """Import what brings the device and its collectives, in the order given."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # a plug-in that lacks its driver raises what it likes
            raise DeviceError(
                f"device {device!r} needs the module {name!r} (modules in vendor.toml), which cannot be imported by "
                f"{sys.executable} (torch {torch.__version__}): {type(error).__name__}: {error}; "
                "install it beside torch, or take a runtime that has it"
            ) from error


def versions(modules: Iterable[str]) -> dict[str, str]:
    """What those of the modules that tell it call their version."""
    told = {name: getattr(sys.modules.get(name), "__version__", None) for name in modules}
    return {name: str(version) for name, version in told.items() if version is not None}


def with_vendor(path: Path | None) -> Hooks:
    """The hooks, those replaced that the vendor brings."""
    if path is None:
        return Hooks()
    try:
        theirs = extern.load_functions(path, extern.HOOKS, "device hook")
    except extern.ExternError:
        raise
    except Exception as error:  # a vendor's code: told with its place, and raised
        raise DeviceError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return replace(Hooks(), **{name: _named(path, name, function) for name, function in theirs.items()})


def _named(path: Path, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Says whose fault it is: the function is called from places that know nothing of the vendor."""

    @functools.wraps(function)
    def named(*values: Any) -> Any:
        try:
            found = function(*values)
        except Exception as error:  # told with its place, and raised
            raise DeviceError(f"{path}: {name} raised {type(error).__name__}: {error}") from error
        if found is None and name in _GIVING:
            raise DeviceError(f"{path}: {name} gives None; docs/vendors.md says what it must return")
        return found

    return named


def forward(hooks: Hooks, precision: str, device: torch.device) -> ContextManager[Any]:
    """The context of forward passes in this precision; one object serves all steps."""
    dtype = devices.LOWERED.get(precision)
    return contextlib.nullcontext() if dtype is None else hooks.autocast(device, dtype)
