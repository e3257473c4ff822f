"""Sample devices with the command-line tool of their vendor.

A vendor's probe.py has ``COMMAND``, a list of strings, and ``parse(text)``, a pure function that parses the output and
returns a list with a dictionary for each device. Its keys are ``device``, the device's number (by default the position
in the list), any of ``devices.QUANTITIES`` as numbers in ``devices.UNITS`` (``throttle`` as text), and any of
``health.FACTS`` and ``health.PROCESSES``, which preflight and reports use. ``EVERY_S`` (5), ``DEADLINE_S`` (10) and
``ENVIRONMENT`` (a dictionary) are optional.

process.py starts server.py, which runs probe.py (tool.py) without the right to write or to connect.
"""

from __future__ import annotations

import math
import time
from typing import Any, Iterator, Mapping, Sequence

from flagperf_driver.node import run_tool
from flagperf_driver.node.sampling.devices import NO_THROTTLING, QUANTITIES, Cell, DeviceFiles, DeviceSource
from flagperf_driver.node.sampling.health import FACTS, PROCESSES, DeviceHealth, describe_device, fits, valid_facts
from flagperf_driver.node.sampling.notes import CHANGED, Notes
from flagperf_driver.node.sampling.probe.process import ToolProcess
from flagperf_driver.node.sampling.probe.tool import ProbeError

_KNOWN = frozenset(["device", PROCESSES, *FACTS, *QUANTITIES])


class Probe(DeviceSource):
    """Sample devices with a vendor's tool at the tool's own interval; note errors and missing values."""

    def __init__(self, path: str, every_s: float, files: DeviceFiles, notes: Notes) -> None:
        self.means = path
        self._path = path
        self._least_s = every_s
        self._files = files
        self._notes = notes
        self._devices: set[int] | None = None
        self._tool: ToolProcess | None = None
        self._present: set[int] = set()
        self._health: dict[int, DeviceHealth] = {}
        self._facts: list[dict[str, Any]] = []
        self._processes: list[tuple[int, int]] = []

    def open(self, devices: Sequence[int] | None) -> str | None:
        try:
            self._tool = ToolProcess(self._path)
        except (ProbeError, run_tool.CommandError) as error:
            return str(error)
        if self._tool.not_confined:
            self._notes.missing(f"the confinement of the probe: {self._tool.not_confined}")
        self._devices = None if devices is None else set(devices)
        self.every_s = max(self._least_s, self._tool.every_s)
        self.means = " ".join(self._tool.command)
        return None

    def sample(self, _: int, everything: bool = False) -> None:
        if everything or self._tool is None:
            return  # do not wait for a process for the last sample
        now = time.time()
        try:
            readings = self._tool.read()
        except run_tool.SamplerEnding:
            return
        except (ProbeError, run_tool.CommandError) as error:
            self._notes.error(str(error))
            return
        sampled = {index: one for index, one in numbered(readings) if self._devices is None or index in self._devices}
        for index, reading in sampled.items():
            self._update_health(index, reading)
            self._row(index, now, reading)
        self._processes = [
            (index, process["pid"]) for index, reading in sampled.items() for process in _processes_of(reading)
        ]
        for index in sorted(self._present - sampled.keys()):
            self._files.forget(index)
            self._notes.event(f"device {index} is no longer in the output of {self._tool.command[0]}", index, CHANGED)
        self._present = set(sampled)

    def _update_health(self, index: int, reading: Mapping[str, Any]) -> None:
        """Compare the device's facts with the previous ones; store the first ones for the results."""
        if index not in self._health:
            self._health[index] = DeviceHealth(index, self._notes)
            self._facts.append(describe_device(index, reading))
            self.driver = ", ".join(sorted({device["driver"] for device in self._facts if device["driver"]})) or None
        self._health[index].update({"trouble": "none", **valid_facts(reading)})

    def processes(self) -> list[tuple[int, int]]:
        return self._processes

    def facts(self) -> list[dict[str, Any]]:
        return sorted(self._facts, key=lambda device: int(device["index"]))

    def close(self) -> None:
        if self._tool is not None:
            self._tool.close()

    def _row(self, index: int, now: float, reading: Mapping[str, Any]) -> None:
        for name in sorted(map(str, set(reading) - _KNOWN)):
            self._notes.missing(f"{name}: unknown key; expected one of {', '.join((*QUANTITIES, *FACTS))}")
        for name in set(reading).intersection(FACTS) - set(QUANTITIES):
            if not fits(name, reading[name]):
                self._notes.missing(f"{name}: invalid value {reading[name]!r}", index)
        cells = [self._cell(index, name, reading.get(name)) for name in QUANTITIES]
        self._files.row(index, now, cells, cells)

    def _cell(self, index: int, name: str, value: object) -> Cell:
        if name == "throttle" and isinstance(value, str) and not set(value) & set(",\r\n"):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return value
        self._notes.missing(
            f"{name}: missing in the tool's output" if value is None else f"{name}: {value!r} is not a number", index
        )
        return None


def numbered(readings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield each reading with the device's number, by default its position in the list."""
    for position, reading in enumerate(readings):
        yield reading.get("device", position), reading


def _processes_of(reading: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = reading.get(PROCESSES)
    processes = entries if isinstance(entries, (list, tuple)) else ()
    return [_process(entry) for entry in processes if isinstance(entry, dict) and type(entry.get("pid")) is int]


def _process(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pid, and the name and the memory if they are valid."""
    kinds: dict[str, Any] = {"pid": int, "name": str, "memory": (int, float)}
    return {name: entry[name] for name, kind in kinds.items() if isinstance(entry.get(name), kind)}


def survey(path: str) -> dict[str, Any]:
    """Return the devices that the tool reports, in the format of ``nvml.facts.survey``; None for unknown facts."""
    try:
        tool = ToolProcess(path)
        try:
            readings = tool.read()
        finally:
            tool.close()
    except (ProbeError, run_tool.CommandError) as error:
        return {"driver": None, "devices": [], "error": str(error)}
    devices = [
        describe_device(index, reading, processes=_processes_of(reading), throttle=_throttle(reading), error=None)
        for index, reading in numbered(readings)
    ]
    drivers = sorted({device["driver"] for device in devices if device["driver"]})
    return {"driver": ", ".join(drivers) or None, "devices": devices, "error": None}


def _throttle(reading: Mapping[str, Any]) -> list[str]:
    reasons = reading.get("throttle")
    return [reason for reason in str(reasons or "none").split("+") if reason not in NO_THROTTLING]
