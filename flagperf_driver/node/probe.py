"""Devices through the tool of their vendor: a command, and a pure ``parse(text)`` that reads its output.

A vendor's probe.py has ``COMMAND``, a list of words, and ``parse(text) -> list of readings``: a dictionary a device
with any of ``devices.QUANTITIES`` as numbers in ``devices.UNITS`` (throttle as text), and ``device``, its number, where
that is not its place in the list; and any of ``FACTS``, which preflight and reports tell. It may say ``EVERY_S`` (5),
``DEADLINE_S`` (10) and ``ENVIRONMENT`` (a dictionary).
"""

from __future__ import annotations

import math
import os
import time
from typing import Any, Callable, Mapping, Sequence

from flagperf_driver.node import command
from flagperf_driver.node.devices import QUANTITIES, Cell, DeviceFiles, Source
from flagperf_driver.node.notes import CHANGED, Notes

FACTS = ("name", "uuid", "firmware", "driver")
EVERY_S = 5.0
DEADLINE_S = 10.0


class ProbeError(RuntimeError):
    """A sentence on why the probe gives nothing."""


class Tool:
    """What a vendor's probe.py says."""

    def __init__(self, path: str) -> None:
        module = _load(path)
        self.command = _command(path, module)
        self.parse: Callable[[str], Any] = getattr(module, "parse", None)  # type: ignore[assignment]
        if not callable(self.parse):
            raise ProbeError(f"{path} has no parse(text)")
        self.every_s = float(getattr(module, "EVERY_S", EVERY_S))
        self.deadline_s = float(getattr(module, "DEADLINE_S", DEADLINE_S))
        self.environment = {name: os.path.expandvars(text) for name, text in getattr(module, "ENVIRONMENT", {}).items()}

    def read(self) -> list[Mapping[str, Any]]:
        """The readings; raises CommandError or ProbeError."""
        text = command.run(self.command, self.deadline_s, self.environment)
        try:
            found = self.parse(text)
        except Exception as error:
            raise ProbeError(f"parse() of what {self.command[0]} printed: {type(error).__name__}: {error}") from None
        if not isinstance(found, list) or not all(isinstance(reading, dict) for reading in found):
            raise ProbeError("parse() must return a list of dictionaries, one a device")
        return found


def _load(path: str) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("flagperf_probe", path)
    if spec is None or spec.loader is None:
        raise ProbeError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProbeError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from None
    return module


def _command(path: str, module: Any) -> list[str]:
    words = getattr(module, "COMMAND", None)
    if not isinstance(words, (list, tuple)) or not words or not all(isinstance(word, str) for word in words):
        raise ProbeError(f"{path}: COMMAND is {words!r}; it must be a list of words, as in ['tool', '-q']")
    return list(words)


class Probe(Source):
    """Runs the tool at its own rate; what it cannot read is said once and counted."""

    def __init__(self, path: str, every_s: float, files: DeviceFiles, notes: Notes) -> None:
        self._path = path
        self._least_s = every_s
        self._files = files
        self._notes = notes
        self._wanted: set[int] | None = None
        self._tool: Tool | None = None
        self._seen: set[int] = set()
        self._facts: dict[int, dict[str, str]] = {}

    def open(self, wanted: Sequence[int] | None) -> str | None:
        try:
            self._tool = Tool(self._path)
        except (ProbeError, TypeError, ValueError, AttributeError) as error:
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
        present = set()
        for place, reading in enumerate(readings):
            index = reading.get("device", place)
            if self._wanted is None or index in self._wanted:
                present.add(index)
                self._identify(index, reading)
                self._row(index, now, reading)
        if not self._notes.devices:
            self._tell_facts()
        for index in sorted(self._seen - present):
            self._files.forget(index)
            self._notes.event(f"device {index} is no longer in the output of {self._tool.command[0]}", index, CHANGED)
        self._seen = present

    def _identify(self, index: int, reading: Mapping[str, Any]) -> None:
        """What it is; that it is another one than before is an event."""
        known = self._facts.setdefault(index, {})
        for name in FACTS:
            now = reading.get(name)
            if not isinstance(now, str) or now == known.get(name):
                continue
            if name in known:
                sentence = f"device {index}: {name} went from {known[name]} to {now}"
                self._notes.event(sentence, index, CHANGED)
            known[name] = now

    def _tell_facts(self) -> None:
        """As they were at first."""
        drivers = sorted({facts["driver"] for facts in self._facts.values() if "driver" in facts})
        self._notes.driver = ", ".join(drivers) or None
        self._notes.devices = [{"index": index, **facts} for index, facts in sorted(self._facts.items())]

    def _row(self, index: int, now: float, reading: Mapping[str, Any]) -> None:
        for name in sorted(set(reading) - {"device", *FACTS, *QUANTITIES}):
            self._notes.missing(f"{name}: not a quantity that is known here ({', '.join(QUANTITIES)})")
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


def survey(path: str) -> dict[str, Any]:
    """The devices as the tool shows them, in the words of ``nvml.survey``; what a tool does not tell is None."""
    try:
        readings = Tool(path).read()
    except (ProbeError, command.CommandError, TypeError, ValueError, AttributeError) as error:
        return {"driver": None, "devices": [], "error": str(error)}
    devices = [
        {
            "index": reading.get("device", place),
            **{name: reading.get(name) for name in ("name", "uuid", "memory_total")},
        }
        for place, reading in enumerate(readings)
    ]
    unknown = {"ecc_uncorrected": None, "row_remap_pending": None, "row_remap_failed": None, "error": None}
    return {
        "driver": None,
        "devices": [{**device, "processes": [], "throttle": [], **unknown} for device in devices],
        "error": None,
    }
