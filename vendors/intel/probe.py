"""Read devices from the CSV of ``xpu-smi discovery`` for identity and then of ``xpu-smi dump`` for load.

Device ID,Device Name,...
0,"Intel(R) Data Center GPU Max 1550",...
Timestamp, DeviceId, TileId, GPU Power (W), ...
06:14:46.000,    0,    1, 148.20, ...

A card with two stacks, which the tool calls tiles, has a line for each; a card with one is refused with tiles.
"""

from __future__ import annotations

import csv
import re
from typing import Iterator

from flagperf_driver.node.sampling.tool_output import NotUnderstood, figure, index, known, pci, refused

_PROPERTIES = "1,2,4,5,8,9,11,16"
_READINGS = "xpu-smi dump -d -1 -m 0,1,2,3,18 -n 1"
COMMAND = ["sh", "-c", f"xpu-smi discovery --dump {_PROPERTIES} && {{ {_READINGS} -t 0,1 || {_READINGS}; }}"]
_STACKS = 2
_HEADS = ("Device ID", "Timestamp")
_UNNAMED = re.compile(r"\[0x([0-9a-f]{4})\]")
_BY_PCI_ID = {
    **dict.fromkeys(("0bd5", "0bd6"), "Intel(R) Data Center GPU Max 1550"),
    **dict.fromkeys(("0bd9", "0bda", "0bdb"), "Intel(R) Data Center GPU Max 1100"),
}
"""Names of the cards that an old driver prints as ``Intel(R) Graphics [0x0bd5]``."""


def parse(text: str) -> list[dict[str, object]]:
    cards: dict[str, dict[str, str]] = {}
    devices: dict[int, dict[str, object]] = {}  # a later line of a device replaces the former one
    for row in _rows(text):
        if "Device ID" in row:
            cards[row["Device ID"]] = row
            continue
        card, tile = index(row.get("DeviceId", "")), index(row.get("TileId", "0"))
        if card is None or tile is None or tile >= _STACKS:
            raise NotUnderstood(f"a line of xpu-smi dump is not that of a device: {list(row.values())[:3]}")
        number = card * _STACKS + tile if "TileId" in row else card
        devices[number] = _device(number, cards.get(str(card), {}), row)
    if not devices:
        raise refused(text, "no device found by xpu-smi")
    return list(devices.values())


def _rows(text: str) -> Iterator[dict[str, str]]:
    """Yield the cells of each line by the names above it."""
    head: list[str] = []
    if text and not text.endswith("\n"):
        raise NotUnderstood(f"the output is truncated at {text[-60:]!r}")
    try:
        for cells in csv.reader(text.splitlines(), skipinitialspace=True):
            if cells and cells[0] in _HEADS:
                head = cells
            elif head and cells and not cells[0].startswith("Error"):
                if len(cells) != len(head):
                    raise NotUnderstood(f"a line below {head[0]} is truncated: {','.join(cells)[:60]!r}")
                yield dict(zip(head, cells))
    except csv.Error as error:
        raise NotUnderstood(f"invalid CSV: {error}") from None


def _device(number: int, card: dict[str, str], row: dict[str, str]) -> dict[str, object]:
    name = card.get("Device Name", "")
    unnamed = _UNNAMED.search(name)
    size = figure(card.get("Memory Physical Size"), "MiB")
    used = [reading for column, reading in row.items() if column.startswith("Average % utilization")]
    return known(
        device=number,
        name=_BY_PCI_ID.get(unnamed[1], name) if unnamed else name,
        uuid=_text(card.get("SOC UUID") or card.get("UUID")),
        serial=_text(card.get("Serial Number")),
        driver=_text(card.get("Driver Version")),
        firmware=_text(card.get("GFX Firmware Version")),
        pci=pci(card.get("PCI BDF Address")),
        temperature=figure(row.get("GPU Core Temperature (Celsius Degree)")),
        power=figure(row.get("GPU Power (W)")),
        memory_used=figure(row.get("GPU Memory Used (MiB)")),
        memory_total=size / _STACKS if size is not None and "TileId" in row else size,
        utilization=figure(used[0]) if used else figure(row.get("GPU Utilization (%)")),
        sm_clock=figure(row.get("GPU Frequency (MHz)")),
    )


def _text(cell: str | None) -> str | None:
    return None if cell in ("N/A", "unknown") else cell
