"""Read devices from nvidia-smi; the sampler uses this if NVML's library cannot be loaded.

nvidia-smi takes one process per sample and reports no links, memory rows, throttle reasons or processes, so NVML is
preferred.
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
    devices = [reading for reading in map(_device, lines) if len(reading) > 1]
    if not devices:
        raise refused(text, "no device with readings")
    return devices


def _device(line: str) -> dict[str, object]:
    cells = [cell.strip() for cell in line.split(",")]
    number = index(cells[0])
    if len(cells) != len(FIELDS) or number is None:
        raise NotUnderstood(f"{line[:80]!r}: expected {len(FIELDS)} fields, the first a device number")
    values = dict(zip(FIELDS, cells))
    return known(
        device=number,
        name=_word(values["name"]),
        uuid=_word(values["uuid"]),
        driver=_word(values["driver_version"]),
        pci=pci(values["pci.bus_id"]),
        firmware=_word(values["vbios_version"]),
        partitioned={"Enabled": True, "Disabled": False}.get(values["mig.mode.current"]),
        **{reading: figure(values[field]) for reading, field in _FIGURES.items()},
    )


def _word(cell: str) -> str | None:
    """Return the value of a cell; None for a reason in brackets, such as [N/A] or [GPU is lost]."""
    return None if cell.startswith("[") else cell
