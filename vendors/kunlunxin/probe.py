"""Read devices from ``xpu-smi -m``: one line per device; FlagPerf and public scripts agree on these positions."""

from __future__ import annotations

import re
from shutil import which

from flagperf_driver.node.sampling.tool_output import NotUnderstood, figure, index, known, pci, refused

# Newer drivers have xpu-smi (Intel has a tool of this name too), older drivers have xpu_smi.
COMMAND = [next(filter(which, ("xpu-smi", "xpu_smi")), "xpu-smi"), "-m"]
_NUMBER, _SERIAL, _TEMPERATURE, _POWER, _USED, _TOTAL, _UTILIZATION, _FIRMWARE = 1, 3, 4, 8, 17, 18, 19, 20
_NAME = re.compile(r'"([^"]*)"')
_MAX_WATTS = 2000.0


def parse(text: str) -> list[dict[str, object]]:
    lines = [line for line in text.splitlines() if pci(line)]
    if not lines:
        raise refused(text, "no line of xpu-smi -m that begins with a PCI address")
    return [_device(line) for line in lines]


def _device(line: str) -> dict[str, object]:
    words = line.split()
    if len(words) <= _FIRMWARE or index(words[_NUMBER]) is None:
        raise NotUnderstood(f"the line of {words[0]} is truncated: {len(words)} words; expected more than {_FIRMWARE}")
    name = _NAME.search(line)
    return known(
        device=index(words[_NUMBER]),
        name=name[1] if name else None,
        pci=pci(line),
        uuid=words[_SERIAL],
        firmware=words[_FIRMWARE],
        temperature=figure(words[_TEMPERATURE]),
        power=_watts(figure(words[_POWER])),
        memory_used=figure(words[_USED]),
        memory_total=figure(words[_TOTAL]),
        utilization=figure(words[_UTILIZATION]),
    )


def _watts(power: float | None) -> float | None:
    """Convert milliwatts, which older tools print without a unit, to watts."""
    return power / 1000 if power is not None and power > _MAX_WATTS else power
