"""The quantities that NVML samples, and how often each is worth a call."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Sequence

from flagperf_driver.node.sampling.devices import NO_THROTTLING, QUANTITIES, Cell
from flagperf_driver.node.sampling.nvml.library import MIB, NEVER

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
_FAST_S, _SLOW_S = 0.1, 1.0
_SM, _MEMORY = 1, 2
REASONS_CALLS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

Read = Callable[[Any], Sequence[Cell]]


class Quantity:
    """One question to a device: the columns that its answer fills, and how often it is worth asking."""

    def __init__(self, every_s: float, names: Sequence[str], read: Read) -> None:
        self.every_s = every_s
        self.names = names
        self.columns = [QUANTITIES.index(name) for name in names]
        self.read = read


def quantities(nvml: Any) -> list[Quantity]:
    """What is asked most often is asked without pynvml's wrappers, which take longer than the library.

    The throughput of PCIe is left out: the driver counts for 20 ms in each call, 320 ms a sample of eight devices.
    """
    memory_clock, energy = nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetTotalEnergyConsumption
    return [
        Quantity(0.0, ["power"], scalar(nvml, ["nvmlDeviceGetPowerUsage"], lambda milliwatts: milliwatts / 1000)),
        Quantity(_FAST_S, ["utilization"], _utilization(nvml)),
        Quantity(_FAST_S, ["sm_clock"], scalar(nvml, ["nvmlDeviceGetClockInfo"], given=(_SM,))),
        Quantity(_FAST_S, ["throttle"], scalar(nvml, REASONS_CALLS, throttle_names, wide=True)),
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


def scalar(
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
            if version[0] is None or error.value not in NEVER:
                raise
            version[0] = None
            found = nvml.nvmlDeviceGetMemoryInfo(handle)
        return found.used // MIB, found.total // MIB

    return read
