"""Devices by hy-smi as JSON; where there is only the toolkit's rocm-smi, by the table it prints."""

from __future__ import annotations

import json
import os
import re
from shutil import which

from flagperf_driver.node.sampling.tool_output import NotUnderstood, figure, index, known, pci, refused

ENVIRONMENT = {"PATH": "$PATH:/opt/hyhal/bin:/opt/dtk/bin"}
_SHOWN = ("id", "power", "serial", "use", "temp", "productname", "uniqueid", "bus", "vbios", "driverversion")
_AS_JSON = ["hy-smi", *(f"--show{each}" for each in _SHOWN), "--showmeminfo", "vram", "--json"]
COMMAND = _AS_JSON if which("hy-smi", path=os.path.expandvars(ENVIRONMENT["PATH"])) else ["rocm-smi"]
_CARD = re.compile(r"card([0-9]{1,4})")
_SENSORS = ("core", "junction", "edge")
_BYTES_OF_A_MIB = 1 << 20
_LEAST_COLUMNS = 8


def parse(text: str) -> list[dict[str, object]]:
    found = _from_json(text) if "{" in text else _from_table(text)
    if not found:
        raise refused(text, "no device found by hy-smi or rocm-smi")
    return found


def _from_json(text: str) -> list[dict[str, object]]:
    """Warnings may stand before it."""
    try:
        told = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(f"it is no JSON: {error}") from None
    host = told.get("system")
    driver = _text(host.get("Driver version")) if isinstance(host, dict) else None
    cards = ((_CARD.fullmatch(name), card) for name, card in told.items())
    return [_card(int(match[1]), card, driver) for match, card in cards if match and isinstance(card, dict)]


def _card(number: int, told: dict[str, object], driver: str | None) -> dict[str, object]:
    temperatures = (_figure(told.get(f"Temperature (Sensor {sensor}) (C)")) for sensor in _SENSORS)
    loads = (_figure(told.get(f"{kind} use (%)")) for kind in ("HCU", "DCU", "GPU"))
    return known(
        device=number,
        name=_text(told.get("Card Series")),
        uuid=_text(told.get("Unique ID")) or _text(told.get("Serial Number")),
        driver=_text(told.get("Driver version")) or driver,
        firmware=_text(told.get("VBIOS version")),
        pci=pci(told.get("PCI Bus")),
        temperature=next((each for each in temperatures if each is not None), None),
        power=_figure(told.get("Average Graphics Package Power (W)")),
        memory_used=_mib(told, "vram Total Used Memory"),
        memory_total=_mib(told, "vram Total Memory"),
        utilization=next((each for each in loads if each is not None), None),
    )


def _figure(value: object) -> float | None:
    """Older tools give numbers, newer ones texts."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return figure(str(value) if is_number else value)


def _mib(told: dict[str, object], name: str) -> float | None:
    mib, size = _figure(told.get(f"{name} (MiB)")), _figure(told.get(f"{name} (B)"))
    return size / _BYTES_OF_A_MIB if mib is None and size is not None else mib


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _from_table(text: str) -> list[dict[str, object]]:
    """DCU Temp AvgPwr Perf PwrCap VRAM% DCU% Mode: of memory it tells the share alone."""
    rows = [line.split() for line in text.splitlines()]
    return [_row(row) for row in rows if len(row) >= _LEAST_COLUMNS and index(row[0]) is not None]


def _row(row: list[str]) -> dict[str, object]:
    return known(
        device=index(row[0]),
        temperature=figure(row[1], "C"),
        power=figure(row[2], "W"),
        power_limit=figure(row[4], "W"),
        utilization=figure(row[6], "%"),
    )
