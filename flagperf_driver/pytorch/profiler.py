"""The activities of a device by torch.profiler."""

from __future__ import annotations

import re
import sys
from typing import Any

import torch

from flagperf_driver.pytorch import device as devices
from flagperf_driver.training.profile import Activity, Profiler, Recording

_LAUNCH = re.compile(r"^(cu|cuda|hip)\w*Launch|^urEnqueueKernelLaunch")
_WAIT = re.compile(r"^(cu|cuda|hip)\w*Synchronize|^(cuda|hip)Memcpy$")
_ON_DEVICE = frozenset(["kernel", "gpu_memcpy", "gpu_memset"])
_OF_HOST = frozenset(["cpu_op", "user_annotation"])


def profiler(device: torch.device) -> Profiler | None:
    """Return a profiler of the device's kernels, on the host of its operators; None if torch has none for it."""
    names = {kind.name.lower(): kind for kind in torch.profiler.supported_activities()}
    added = str(torch._C._get_privateuse1_backend_name())  # the type that an imported module has added to torch
    kind = names.get(device.type) or names.get("privateuse1" if device.type == added else "")
    return None if kind is None else TorchProfiler(kind, host=devices.is_host(device))


class TorchProfiler:
    """Records the activities of one kind: the host's operators are not recorded with a device's, which slows it."""

    def __init__(self, kind: Any, *, host: bool) -> None:
        self._kind, self._host = kind, host
        self._profile: Any = None

    def start(self) -> None:
        self._profile = torch.profiler.profile(activities=[self._kind])
        self._profile.start()

    def stop(self) -> Recording:
        self._profile.stop()
        # prof.events() takes minutes for the hundred thousands of kernels of some models.
        events = self._profile.profiler.kineto_results.events()
        self._profile = None
        recording = _operators(events) if self._host else _kernels(events)
        recording.graph_breaks = _graph_breaks()
        return recording


def _kernels(events: Any) -> Recording:
    recording = Recording()
    last_launch, waits = 0, []
    for event in events:
        name, category = event.name(), _category(event)
        begin, duration = event.start_ns(), event.duration_ns()
        if category in _ON_DEVICE:
            copied = event.nbytes() if category == "gpu_memcpy" else 0
            recording.activities.append(Activity(name, begin, begin + duration, duration, copied))
        elif _LAUNCH.search(name):
            recording.launches += 1
            last_launch = max(last_launch, begin)
        elif _WAIT.search(name):
            waits.append((begin, duration))
    # After the last launch, the end of the recording waits.
    recording.waits = [duration for begin, duration in waits if begin < last_launch]
    return recording


def _category(event: Any) -> str:
    """Return the kind of an event; a torch that does not give it has only these three here."""
    if hasattr(event, "activity_type"):
        return str(event.activity_type())
    if event.device_type() == torch.autograd.DeviceType.CPU:
        return "runtime"
    return "gpu_memcpy" if event.name().startswith("Memcpy") else "kernel"


def _operators(events: Any) -> Recording:
    """Return the operators of the host, each with its time without the operators that it calls."""
    recording = Recording()
    spans = [
        (event.start_thread_id(), event.start_ns(), -event.duration_ns(), event.name())
        for event in events
        if _category(event) in _OF_HOST
    ]
    open_: list[list[Any]] = []

    def close(until: int | None) -> None:
        while open_ and (until is None or open_[-1][2] <= until):
            recording.activities.append(Activity(*open_.pop()))

    thread = None
    for of_thread, begin, duration, name in sorted(spans):
        close(begin if of_thread == thread else None)
        thread = of_thread
        if open_:
            open_[-1][3] -= min(-duration, open_[-1][2] - begin)
        open_.append([name, begin, begin - duration, -duration])
    close(None)
    return recording


def _graph_breaks() -> int | None:
    """Return how many times the compiler split a model; None if it has compiled none."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return sum(counters["graph_break"].values()) if counters and counters["stats"] else None
