"""Read devices from the JSON of ``amd-smi static`` and then of ``amd-smi metric``.

ROCm 6 prints a list of the devices, ROCm 7 prints ``{"gpu_data": [...]}``. A reading is ``{"value": 42, "unit": "C"}``,
a number, or ``"N/A"``.
"""

from __future__ import annotations

import json
import re
from typing import Any, Iterator

from flagperf_driver.node.sampling.tool_output import NotUnderstood, figure, known, pci, refused

COMMAND = ["sh", "-c", "amd-smi static --json && amd-smi metric --json"]  # only static has the name and the bus
ENVIRONMENT = {"PATH": "$PATH:/opt/rocm/bin"}
_DOCUMENT = re.compile(r"^[\[{]", re.MULTILINE)
_BY_PCI_ID = {
    "0x7408": "AMD Instinct MI250X",
    "0x74a1": "AMD Instinct MI300X",
    "0x74a5": "AMD Instinct MI325X",
    "0x75a3": "AMD Instinct MI355X",
}
"""Names of the devices that firmware or an old list of PCI ids may name differently."""
_VIOLATIONS = {
    "prochot": "prochot",
    "ppt": "sw_power_cap",
    "socket_thermal": "socket_thermal",
    "vr_thermal": "vr_thermal",
    "hbm_thermal": "hbm_thermal",
}


def parse(text: str) -> list[dict[str, object]]:
    devices: dict[int, dict[str, Any]] = {}
    for entry in _entries(text):
        if type(entry.get("gpu")) is int:
            devices.setdefault(entry["gpu"], {}).update(entry)
    if not devices:
        raise refused(text, "no device found by amd-smi")
    return [_device(number, entry) for number, entry in devices.items()]


def _entries(text: str) -> Iterator[dict[str, Any]]:
    """Yield the entry of each device in each JSON document; warnings may precede a document."""
    end = 0
    while start := _DOCUMENT.search(text, end):
        try:
            body, end = json.JSONDecoder().raw_decode(text, start.start())
        except (ValueError, RecursionError) as error:
            raise NotUnderstood(f"invalid JSON: {error}") from None
        entries = body.get("gpu_data") if isinstance(body, dict) else body
        yield from (entry for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else ()


def _device(number: int, entry: dict[str, Any]) -> dict[str, object]:
    asic, bus, pcie, limit = (_table(entry, name) for name in ("asic", "bus", "pcie", "limit"))
    temperature, memory, ecc = (_table(entry, name) for name in ("temperature", "mem_usage", "ecc"))
    clock, driver = _table(entry, "clock"), _table(entry, "driver")
    hotspot = _figure(temperature.get("hotspot"), "C")
    limits = (_figure(limit.get("socket_power"), "W"), _figure(_table(limit, "ppt0").get("socket_power_limit"), "W"))
    partition = _text(_table(entry, "partition").get("compute_partition"))
    return known(
        device=number,
        name=_BY_PCI_ID.get(_text(asic.get("device_id")) or "") or _text(asic.get("market_name")),
        uuid=_text(asic.get("asic_serial")),
        serial=_text(_table(entry, "board").get("product_serial")),
        driver=_text(driver.get("version")),
        firmware=_text((_table(entry, "ifwi") or _table(entry, "vbios")).get("version")),
        pci=pci(bus.get("bdf")),
        partitioned=None if partition is None else partition != "SPX",
        pcie_width=_figure(pcie.get("width")),
        best_pcie_width=_figure(bus.get("max_pcie_width")),
        power_limit=next((reading for reading in limits if reading is not None), None),
        ecc_corrected=_figure(ecc.get("total_correctable_count")),
        ecc_uncorrected=_figure(ecc.get("total_uncorrectable_count")),
        temperature=_figure(temperature.get("edge"), "C") if hotspot is None else hotspot,
        power=_figure(_table(entry, "power").get("socket_power"), "W"),
        memory_used=_figure(memory.get("used_vram"), "MB"),  # amd-smi divides by 1024 * 1024
        memory_total=_figure(memory.get("total_vram"), "MB"),
        utilization=_figure(_table(entry, "usage").get("gfx_activity"), "%"),
        sm_clock=_figure(_table(clock, "gfx_0").get("clk"), "MHz"),
        memory_clock=_figure(_table(clock, "mem_0").get("clk"), "MHz"),
        energy=_figure(_table(_table(entry, "energy"), "total_energy_consumption"), "J") or None,  # 0: no counter
        throttle=_throttle(_table(entry, "throttle")),
    )


def _table(entry: dict[str, Any], name: str) -> dict[str, Any]:
    value = entry.get(name)
    return value if isinstance(value, dict) else {}


def _figure(reading: object, unit: str = "") -> float | None:
    if isinstance(reading, dict):
        value, name = reading.get("value"), reading.get("unit")
        return figure(f"{value} {name}", unit) if _is_plain(value) and _is_plain(name) else None
    return figure(str(reading)) if _is_plain(reading) else None


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float, str))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value != "N/A" else None


def _throttle(table: dict[str, Any]) -> str | None:
    """Return the reasons of a device that reports each of them, as those since MI300X do."""
    states = {reason: table.get(f"{name}_violation_status") for name, reason in _VIOLATIONS.items()}
    reported = [reason for reason, state in states.items() if state in ("ACTIVE", "NOT ACTIVE")]
    return "+".join(reason for reason in reported if states[reason] == "ACTIVE") or "none" if reported else None
