"""Devices through NVML: figures in microseconds, without a process for each sample.

``pynvml`` lies beside the shipped code, in ``lib``; without it, without the driver's library, or with one that knows
only a part, what is missing is said once and the rest is sampled.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import time
from typing import Any, Callable, Sequence

from flagperf_driver.node.sampling.devices import NO_THROTTLING, QUANTITIES, Cell, DeviceFiles, Source
from flagperf_driver.node.sampling.health import PROCESSES, Course, described
from flagperf_driver.node.sampling.host import content
from flagperf_driver.node.sampling.notes import CHANGED, Notes

REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
"""Why the clocks are lower than they could be, as NVML's bits say it."""
HARMLESS = sum(bit for bit, name in REASONS.items() if name in NO_THROTTLING)
MIB = 1 << 20
_LOST = (15, 16)  # fallen off the bus; needs a reset
_NEVER = (2, 3, 4, 13, 25)  # argument, not supported, no permission, function or version unknown: also next time
_FAST_S, _SLOW_S = 0.1, 1.0
_SM, _MEMORY = 1, 2
_UTILIZATION = QUANTITIES.index("utilization")
_REASONS_CALLS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_CORRECTED, _UNCORRECTED, _SINCE_BOOT = 0, 1, 0
_LINK_ERRORS = tuple(
    f"NVML_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL" for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
)
"""Of all links of a device in one call, where each link's own counters would take four calls."""
_PROCESSES_CALLS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
_SHARING_CALLS = ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2")
_BUSY = 50
"""Percent of utilization from which on a bus that slows down at rest is awake."""

Read = Callable[[Any], Sequence[Cell]]


class NvmlError(RuntimeError):
    """A sentence on why NVML cannot be used."""


def load() -> Any:
    """The pynvml module with its library initialised."""
    beside = os.path.join(os.path.dirname(__file__), "..", "..", "..", "lib")  # noqa: PTH118, PTH120
    path = os.path.abspath(beside)  # noqa: PTH100
    if path not in sys.path and os.path.isdir(path):  # noqa: PTH112
        sys.path.append(path)
    try:
        nvml = importlib.import_module("pynvml")
    except (ImportError, SyntaxError, AttributeError, OSError) as error:
        raise NvmlError(f"NVML: the pynvml module cannot be imported: {error}") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from None
    return nvml


class Quantity:
    """One question to a device: the columns that its answer fills, and how often it is worth asking."""

    def __init__(self, every_s: float, names: Sequence[str], read: Read) -> None:
        self.every_s = every_s
        self.names = names
        self.columns = [QUANTITIES.index(name) for name in names]
        self.read = read


def _quantities(nvml: Any) -> list[Quantity]:
    """What is asked most often is asked without pynvml's wrappers, which take longer than the library.

    The throughput of PCIe is left out: the driver counts for 20 ms in each call, 320 ms a sample of eight devices.
    """
    memory_clock, energy = nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetTotalEnergyConsumption
    return [
        Quantity(0.0, ["power"], _scalar(nvml, ["nvmlDeviceGetPowerUsage"], lambda milliwatts: milliwatts / 1000)),
        Quantity(_FAST_S, ["utilization"], _utilization(nvml)),
        Quantity(_FAST_S, ["sm_clock"], _scalar(nvml, ["nvmlDeviceGetClockInfo"], given=(_SM,))),
        Quantity(_FAST_S, ["throttle"], _scalar(nvml, _REASONS_CALLS, throttle_names, wide=True)),
        Quantity(_SLOW_S, ["temperature"], _temperature(nvml)),
        Quantity(_SLOW_S, ["memory_used", "memory_total"], _memory(nvml)),
        Quantity(_SLOW_S, ["memory_clock"], lambda handle: (memory_clock(handle, _MEMORY),)),
        Quantity(_SLOW_S, ["energy"], lambda handle: (energy(handle) / 1000,)),
    ]


def throttle_names(bits: int) -> str:
    """The reasons' names joined by "+", "none" without any; an unknown bit by its number."""
    if not bits:
        return "none"
    given = [1 << place for place in range(bits.bit_length()) if bits & 1 << place]
    return "+".join(REASONS.get(bit, hex(bit)) for bit in given)


def _scalar(
    nvml: Any,
    names: Sequence[str],
    form: Callable[[int], Cell] = int,
    *,
    given: tuple[int, ...] = (),
    wide: bool = False,
) -> Read:
    """A call that gives one number, under the first of its names that the library has."""
    function = _function(nvml, names)
    answer = ctypes.c_ulonglong() if wide else ctypes.c_uint()
    where = ctypes.byref(answer)

    def read(handle: Any) -> Sequence[Cell]:
        code = function(handle, *given, where)
        if code:
            raise nvml.NVMLError(code)
        return (form(answer.value),)

    return read


def _utilization(nvml: Any) -> Read:
    function = _function(nvml, ["nvmlDeviceGetUtilizationRates"])
    answer = (ctypes.c_uint * 2)()  # of the chip, of its memory's bus

    def read(handle: Any) -> Sequence[Cell]:
        code = function(handle, answer)
        if code:
            raise nvml.NVMLError(code)
        return (answer[0],)

    return read


def _function(nvml: Any, names: Sequence[str]) -> Callable[..., int]:
    """The library's function; one that says so where it has none."""
    for name in names:
        try:
            found: Callable[..., int] = nvml._nvmlGetFunctionPointer(name)
        except nvml.NVMLError:
            continue
        return found
    return lambda *_: int(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _temperature(nvml: Any) -> Read:
    """Of the chip. The first call is to go away, an old library has not got the second."""
    first, second = nvml.nvmlDeviceGetTemperature, getattr(nvml, "nvmlDeviceGetTemperatureV", None)
    try:
        nvml._nvmlGetFunctionPointer("nvmlDeviceGetTemperature")
    except nvml.NVMLError:
        first = second or first
    return lambda handle: (first(handle, 0),)


def _memory(nvml: Any) -> Read:
    """Without what the driver keeps for itself, as the vendor's own tool shows it, where the library can tell."""
    version: list[Any] = [getattr(nvml, "nvmlMemory_v2", None)]

    def read(handle: Any) -> Sequence[Cell]:
        try:
            found = nvml.nvmlDeviceGetMemoryInfo(handle, version[0])
        except nvml.NVMLError as error:
            if version[0] is None or error.value not in _NEVER:
                raise
            version[0] = None
            found = nvml.nvmlDeviceGetMemoryInfo(handle)
        return found.used // MIB, found.total // MIB

    return read


class Device:
    """One device while it is there, and its latest figures."""

    def __init__(self, index: int, handle: Any, questions: list[Quantity], notes: Notes) -> None:
        self.index = index
        self.handle = handle
        self.questions = questions
        self.last: list[Cell] = [None] * len(QUANTITIES)
        self.lost = False
        self.told: set[str] = set()
        self.facts: dict[str, Any] = {}
        self.course = Course(index, notes)


class Nvml(Source):
    """All the devices that were asked for; each quantity as often as it changes."""

    def __init__(self, every_s: float, files: DeviceFiles, notes: Notes) -> None:
        self.every_s = every_s
        self.means = "NVML"
        self._files = files
        self._notes = notes
        self._devices: list[Device] = []
        self._questions: list[Quantity] = []
        self._due: dict[float, int] = {}
        self._nvml: Any = None

    def open(self, wanted: Sequence[int] | None) -> str | None:
        try:
            self._nvml = nvml = load()
            count = int(nvml.nvmlDeviceGetCount())
        except NvmlError as error:
            return str(error)
        except self._nvml.NVMLError as error:
            return f"NVML: {error}"
        self.driver = _driver(nvml)
        self.means = f"NVML, driver {self.driver or 'unknown'}"
        self._questions = _quantities(nvml)
        self._due = {question.every_s: 0 for question in self._questions}
        for index in range(count) if wanted is None else wanted:
            self._add(index, count)
        return None if self._devices else f"NVML: none of the devices {wanted or 'of this host'} can be read"

    def _add(self, index: int, count: int) -> None:
        if index >= count:
            self._notes.missing(f"all figures: NVML knows {count} devices", index)
            return
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            self._notes.event(f"device {index} cannot be read from the start: {error}", index)
            return
        device = Device(index, handle, list(self._questions), self._notes)
        device.facts = _facts(self._nvml, index, handle)
        self._devices.append(device)

    def sample(self, tick: int, everything: bool = False) -> None:
        due = {every_s for every_s, when in self._due.items() if everything or tick >= when}
        for every_s in due:
            self._due[every_s] = tick + max(1, round(every_s / self.every_s))
        for device in self._devices:
            if not device.lost:
                self._read(device, due)

    def _read(self, device: Device, due: set[float]) -> None:
        cells: list[Cell] = [None] * len(QUANTITIES)
        last, handle = device.last, device.handle
        now = time.time()
        for question in device.questions:
            if question.every_s not in due:
                continue
            try:
                found = question.read(handle)
            except self._nvml.NVMLError as error:
                self._failed(device, question, error)
                if device.lost:
                    break
                continue
            for column, value in zip(question.columns, found):
                cells[column] = last[column] = value
        if not device.lost:
            self._files.row(device.index, now, cells, last)
        if device.lost:
            self._files.forget(device.index)

    def _failed(self, device: Device, question: Quantity, error: Any) -> None:
        names = ", ".join(question.names)
        if error.value in _LOST:
            device.lost = True
            self._notes.event(f"device {device.index} is lost: {error}", device.index, CHANGED)
        elif error.value in _NEVER:
            device.questions = [one for one in device.questions if one is not question]
            self._notes.missing(f"{names}: {error}", device.index)
        else:
            for column in question.columns:
                device.last[column] = None
            self._notes.error(f"device {device.index}, {names}: {error}")

    def look_after(self, _: int) -> None:
        """The driver, what a device is and how it fares: what changes is an event."""
        driver = _driver(self._nvml)
        if driver != self.driver and driver:
            self._notes.event(f"the driver went from {self.driver} to {driver}", kind=CHANGED)
            self.driver = driver
        for device in self._devices:
            if not device.lost:
                device.course.learn({**_standing(self._nvml, device.handle), **self._bus_at_work(device)})

    def _bus_at_work(self, device: Device) -> dict[str, Any]:
        """At rest it is slow on purpose."""
        if (device.last[_UTILIZATION] or 0) < _BUSY:  # type: ignore[operator]
            return {}
        bus = _bus(self._nvml, device.handle)
        for name, what in (("pcie_width", "{} of its {} PCIe lanes"), ("pcie_generation", "PCIe {} of {}")):
            now, best = bus[name], device.facts[f"best_{name}"]
            if now and best and now < best and name not in device.told:
                device.told.add(name)
                self._notes.event(f"device {device.index} computes with {what.format(now, best)}", device.index)
        return bus

    def processes(self) -> list[tuple[int, int]]:
        there = [device for device in self._devices if not device.lost]
        return [(device.index, pid) for device in there for pid in self._pids(device)]

    def _pids(self, device: Device) -> set[int]:
        found = _computing(self._nvml, device.handle)
        if found is None:
            self._notes.missing("who else computes on the devices: the driver does not tell", device.index)
        return {int(process.pid) for process in found or ()}

    def facts(self) -> list[dict[str, Any]]:
        return [device.facts for device in self._devices if not device.lost]

    def close(self) -> None:
        if self._nvml is not None:
            _asked(self._nvml, self._nvml.nvmlShutdown)


# -- what a device is, and how it fares ----------------------------------------------------------------------


def survey() -> dict[str, Any]:
    """Every device of this host with its health and who computes on it; ``error`` says why there is none."""
    try:
        nvml = load()
    except NvmlError as error:
        return {"driver": None, "devices": [], "error": str(error)}
    try:
        count = int(nvml.nvmlDeviceGetCount())
        devices = [_surveyed(nvml, index) for index in range(count)]
        return {"driver": _driver(nvml), "devices": devices, "error": None}
    except nvml.NVMLError as error:
        return {"driver": None, "devices": [], "error": f"NVML: {error}"}
    finally:
        _asked(nvml, nvml.nvmlShutdown)


def _surveyed(nvml: Any, index: int) -> dict[str, Any]:
    """One that cannot be read says so itself, in its own ``error``."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        _asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, forgiven=_NEVER)
    except nvml.NVMLError as error:
        return described(index, {}, processes=[], throttle=[], error=str(error))
    bits = (_asked(nvml, _scalar(nvml, _REASONS_CALLS, wide=True), handle) or (0,))[0]
    return {
        **_facts(nvml, index, handle),
        PROCESSES: [_process(one) for one in _computing(nvml, handle) or ()],
        "throttle": throttle_names(bits & ~HARMLESS).split("+") if bits & ~HARMLESS else [],
        "error": None,
    }


def _facts(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    memory = _asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    usual = _asked(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    pci = _asked(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    told = {
        **_standing(nvml, handle),
        **_bus(nvml, handle),
        "memory_total": memory.total // MIB if memory else None,
        "usual_power_limit": usual / 1000 if usual else None,
        "pci": _text(pci.busId) if pci else None,
        # What device and host can do together: a slot of half the lanes is no link that trained down.
        "best_pcie_generation": _asked(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "best_pcie_width": _asked(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    }
    return described(index, told)


def _standing(nvml: Any, handle: Any) -> dict[str, Any]:
    """What stays as it is over a round in which nothing happens."""
    texts = {
        "name": nvml.nvmlDeviceGetName,
        "uuid": nvml.nvmlDeviceGetUUID,
        "serial": nvml.nvmlDeviceGetSerial,
        "firmware": nvml.nvmlDeviceGetVbiosVersion,
    }
    limit = _asked(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    parts = _asked(nvml, nvml.nvmlDeviceGetMigMode, handle)
    rows = _asked(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
    return {
        **{name: _text(_asked(nvml, call, handle)) for name, call in texts.items()},
        "power_limit": limit / 1000 if limit else None,
        "partitioned": bool(parts[0]) if parts else None,
        **_links(nvml, handle),
        "ecc_corrected": _asked(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, _CORRECTED, _SINCE_BOOT),
        "ecc_uncorrected": _asked(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _SINCE_BOOT),
        "row_remap_pending": bool(rows[2]) if rows else None,
        "row_remap_failed": bool(rows[3]) if rows else None,
    }


def _bus(nvml: Any, handle: Any) -> dict[str, Any]:
    return {
        "pcie_generation": _asked(nvml, nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        "pcie_width": _asked(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
    }


def _links(nvml: Any, handle: Any) -> dict[str, Any]:
    """Those to other devices. One that a device has not got is an error, one with nothing at its end is down."""
    states = [_asked(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    there = [bool(state) for state in states if state is not None]
    if not there:
        return {}
    return {"links": sum(there), "links_down": len(there) - sum(there), "link_errors": _link_errors(nvml, handle)}


def _link_errors(nvml: Any, handle: Any) -> int | None:
    told = _asked(nvml, nvml.nvmlDeviceGetFieldValues, handle, [getattr(nvml, name) for name in _LINK_ERRORS]) or ()
    counts = [int(one.value.ullVal) for one in told if one.nvmlReturn == 0]
    return sum(counts) if counts else None


def _driver(nvml: Any) -> str | None:
    return _text(_asked(nvml, nvml.nvmlSystemGetDriverVersion))


def _computing(nvml: Any, handle: Any) -> list[Any] | None:
    """Who computes on it, also those that share it by a server; None where nobody can be told."""
    told = [_first(nvml, calls, handle) for calls in (_PROCESSES_CALLS, _SHARING_CALLS)]
    return None if told[0] is None else [process for found in told for process in found or ()]


def _first(nvml: Any, names: Sequence[str], handle: Any) -> Any:
    """The answer of the first that gives one."""
    answers = (_asked(nvml, getattr(nvml, name), handle) for name in names if hasattr(nvml, name))
    return next((answer for answer in answers if answer is not None), None)


def _process(told: Any) -> dict[str, Any]:
    """Memory in MiB, None where it is not told."""
    memory = told.usedGpuMemory
    return {
        "pid": told.pid,
        "name": _process_name(told.pid),
        "memory": memory // MIB if memory is not None else None,
    }


def _process_name(pid: int) -> str:
    return content(f"/proc/{pid}/comm").strip() or "?"


def _asked(nvml: Any, call: Callable[..., Any], *values: Any, forgiven: Sequence[int] | None = None) -> Any:
    """Its answer, or None where the library or the device has none; other errors than those forgiven are raised."""
    try:
        return call(*values)
    except nvml.NVMLError as error:
        if forgiven is not None and error.value not in forgiven:
            raise
        return None


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
