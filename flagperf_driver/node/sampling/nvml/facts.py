"""Read a device's identity, health and processes with NVML."""

from __future__ import annotations

from typing import Any, Sequence

from flagperf_driver.node.sampling.health import PROCESSES, describe_device
from flagperf_driver.node.sampling.host_counters import read_text
from flagperf_driver.node.sampling.nvml.library import MIB, NEVER, NvmlError, ask, load, text
from flagperf_driver.node.sampling.nvml.quantities import HARMLESS, REASONS_CALLS, scalar, throttle_names

_CORRECTED, _UNCORRECTED, _SINCE_BOOT = 0, 1, 0
_LINK_ERRORS = tuple(
    f"NVML_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL" for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
)
"""Counters of all links of a device, read in one call; the counters of each link would take four calls."""
_PROCESSES_CALLS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
_SHARING_CALLS = ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2")


def survey() -> dict[str, Any]:
    """Return every device of this host with its health and processes; ``error`` is the reason if NVML does not work."""
    try:
        nvml = load()
    except NvmlError as error:
        return {"driver": None, "devices": [], "error": str(error)}
    try:
        count = int(nvml.nvmlDeviceGetCount())
        devices = [_describe(nvml, index) for index in range(count)]
        return {"driver": driver_version(nvml), "devices": devices, "error": None}
    except nvml.NVMLError as error:
        return {"driver": None, "devices": [], "error": f"NVML: {error}"}
    finally:
        ask(nvml, nvml.nvmlShutdown)


def _describe(nvml: Any, index: int) -> dict[str, Any]:
    """Return the facts of a device; if it cannot be read, with the reason as ``error``."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, forgiven=NEVER)
    except nvml.NVMLError as error:
        return describe_device(index, {}, processes=[], throttle=[], error=str(error))
    bits = (ask(nvml, scalar(nvml, REASONS_CALLS, wide=True), handle) or (0,))[0]
    return {
        **device_facts(nvml, index, handle),
        PROCESSES: [_process(process) for process in computing_processes(nvml, handle) or ()],
        "throttle": throttle_names(bits & ~HARMLESS).split("+") if bits & ~HARMLESS else [],
        "error": None,
    }


def device_facts(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    memory = ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    usual = ask(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    pci = ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    facts = {
        **stable_facts(nvml, handle),
        **pcie_bus(nvml, handle),
        "memory_total": memory.total // MIB if memory else None,
        "usual_power_limit": usual / 1000 if usual else None,
        "pci": text(pci.busId) if pci else None,
        # The best that device and slot support together: a slot with half the lanes is not a degraded link.
        "best_pcie_generation": ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "best_pcie_width": ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    }
    return describe_device(index, facts)


def stable_facts(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return the facts that do not change in a normal round."""
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
    """Count the active and inactive links; NVML returns an error for a link that the device does not have."""
    states = [ask(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    active = [bool(state) for state in states if state is not None]
    if not active:
        return {}
    return {"links": sum(active), "links_down": len(active) - sum(active), "link_errors": _link_errors(nvml, handle)}


def _link_errors(nvml: Any, handle: Any) -> int | None:
    fields = ask(nvml, nvml.nvmlDeviceGetFieldValues, handle, [getattr(nvml, name) for name in _LINK_ERRORS]) or ()
    counts = [int(field.value.ullVal) for field in fields if field.nvmlReturn == 0]
    return sum(counts) if counts else None


def driver_version(nvml: Any) -> str | None:
    return text(ask(nvml, nvml.nvmlSystemGetDriverVersion))


def computing_processes(nvml: Any, handle: Any) -> list[Any] | None:
    """Return the processes on the device, including those of an MPS server; None if NVML does not report them."""
    lists = [_first(nvml, calls, handle) for calls in (_PROCESSES_CALLS, _SHARING_CALLS)]
    return None if lists[0] is None else [process for processes in lists for process in processes or ()]


def _first(nvml: Any, names: Sequence[str], handle: Any) -> Any:
    """Return the answer of the first function that is supported."""
    answers = (ask(nvml, getattr(nvml, name), handle) for name in names if hasattr(nvml, name))
    return next((answer for answer in answers if answer is not None), None)


def _process(process: Any) -> dict[str, Any]:
    """Return the pid, the name, and the memory in MiB (None if NVML does not report it)."""
    memory = process.usedGpuMemory
    return {
        "pid": process.pid,
        "name": read_text(f"/proc/{process.pid}/comm").strip() or "?",
        "memory": memory // MIB if memory is not None else None,
    }
