"""What NVML reports of a device beside its quantities: what the device is, its health and its processes."""

from __future__ import annotations

from typing import Any, Sequence

from flagperf_driver.node.sampling.health import PROCESSES, described
from flagperf_driver.node.sampling.host import content
from flagperf_driver.node.sampling.nvml.library import MIB, NEVER, NvmlError, ask, load, text
from flagperf_driver.node.sampling.nvml.quantities import HARMLESS, REASONS_CALLS, scalar, throttle_names

_CORRECTED, _UNCORRECTED, _SINCE_BOOT = 0, 1, 0
_LINK_ERRORS = tuple(
    f"NVML_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL" for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
)
"""Of all links of a device in one call, where each link's own counters would take four calls."""
_PROCESSES_CALLS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
_SHARING_CALLS = ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2")


def survey() -> dict[str, Any]:
    """Every device of this host with its health and who computes on it; ``error`` says why there is none."""
    try:
        nvml = load()
    except NvmlError as error:
        return {"driver": None, "devices": [], "error": str(error)}
    try:
        count = int(nvml.nvmlDeviceGetCount())
        devices = [_surveyed(nvml, index) for index in range(count)]
        return {"driver": driver_version(nvml), "devices": devices, "error": None}
    except nvml.NVMLError as error:
        return {"driver": None, "devices": [], "error": f"NVML: {error}"}
    finally:
        ask(nvml, nvml.nvmlShutdown)


def _surveyed(nvml: Any, index: int) -> dict[str, Any]:
    """One that cannot be read says so itself, in its own ``error``."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, forgiven=NEVER)
    except nvml.NVMLError as error:
        return described(index, {}, processes=[], throttle=[], error=str(error))
    bits = (ask(nvml, scalar(nvml, REASONS_CALLS, wide=True), handle) or (0,))[0]
    return {
        **device_facts(nvml, index, handle),
        PROCESSES: [_process(one) for one in computing_processes(nvml, handle) or ()],
        "throttle": throttle_names(bits & ~HARMLESS).split("+") if bits & ~HARMLESS else [],
        "error": None,
    }


def device_facts(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    memory = ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    usual = ask(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    pci = ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    told = {
        **standing(nvml, handle),
        **pcie_bus(nvml, handle),
        "memory_total": memory.total // MIB if memory else None,
        "usual_power_limit": usual / 1000 if usual else None,
        "pci": text(pci.busId) if pci else None,
        # What device and host can do together: a slot of half the lanes is no link that trained down.
        "best_pcie_generation": ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "best_pcie_width": ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    }
    return described(index, told)


def standing(nvml: Any, handle: Any) -> dict[str, Any]:
    """What stays as it is over a round in which nothing happens."""
    texts = {
        "name": nvml.nvmlDeviceGetName,
        "uuid": nvml.nvmlDeviceGetUUID,
        "serial": nvml.nvmlDeviceGetSerial,
        "firmware": nvml.nvmlDeviceGetVbiosVersion,
    }
    limit = ask(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    parts = ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    rows = ask(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
    return {
        **{name: text(ask(nvml, call, handle)) for name, call in texts.items()},
        "power_limit": limit / 1000 if limit else None,
        "partitioned": bool(parts[0]) if parts else None,
        **_links(nvml, handle),
        "ecc_corrected": ask(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, _CORRECTED, _SINCE_BOOT),
        "ecc_uncorrected": ask(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _SINCE_BOOT),
        "row_remap_pending": bool(rows[2]) if rows else None,
        "row_remap_failed": bool(rows[3]) if rows else None,
    }


def pcie_bus(nvml: Any, handle: Any) -> dict[str, Any]:
    return {
        "pcie_generation": ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        "pcie_width": ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
    }


def _links(nvml: Any, handle: Any) -> dict[str, Any]:
    """Those to other devices. One that a device has not got is an error, one with nothing at its end is down."""
    states = [ask(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    there = [bool(state) for state in states if state is not None]
    if not there:
        return {}
    return {"links": sum(there), "links_down": len(there) - sum(there), "link_errors": _link_errors(nvml, handle)}


def _link_errors(nvml: Any, handle: Any) -> int | None:
    told = ask(nvml, nvml.nvmlDeviceGetFieldValues, handle, [getattr(nvml, name) for name in _LINK_ERRORS]) or ()
    counts = [int(one.value.ullVal) for one in told if one.nvmlReturn == 0]
    return sum(counts) if counts else None


def driver_version(nvml: Any) -> str | None:
    return text(ask(nvml, nvml.nvmlSystemGetDriverVersion))


def computing_processes(nvml: Any, handle: Any) -> list[Any] | None:
    """Who computes on it, also those that share it by a server; None where nobody can be told."""
    told = [_first(nvml, calls, handle) for calls in (_PROCESSES_CALLS, _SHARING_CALLS)]
    return None if told[0] is None else [process for found in told for process in found or ()]


def _first(nvml: Any, names: Sequence[str], handle: Any) -> Any:
    """The answer of the first that gives one."""
    answers = (ask(nvml, getattr(nvml, name), handle) for name in names if hasattr(nvml, name))
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
