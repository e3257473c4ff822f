"""Read devices from the CSV of ``hl-smi -Q``; a line with the names and units of the columns comes first.

index, module_id, ..., memory.total [MiB]
0, 1, ..., 131072 MiB
"""

from __future__ import annotations

from typing import Iterator

from flagperf_driver.node.sampling.tool_output import NotUnderstood, figure, index, known, pci, refused

_COLUMNS = (
    "index", "module_id", "bus_id", "name", "uuid", "driver_version", "memory.total", "memory.used", "power.draw",
    "power.max", "temperature.aip", "utilization.aip",
)  # fmt: skip
COMMAND = ["hl-smi", "-Q", ",".join(_COLUMNS), "-f", "csv"]


def parse(text: str) -> list[dict[str, object]]:
    devices = [_device(number, row) for number, row in _rows(text)]
    if not devices:
        raise refused(text, "no device found by hl-smi")
    return devices


def _rows(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each device's line below the names, and the number of its module, by which a case selects it."""
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if cells[0] == "index":
            head = [cell.split(" ")[0] for cell in cells]
        elif head:
            row = dict(zip(head, cells))
            number = index(row.get("module_id", row["index"]))
            if len(cells) != len(head) or number is None:
                raise NotUnderstood(f"{line[:40]!r} is not the line of a device; expected {len(head)} cells")
            yield number, row


def _device(number: int, row: dict[str, str]) -> dict[str, object]:
    return known(
        device=number,
        name=row.get("name"),
        uuid=row.get("uuid"),
        driver=row.get("driver_version"),
        pci=pci(row.get("bus_id")),
        power_limit=figure(row.get("power.max"), "W"),
        temperature=figure(row.get("temperature.aip"), "C"),
        power=figure(row.get("power.draw"), "W"),
        memory_used=figure(row.get("memory.used"), "MiB"),
        memory_total=figure(row.get("memory.total"), "MiB"),
        utilization=figure(row.get("utilization.aip"), "%"),
    )
