"""Read devices from ``mthreads-gmi -q``: a line that begins with GPU, then one reading per line."""

from __future__ import annotations

import re

from flagperf_driver.node.sampling.tool_output import figure, known, pci, refused

COMMAND = ["mthreads-gmi", "-q"]
_DEVICE = re.compile(r"GPU\s*(?:([0-9]{1,3})\s+)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:\S*)")
_DRIVER = "Driver Version"


def parse(text: str) -> list[dict[str, object]]:
    driver = None
    devices: list[dict[str, str]] = []
    for line in text.splitlines():
        device = _DEVICE.match(line.strip())
        if device:
            devices.append({"number": device[1] or str(len(devices)), "address": device[2]})
            continue
        label, _, value = (part.strip() for part in line.partition(":"))
        if value and devices:
            devices[-1].setdefault(label, value)  # keep the first value of a name: total memory precedes its parts
        elif label == _DRIVER:
            driver = value
    if not devices:
        raise refused(text, "no device found by mthreads-gmi -q")
    return [_device(readings, driver) for readings in devices]


def _device(readings: dict[str, str], driver: str | None) -> dict[str, object]:
    return known(
        device=int(readings["number"]),
        name=readings.get("Product Name"),
        pci=pci(readings["address"]),
        uuid=readings.get("GPU UUID"),
        driver=readings.get(_DRIVER, driver),
        temperature=figure(readings.get("GPU Current Temp"), "C"),
        power=figure(readings.get("Power Draw"), "W"),
        memory_used=figure(readings.get("Used"), "MiB"),
        memory_total=figure(readings.get("Total"), "MiB"),
        utilization=figure(readings.get("Gpu"), "%"),
    )
