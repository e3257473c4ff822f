"""Devices by nvidia-smi, where NVML's library cannot be loaded: the sampler takes this in its place.

A process a sample, and nothing of links, memory rows, reasons for low clocks or who computes: NVML is what figures
should come from.
"""

from __future__ import annotations

from flagperf_driver.node.sampling.tool_output import NotUnderstood, figure, index, known, pci, refused

FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "temperature.gpu",
    "power.draw",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "clocks.sm",
    "clocks.mem",
    "pci.bus_id",
    "vbios_version",
    "enforced.power.limit",
    "power.default_limit",
    "mig.mode.current",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "pcie.link.width.current",
    "pcie.link.width.max",
)
COMMAND = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]

_FIGURES = {
    "temperature": "temperature.gpu",
    "power": "power.draw",
    "memory_used": "memory.used",
    "memory_total": "memory.total",
    "utilization": "utilization.gpu",
    "sm_clock": "clocks.sm",
    "memory_clock": "clocks.mem",
    "power_limit": "enforced.power.limit",
    "usual_power_limit": "power.default_limit",
    "ecc_corrected": "ecc.errors.corrected.volatile.total",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
    "pcie_width": "pcie.link.width.current",
    "best_pcie_width": "pcie.link.width.max",
}


def parse(text: str) -> list[dict[str, object]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or index(lines[0].split(",")[0]) is None:
        raise refused(text, "no device found by nvidia-smi")
    answering = [reading for reading in map(_device, lines) if len(reading) > 1]
    if not answering:
        raise refused(text, "no device that answers")
    return answering


def _device(line: str) -> dict[str, object]:
    told = [part.strip() for part in line.split(",")]
    number = index(told[0])
    if len(told) != len(FIELDS) or number is None:
        raise NotUnderstood(f"{line[:80]!r} is not {len(FIELDS)} fields, of which the first is the device's number")
    said = dict(zip(FIELDS, told))
    return known(
        device=number,
        name=_word(said["name"]),
        uuid=_word(said["uuid"]),
        driver=_word(said["driver_version"]),
        pci=pci(said["pci.bus_id"]),
        firmware=_word(said["vbios_version"]),
        partitioned={"Enabled": True, "Disabled": False}.get(said["mig.mode.current"]),
        **{reading: figure(said[field]) for reading, field in _FIGURES.items()},
    )


def _word(told: str) -> str | None:
    """What stands in brackets is why there is none: [N/A], [GPU is lost]."""
    return None if told.startswith("[") else told
