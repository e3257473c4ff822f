"""The quantities that NVML samples, each with its interval."""

from __future__ import annotations

import ctypes
import functools
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
"""NVML's bits for the reasons of reduced clocks."""
HARMLESS = sum(bit for bit, name in REASONS.items() if name in NO_THROTTLING)
_FAST_S, _SLOW_S = 0.1, 1.0
_SM, _MEMORY = 1, 2
REASONS_CALLS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

Read = Callable[[Any], Sequence[Cell]]


class NvmlCall:
    """One NVML call: its interval, and the columns that its result fills, which are beside each other."""

    def __init__(self, every_s: float, names: Sequence[str], read: Read) -> None:
        self.every_s = every_s
        self.names = names
        first = QUANTITIES.index(names[0])
        assert tuple(names) == QUANTITIES[first : first + len(names)]
        self.columns = slice(first, first + len(names))
        self.read = read


def quantities(nvml: Any) -> list[NvmlCall]:
    """Return all quantities. Frequent calls avoid pynvml's wrappers, which take longer than the library itself.

    The throughput of PCIe is left out: the driver measures for 20 ms in each call, 320 ms for eight devices.
    """
    memory_clock, energy = nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetTotalEnergyConsumption
    return [
        NvmlCall(0.0, ["power"], scalar(nvml, ["nvmlDeviceGetPowerUsage"], lambda milliwatts: milliwatts / 1000)),
        NvmlCall(_FAST_S, ["utilization"], _utilization(nvml)),
        NvmlCall(_FAST_S, ["sm_clock"], scalar(nvml, ["nvmlDeviceGetClockInfo"], arguments=(_SM,))),
        NvmlCall(_FAST_S, ["throttle"], scalar(nvml, REASONS_CALLS, throttle_names, wide=True)),
        NvmlCall(_SLOW_S, ["temperature"], _temperature(nvml)),
        NvmlCall(_SLOW_S, ["memory_used", "memory_total"], _memory(nvml)),
        NvmlCall(_SLOW_S, ["memory_clock"], lambda handle: (memory_clock(handle, _MEMORY),)),
        NvmlCall(_SLOW_S, ["energy"], lambda handle: (energy(handle) / 1000,)),
    ]


@functools.lru_cache(maxsize=None)  # the same few sets of reasons in every sample
def throttle_names(bits: int) -> str:
    """Return the names of the reasons joined by "+", or "none"; an unknown bit as a number."""
    if not bits:
        return "none"
    set_bits = [1 << place for place in range(bits.bit_length()) if bits & 1 << place]
    return "+".join(REASONS.get(bit, hex(bit)) for bit in set_bits)


def scalar(
    nvml: Any,
    names: Sequence[str],
    form: Callable[[int], Cell] = int,
    *,
    arguments: tuple[int, ...] = (),
    wide: bool = False,
) -> Read:
    """Return a function that reads one number with the first of the NVML functions that the library has."""
    function = _function(nvml, names)
    answer = ctypes.c_ulonglong() if wide else ctypes.c_uint()
    pointer = ctypes.byref(answer)

    def read(handle: Any) -> Sequence[Cell]:
        code = function(handle, *arguments, pointer)
        if code:
            raise nvml.NVMLError(code)
        return (form(answer.value),)

    return read


def _utilization(nvml: Any) -> Read:
    function = _function(nvml, ["nvmlDeviceGetUtilizationRates"])
    answer = (ctypes.c_uint * 2)()  # of the chip and of its memory bus

    def read(handle: Any) -> Sequence[Cell]:
        code = function(handle, answer)
        if code:
            raise nvml.NVMLError(code)
        return (answer[0],)

    return read


def _function(nvml: Any, names: Sequence[str]) -> Callable[..., int]:
    """Return the library's function; if it is missing, a function that returns NVML's error for that."""
    for name in names:
        try:
            function: Callable[..., int] = nvml._nvmlGetFunctionPointer(name)
        except nvml.NVMLError:
            continue
        return function
    return lambda *_: int(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _temperature(nvml: Any) -> Read:
    """Return a function that reads the temperature: newer libraries lack the first call, older the second."""
    first, second = nvml.nvmlDeviceGetTemperature, getattr(nvml, "nvmlDeviceGetTemperatureV", None)
    try:
        nvml._nvmlGetFunctionPointer("nvmlDeviceGetTemperature")
    except nvml.NVMLError:
        first = second or first
    return lambda handle: (first(handle, 0),)


def _memory(nvml: Any) -> Read:
    """Return a function that reads the memory, without the driver's reserved part if the library can exclude it."""
    version: list[Any] = [getattr(nvml, "nvmlMemory_v2", None)]

    def read(handle: Any) -> Sequence[Cell]:
        try:
            info = nvml.nvmlDeviceGetMemoryInfo(handle, version[0])
        except nvml.NVMLError as error:
            if version[0] is None or error.value not in NEVER:
                raise
            version[0] = None
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return info.used // MIB, info.total // MIB

    return read
