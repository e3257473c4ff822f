"""The orders of the sampler: the JSON line on its stdin."""

from __future__ import annotations

import json
from typing import Any, Mapping

LEAST_S = 0.001


class OrderError(ValueError):
    """The orders are invalid."""


class SamplerOrders:
    """The folder, the intervals, and the devices to sample."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.folder = str(body["folder"])
        self.every_s = _interval(body, "every_s")
        self.device_every_s = _interval(body, "device_every_s")
        self.devices = None if body.get("devices") is None else [int(index) for index in body["devices"]]
        self.vendor = str(body.get("vendor") or "")
        self.container = str(body.get("container") or "")
        self.nvml = bool(body.get("nvml"))
        self.probe = str(body["probe"]["module"]) if body.get("probe") else None
        self.processors_first = bool(body.get("processors_first"))

    @classmethod
    def parse(cls, line: bytes) -> SamplerOrders:
        try:
            return cls(json.loads(line))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OrderError(f"the sampler's orders: {type(error).__name__}: {error}; got {line[:200]!r}") from None


def _interval(body: Mapping[str, Any], name: str) -> float:
    seconds = float(body.get(name) or 1.0)
    if seconds < LEAST_S:
        raise ValueError(f"{name} is {seconds:g}; expected at least {LEAST_S:g}")
    return seconds
