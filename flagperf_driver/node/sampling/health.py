"""The facts about a device's identity and health, the same for all sources, and the meaning of a change of each."""

from __future__ import annotations

import math
from typing import Any, Mapping

from flagperf_driver.node.sampling.notes import CHANGED, Notes

TEXTS = ("name", "uuid", "serial", "firmware", "driver", "pci", "trouble")
"""``trouble`` is a problem of the device in the words of the vendor's tool; it is missing for a healthy device."""
NUMBERS = (
    "memory_total",  # MiB
    "power_limit",  # W
    "usual_power_limit",
    "pcie_generation",
    "best_pcie_generation",
    "pcie_width",
    "best_pcie_width",
    "links",  # active links to other devices
    "links_down",
    "link_errors",
    "ecc_corrected",
    "ecc_uncorrected",
)
FLAGS = ("partitioned", "row_remap_pending", "row_remap_failed")
"""``partitioned`` means that the device is divided into parts, so that none is the whole chip."""
PROCESSES = "processes"
"""Processes on the device: a list of ``{"pid": 1, "name": "python", "memory": 512}``; only ``pid`` is required."""
FACTS = (*TEXTS, *NUMBERS, *FLAGS)

_DISTORTING = frozenset(
    ["name", "uuid", "serial", "firmware", "driver", "power_limit", "partitioned", "links_down", "pcie_width"]
)
"""A change of one of these during a round means that its measurements are from two different machines."""
_REPORTED = _DISTORTING.union(
    ["trouble", "link_errors", "ecc_corrected", "ecc_uncorrected", "row_remap_pending", "row_remap_failed"]
)
_FREQUENT = frozenset(["ecc_corrected", "link_errors"])
"""A few of these are normal; each doubling of the count is reported."""


def describe_device(index: int, facts: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return all facts of a device; None for an unknown fact."""
    return {"index": index, **dict.fromkeys(FACTS), **valid_facts(facts), **more}


def valid_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known facts whose values have the right type."""
    return {name: facts[name] for name in FACTS if name in facts and fits(name, facts[name])}


def fits(name: str, value: object) -> bool:
    if name in TEXTS:
        return isinstance(value, str)
    if name in FLAGS:
        return isinstance(value, bool)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


class DeviceHealth:
    """Watch one device's health over a round; a change is an event."""

    def __init__(self, index: int, notes: Notes) -> None:
        self._index = index
        self._notes = notes
        self._known: dict[str, Any] = {}

    def update(self, now: Mapping[str, Any]) -> None:
        """Compare with the previous facts; a fact that is missing this time is considered unchanged."""
        for name, value in now.items():
            before = self._known.get(name)
            if value is None or name not in _REPORTED or (name in _FREQUENT and before and before < value < 2 * before):
                continue
            self._known[name] = value
            if before not in (None, value):
                sentence = f"device {self._index}: {name} changed from {before} to {value}"
                self._notes.event(sentence, self._index, CHANGED if name in _DISTORTING else None)
