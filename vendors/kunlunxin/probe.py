"""Devices by ``xpu-smi -m``: a line of positions for each, of which public scripts and FlagPerf agree on these."""

from __future__ import annotations

import re
from shutil import which

from flagperf_driver.node.sampling.tool_output import NotUnderstood, figure, index, known, pci, refused

# Newer drivers have xpu-smi, as another maker's tool is called too; older ones have xpu_smi.
COMMAND = [next(filter(which, ("xpu-smi", "xpu_smi")), "xpu-smi"), "-m"]
_NUMBER, _SERIAL, _TEMPERATURE, _POWER, _USED, _TOTAL, _UTILIZATION, _FIRMWARE = 1, 3, 4, 8, 17, 18, 19, 20
_NAME = re.compile(r'"([^"]*)"')
_MORE_WATTS_THAN_A_CARD_TAKES = 2000.0


def parse(text: str) -> list[dict[str, object]]:
    lines = [line for line in text.splitlines() if pci(line)]
    if not lines:
        raise refused(text, "no line of xpu-smi -m that begins with a PCI address")
    return [_device(line) for line in lines]


def _device(line: str) -> dict[str, object]:
    words = line.split()
    if len(words) <= _FIRMWARE or index(words[_NUMBER]) is None:
        raise NotUnderstood(
            f"the line of {words[0]} is cut short: {len(words)} words, wanted are more than {_FIRMWARE}"
        )
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


def _watts(given: float | None) -> float | None:
    """Older tools give milliwatts and do not say so."""
    return given / 1000 if given is not None and given > _MORE_WATTS_THAN_A_CARD_TAKES else given
