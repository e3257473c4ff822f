"""The orders of the sampler: the JSON line on its stdin."""

from __future__ import annotations

from typing import Any, Mapping

from flagperf_driver.node.sampling.schedule import DEVICES_S, HOST_S


class SamplerOrders:
    """The folder, the intervals, and the devices to sample."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.folder = str(body["folder"])
        self.every_s = float(body.get("every_s") or HOST_S)
        self.device_every_s = float(body.get("device_every_s") or DEVICES_S)
        self.devices = None if body.get("devices") is None else [int(index) for index in body["devices"]]
        self.vendor = str(body.get("vendor") or "")
        self.variables = str(body.get("variables") or "")
        self.container = str(body.get("container") or "")
        self.nvml = bool(body.get("nvml"))
        self.probe = str(body["probe"]["module"]) if body.get("probe") else None
        self.processors_first = bool(body.get("processors_first"))
