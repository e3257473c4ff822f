"""Read devices from hy-smi's JSON, or from the table of the toolkit's rocm-smi if hy-smi is not installed."""

from __future__ import annotations

import json
import os
import re
from shutil import which

from flagperf_driver.node.sampling.tool_output import NotUnderstood, figure, index, known, pci, refused

ENVIRONMENT = {"PATH": "$PATH:/opt/hyhal/bin:/opt/dtk/bin"}
_READINGS = ("id", "power", "serial", "use", "temp", "productname", "uniqueid", "bus", "vbios", "driverversion")
_AS_JSON = ["hy-smi", *(f"--show{reading}" for reading in _READINGS), "--showmeminfo", "vram", "--json"]
COMMAND = _AS_JSON if which("hy-smi", path=os.path.expandvars(ENVIRONMENT["PATH"])) else ["rocm-smi"]
_CARD = re.compile(r"card([0-9]{1,4})")
_SENSORS = ("core", "junction", "edge")
_BYTES_OF_A_MIB = 1 << 20
_MIN_COLUMNS = 8


def parse(text: str) -> list[dict[str, object]]:
    devices = _from_json(text) if "{" in text else _from_table(text)
    if not devices:
        raise refused(text, "no device found by hy-smi or rocm-smi")
    return devices


def _from_json(text: str) -> list[dict[str, object]]:
    """Read JSON, which may follow warnings."""
    try:
        body = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(f"invalid JSON: {error}") from None
    host = body.get("system")
    driver = _text(host.get("Driver version")) if isinstance(host, dict) else None
    cards = ((_CARD.fullmatch(name), card) for name, card in body.items())
    return [_card(int(match[1]), card, driver) for match, card in cards if match and isinstance(card, dict)]


def _card(number: int, card: dict[str, object], driver: str | None) -> dict[str, object]:
    temperatures = (_figure(card.get(f"Temperature (Sensor {sensor}) (C)")) for sensor in _SENSORS)
    loads = (_figure(card.get(f"{kind} use (%)")) for kind in ("HCU", "DCU", "GPU"))
    return known(
        device=number,
        name=_text(card.get("Card Series")),
        uuid=_text(card.get("Unique ID")) or _text(card.get("Serial Number")),
        driver=_text(card.get("Driver version")) or driver,
        firmware=_text(card.get("VBIOS version")),
        pci=pci(card.get("PCI Bus")),
        temperature=next((reading for reading in temperatures if reading is not None), None),
        power=_figure(card.get("Average Graphics Package Power (W)")),
        memory_used=_mib(card, "vram Total Used Memory"),
        memory_total=_mib(card, "vram Total Memory"),
        utilization=next((reading for reading in loads if reading is not None), None),
    )


def _figure(value: object) -> float | None:
    """Convert a value to a float; older tools print numbers, newer tools print strings."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return figure(str(value) if is_number else value)


def _mib(card: dict[str, object], name: str) -> float | None:
    mib, size = _figure(card.get(f"{name} (MiB)")), _figure(card.get(f"{name} (B)"))
    return size / _BYTES_OF_A_MIB if mib is None and size is not None else mib


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _from_table(text: str) -> list[dict[str, object]]:
    """Read a table of DCU Temp AvgPwr Perf PwrCap VRAM% DCU% Mode, which has no memory sizes."""
    rows = [line.split() for line in text.splitlines()]
    return [_row(row) for row in rows if len(row) >= _MIN_COLUMNS and index(row[0]) is not None]


def _row(row: list[str]) -> dict[str, object]:
    return known(
        device=index(row[0]),
        temperature=figure(row[1], "C"),
        power=figure(row[2], "W"),
        power_limit=figure(row[4], "W"),
        utilization=figure(row[6], "%"),
    )
