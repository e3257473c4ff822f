"""Devices through the tool of their vendor: a command, and a pure ``parse(text)`` that reads its output.

A vendor's probe.py has ``COMMAND``, a list of words, and ``parse(text) -> list of readings``: a dictionary a device
with any of ``devices.QUANTITIES`` as numbers in ``devices.UNITS`` (throttle as text), and ``device``, its number, where
that is not its place in the list; and any of ``health.WORDS`` and ``health.PROCESSES``, which preflight and reports
tell. It may say ``EVERY_S`` (5), ``DEADLINE_S`` (10) and ``ENVIRONMENT`` (a dictionary).
"""

from __future__ import annotations

import math
import os
import time
from typing import Any, Callable, Iterator, Mapping, Sequence

from flagperf_driver.node import command
from flagperf_driver.node.sampling.devices import NO_THROTTLING, QUANTITIES, Cell, DeviceFiles, DeviceSource
from flagperf_driver.node.sampling.health import PROCESSES, WORDS, DeviceHealth, described, fits, understood
from flagperf_driver.node.sampling.notes import CHANGED, Notes

_KNOWN = frozenset(["device", PROCESSES, *WORDS, *QUANTITIES])
EVERY_S = 5.0
DEADLINE_S = 10.0


class ProbeError(RuntimeError):
    """A sentence on why the probe gives nothing."""


class Tool:
    """What a vendor's probe.py says."""

    def __init__(self, path: str) -> None:
        module = _load(path)
        path = _as_the_vendor_knows_it(path)
        self.command = _command(path, module)
        self.parse: Callable[[str], Any] = getattr(module, "parse", None)  # type: ignore[assignment]
        if not callable(self.parse):
            raise ProbeError(f"{path} has no parse(text)")
        self.every_s = _seconds(path, module, "EVERY_S", EVERY_S)
        self.deadline_s = _seconds(path, module, "DEADLINE_S", DEADLINE_S)
        self.environment = _environment(path, module)

    def read(self) -> list[Mapping[str, Any]]:
        """The readings; raises CommandError or ProbeError."""
        text = command.run(self.command, self.deadline_s, self.environment)
        try:
            found = self.parse(text)
        except Exception as error:
            raise ProbeError(f"parse() of what {self.command[0]} printed: {type(error).__name__}: {error}") from None
        if not isinstance(found, list) or not all(isinstance(reading, dict) for reading in found):
            raise ProbeError("parse() must return a list of dictionaries, one a device")
        numbers = [number for number, _ in _numbered(found)]
        wrong = [number for number in numbers if type(number) is not int or numbers.count(number) > 1]
        if wrong:
            raise ProbeError(f"parse() gave a device the number {wrong[0]!r}: each needs a whole one of its own")
        return found


def _as_the_vendor_knows_it(path: str) -> str:
    """``vendors/<vendor>/probe.py``: where a host keeps it says nothing to whoever is to mend it."""
    return "/".join(path.split("/")[-3:])


def _load(path: str) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("flagperf_probe", path)
    if spec is None or spec.loader is None:
        raise ProbeError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProbeError(f"{_as_the_vendor_knows_it(path)} cannot be loaded: {type(error).__name__}: {error}") from None
    return module


def _command(path: str, module: Any) -> list[str]:
    words = getattr(module, "COMMAND", None)
    if not isinstance(words, (list, tuple)) or not words or not all(isinstance(word, str) for word in words):
        raise ProbeError(f"{path}: COMMAND is {words!r}; it must be a list of words, as in ['tool', '-q']")
    return list(words)


def _seconds(path: str, module: Any, name: str, usual: float) -> float:
    value = getattr(module, name, usual)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ProbeError(f"{path}: {name} is {value!r}; it must be a number of seconds, more than 0")
    return float(value)


def _environment(path: str, module: Any) -> dict[str, str]:
    told = getattr(module, "ENVIRONMENT", {})
    if not isinstance(told, dict) or not all(isinstance(text, str) for pair in told.items() for text in pair):
        raise ProbeError(
            f"{path}: ENVIRONMENT is {told!r}; it must be a dictionary of texts, as in {{'PATH': '/opt/x'}}"
        )
    return {name: os.path.expandvars(text) for name, text in told.items()}


class Probe(DeviceSource):
    """Runs the tool at its own rate; what it cannot read is said once and counted."""

    def __init__(self, path: str, every_s: float, files: DeviceFiles, notes: Notes) -> None:
        self.means = path
        self._path = path
        self._least_s = every_s
        self._files = files
        self._notes = notes
        self._wanted: set[int] | None = None
        self._tool: Tool | None = None
        self._seen: set[int] = set()
        self._courses: dict[int, DeviceHealth] = {}
        self._facts: list[dict[str, Any]] = []
        self._processes: list[tuple[int, int]] = []

    def open(self, wanted: Sequence[int] | None) -> str | None:
        try:
            self._tool = Tool(self._path)
        except ProbeError as error:
            return str(error)
        self._wanted = None if wanted is None else set(wanted)
        self.every_s = max(self._least_s, self._tool.every_s)
        self.means = " ".join(self._tool.command)
        return None

    def sample(self, _: int, everything: bool = False) -> None:
        if everything or self._tool is None:
            return  # the last sample is not worth the wait for a process
        now = time.time()
        try:
            readings = self._tool.read()
        except command.Ending:
            return
        except (ProbeError, command.CommandError) as error:
            self._notes.error(str(error))
            return
        found = {index: reading for index, reading in _numbered(readings) if self._is_wanted(index)}
        for index, reading in found.items():
            self._learn(index, reading)
            self._row(index, now, reading)
        self._processes = [(index, one["pid"]) for index, reading in found.items() for one in _computing(reading)]
        for index in sorted(self._seen - found.keys()):
            self._files.forget(index)
            self._notes.event(f"device {index} is no longer in the output of {self._tool.command[0]}", index, CHANGED)
        self._seen = set(found)

    def _is_wanted(self, index: int) -> bool:
        return self._wanted is None or index in self._wanted

    def _learn(self, index: int, reading: Mapping[str, Any]) -> None:
        """What it is and how it fares; as it was at first it is told with the results."""
        if index not in self._courses:
            self._courses[index] = DeviceHealth(index, self._notes)
            self._facts.append(described(index, reading))
            self.driver = ", ".join(sorted({one["driver"] for one in self._facts if one["driver"]})) or None
        self._courses[index].learn({"trouble": "none", **understood(reading)})

    def processes(self) -> list[tuple[int, int]]:
        return self._processes

    def facts(self) -> list[dict[str, Any]]:
        return sorted(self._facts, key=lambda one: int(one["index"]))

    def _row(self, index: int, now: float, reading: Mapping[str, Any]) -> None:
        for name in sorted(map(str, set(reading) - _KNOWN)):
            self._notes.missing(f"{name}: not a word that is known here ({', '.join((*QUANTITIES, *WORDS))})")
        for name in set(reading).intersection(WORDS) - set(QUANTITIES):
            if not fits(name, reading[name]):
                self._notes.missing(f"{name}: {reading[name]!r} is not a value of it", index)
        cells = [self._cell(index, name, reading.get(name)) for name in QUANTITIES]
        self._files.row(index, now, cells, cells)

    def _cell(self, index: int, name: str, value: object) -> Cell:
        if name == "throttle" and isinstance(value, str) and not set(value) & set(",\r\n"):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return value
        self._notes.missing(
            f"{name}: the tool gives none" if value is None else f"{name}: {value!r} is not a number", index
        )
        return None


def _numbered(readings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each by the device's number, which is its place in the list where the tool does not say it."""
    for place, reading in enumerate(readings):
        yield reading.get("device", place), reading


def _computing(reading: Mapping[str, Any]) -> list[dict[str, Any]]:
    told = reading.get(PROCESSES)
    found = told if isinstance(told, (list, tuple)) else ()
    return [_process(one) for one in found if isinstance(one, dict) and type(one.get("pid")) is int]


def _process(told: Mapping[str, Any]) -> dict[str, Any]:
    """Its number, and of the rest what is a value of its kind."""
    kinds: dict[str, Any] = {"pid": int, "name": str, "memory": (int, float)}
    return {name: told[name] for name, kind in kinds.items() if isinstance(told.get(name), kind)}


def survey(path: str) -> dict[str, Any]:
    """The devices as the tool shows them, in the words of ``nvml.survey``; what a tool does not tell is None."""
    try:
        readings = Tool(path).read()
    except (ProbeError, command.CommandError) as error:
        return {"driver": None, "devices": [], "error": str(error)}
    devices = [
        described(index, reading, processes=_computing(reading), throttle=_throttle(reading), error=None)
        for index, reading in _numbered(readings)
    ]
    drivers = sorted({device["driver"] for device in devices if device["driver"]})
    return {"driver": ", ".join(drivers) or None, "devices": devices, "error": None}


def _throttle(reading: Mapping[str, Any]) -> list[str]:
    told = reading.get("throttle")
    return [reason for reason in str(told or "none").split("+") if reason not in NO_THROTTLING]
