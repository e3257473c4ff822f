"""The samples of the devices during a round, and the processes that used them beside it."""

from __future__ import annotations

import os
from typing import Any, Iterator, Mapping

from flagperf_driver import layout
from flagperf_driver.node.sampling import schedule, series
from flagperf_driver.node.sampling.devices import LOG_EVERY_S, DeviceFiles, DeviceSource
from flagperf_driver.node.sampling.foreign_processes import ForeignProcesses
from flagperf_driver.node.sampling.notes import FOREIGN, Notes
from flagperf_driver.node.sampling.sampler_orders import SamplerOrders
from flagperf_driver.node.sampling.schedule import Stop, Task

_LOOK_S = 10.0
_STRANGERS_S = 5.0


class DeviceSampler:
    """The devices, in a thread of their own: a driver or a tool that hangs does not hold up the host's samples."""

    def __init__(self, orders: SamplerOrders, notes: Notes) -> None:
        self._orders = orders
        self._notes = notes
        self._files = DeviceFiles(orders.folder, orders.vendor)
        self._source: DeviceSource | None = None
        self._strangers = ForeignProcesses(orders.folder, os.getppid(), orders.container)
        self._told: set[tuple[int, int]] = set()
        self._unclear = False
        self._asked = ""
        self.tasks: list[Task] = []

    def run(self, stop: Stop) -> None:
        try:
            self._source = self._open()
            if self._source is None:
                return
            self._notes.means["devices"] = self._source.means
            self._sample(self._source, stop)
        except Exception as error:
            self._notes.event(f"the sampling of the devices ended: {type(error).__name__}: {error}")

    def _open(self) -> DeviceSource | None:
        """NVML, or else the vendor's tool; why not is noted."""
        for source in self._sources():
            self._asked = source.means
            why_not = source.open(self._orders.devices)
            if why_not is None:
                self._asked = source.means
                return source
            self._notes.missing(f"devices: {why_not}")
        return None

    def _sources(self) -> Iterator[DeviceSource]:
        every_s = self._orders.device_every_s
        if self._orders.nvml:
            from flagperf_driver.node.sampling.nvml.source import Nvml

            yield Nvml(every_s, self._files, self._notes)
        if self._orders.probe is not None:
            from flagperf_driver.node.sampling.probe import Probe

            yield Probe(self._orders.probe, every_s, self._files, self._notes)

    def _look_after(self, source: DeviceSource, tick: int) -> None:
        source.look_after(tick)
        if not self._notes.devices:
            self._describe(source)

    def _describe(self, source: DeviceSource) -> None:
        """As they were at first; of a tool it is known when it has answered."""
        self._notes.driver = source.driver
        self._notes.devices = source.facts()
        lines = [_said_of(one) for one in source.facts()]
        with open(f"{self._orders.folder}/{layout.SYSTEM}", "a") as out:  # noqa: PTH123
            out.write("".join([f"accelerators: {source.means}\n", *lines] if lines else []))

    def say_that_it_hangs(self) -> None:
        """It is waited for no longer. Where nothing was ever read, that is why."""
        self._files.flush()
        if not self._files.series.written:
            self._notes.missing(f"devices: {self._asked} does not answer")
        self._notes.event(f"{self._asked} did not answer to the end: the figures of the devices end before")

    def _sample(self, source: DeviceSource, stop: Stop) -> None:
        self.tasks = [
            Task("devices", source.every_s, source.sample),
            Task("device log", LOG_EVERY_S, lambda tick: self._files.write_log() if tick else None),
            Task("device health", _LOOK_S, lambda tick: self._look_after(source, tick)),
            Task("strangers", _STRANGERS_S, lambda _: self._look_for_strangers(source)),
            Task("device files", series.FLUSH_S, self._files.flush),
        ]
        schedule.run(self.tasks, stop)
        source.sample(0, everything=True)
        self._look_after(source, 1)
        self._look_for_strangers(source)
        self._say_what_is_unclear()
        if self._files.log is not None and not self._files.log.written:
            self._files.write_log()
        self._files.flush()
        source.close()

    def _look_for_strangers(self, source: DeviceSource) -> None:
        """Whoever computes on the round's devices beside it is told once for each."""
        found = source.processes()
        strangers = {one.pid: one for one in self._strangers.among({pid for _, pid in found})}
        self._unclear |= bool(found) and not self._strangers.numbers_are_ours
        for device, pid in found:
            if pid in strangers and (device, pid) not in self._told:
                self._told.add((device, pid))
                one = strangers[pid]
                sentence = f"device {device} was in use by {one.name} of {one.user} (pid {pid}) too"
                self._notes.event(sentence, device, FOREIGN)

    def _say_what_is_unclear(self) -> None:
        if self._unclear and not self._strangers.numbers_are_ours:
            self._notes.missing("who else computes on the devices: the driver's process numbers mean nothing in here")

    def losses(self) -> list[str]:
        files = [self._files.series, *([self._files.log] if self._files.log else [])]
        return [loss for file in files if (loss := file.loss)]


def _said_of(device: Mapping[str, Any]) -> str:
    memory = device["memory_total"]
    known = [device["name"], memory and f"{memory:.0f} MiB", device["uuid"]]
    return f"accelerator {device['index']}: " + ", ".join(filter(None, known)) + "\n"
