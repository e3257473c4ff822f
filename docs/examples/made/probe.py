"""Devices by made_smi.py's table."""

from __future__ import annotations

from pathlib import Path

from flagperf_driver.node.sampling.tool_output import figure, known, table, used_of_total

COMMAND = ["python3", str(Path(__file__).with_name("made_smi.py"))]
EVERY_S = 1.0


def parse(text: str) -> list[dict[str, object]]:
    return [_device(row) for row in table(text, "Device", "Name", "Temp", "Power", "Memory", "Util")]


def _device(row: list[str]) -> dict[str, object]:
    used, total = used_of_total(row[4], "MiB")
    return known(
        device=int(row[0]),
        name=row[1],
        temperature=figure(row[2], "C"),
        power=figure(row[3], "W"),
        memory_used=used,
        memory_total=total,
        utilization=figure(row[5], "%"),
    )
