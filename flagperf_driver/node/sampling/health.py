"""What a device is and how it fares: one list of words, whoever tells them, and what a change of each means."""

from __future__ import annotations

import math
from typing import Any, Mapping

from flagperf_driver.node.sampling.notes import CHANGED, Notes

TEXTS = ("name", "uuid", "serial", "firmware", "driver", "pci", "trouble")
"""``trouble``: in the tool's own words, what is wrong with a device; nothing where all is well."""
NUMBERS = (
    "memory_total",  # MiB
    "power_limit",  # W
    "usual_power_limit",
    "pcie_generation",
    "best_pcie_generation",
    "pcie_width",
    "best_pcie_width",
    "links",  # to its like, that are up
    "links_down",
    "link_errors",
    "ecc_corrected",
    "ecc_uncorrected",
)
TRUTHS = ("partitioned", "row_remap_pending", "row_remap_failed")
"""``partitioned``: cut into parts, none of which is the chip."""
PROCESSES = "processes"
"""Who computes on it: a list of ``{"pid": 1, "name": "python", "memory": 512}``, the last two where they are known."""
WORDS = (*TEXTS, *NUMBERS, *TRUTHS)

_BENDS = frozenset(
    ["name", "uuid", "serial", "firmware", "driver", "power_limit", "partitioned", "links_down", "pcie_width"]
)
"""Another one of these in a round, and its figures are of two different machines."""
_TOLD = _BENDS | {"trouble", "link_errors", "ecc_corrected", "ecc_uncorrected", "row_remap_pending", "row_remap_failed"}
_COUNTED = frozenset(["ecc_corrected", "link_errors"])
"""Few of them are usual, and a stream of them is told at each doubling."""


def described(index: int, told: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A device in all the words there are, None where nothing is known."""
    return {"index": index, **dict.fromkeys(WORDS), **understood(told), **more}


def understood(told: Mapping[str, Any]) -> dict[str, Any]:
    """Of what was told the words of the list that have a value of their kind."""
    return {name: told[name] for name in WORDS if name in told and fits(name, told[name])}


def fits(name: str, value: object) -> bool:
    if name in TEXTS:
        return isinstance(value, str)
    if name in TRUTHS:
        return isinstance(value, bool)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


class DeviceHealth:
    """How one device fares over a round: what changes is an event."""

    def __init__(self, index: int, notes: Notes) -> None:
        self._index = index
        self._notes = notes
        self._known: dict[str, Any] = {}

    def learn(self, now: Mapping[str, Any]) -> None:
        """What could not be asked this time is as it was."""
        for name, value in now.items():
            before = self._known.get(name)
            if value is None or name not in _TOLD or (name in _COUNTED and before and before < value < 2 * before):
                continue
            self._known[name] = value
            if before not in (None, value):
                sentence = f"device {self._index}: {name} went from {before} to {value}"
                self._notes.event(sentence, self._index, CHANGED if name in _BENDS else None)
