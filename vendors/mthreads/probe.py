"""Devices by ``mthreads-gmi -q``: after a line that begins with GPU, a device's readings, one on a line."""

from __future__ import annotations

import re

from flagperf_driver.node.sampling.tool_output import figure, known, pci, refused

COMMAND = ["mthreads-gmi", "-q"]
_DEVICE = re.compile(r"GPU\s*(?:([0-9]{1,3})\s+)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:\S*)")
_DRIVER = "Driver Version"


def parse(text: str) -> list[dict[str, object]]:
    driver = None
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        device = _DEVICE.match(line.strip())
        if device:
            found.append({"number": device[1] or str(len(found)), "address": device[2]})
            continue
        label, _, value = (part.strip() for part in line.partition(":"))
        if value and found:
            found[-1].setdefault(label, value)  # the first of a name: memory comes before parts of it
        elif label == _DRIVER:
            driver = value
    if not found:
        raise refused(text, "no device found by mthreads-gmi -q")
    return [_device(told, driver) for told in found]


def _device(told: dict[str, str], driver: str | None) -> dict[str, object]:
    return known(
        device=int(told["number"]),
        name=told.get("Product Name"),
        pci=pci(told["address"]),
        uuid=told.get("GPU UUID"),
        driver=told.get(_DRIVER, driver),
        temperature=figure(told.get("GPU Current Temp"), "C"),
        power=figure(told.get("Power Draw"), "W"),
        memory_used=figure(told.get("Used"), "MiB"),
        memory_total=figure(told.get("Total"), "MiB"),
        utilization=figure(told.get("Gpu"), "%"),
    )
