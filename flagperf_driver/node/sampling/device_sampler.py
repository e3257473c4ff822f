"""Sample the devices during a round, and report foreign processes that use them."""

from __future__ import annotations

import os
from typing import Any, Iterator, Mapping

from flagperf_driver import layout
from flagperf_driver.node.sampling import schedule, series
from flagperf_driver.node.sampling.devices import DeviceFiles, DeviceSource
from flagperf_driver.node.sampling.foreign_processes import ForeignProcesses
from flagperf_driver.node.sampling.notes import FOREIGN, Notes
from flagperf_driver.node.sampling.sampler_orders import SamplerOrders
from flagperf_driver.node.sampling.schedule import Stop, Task


class DeviceSampler:
    """Sample the devices in a separate thread: a driver or tool that hangs must not delay the host's samples."""

    def __init__(self, orders: SamplerOrders, notes: Notes) -> None:
        self._orders = orders
        self._notes = notes
        self._files = DeviceFiles(orders.folder, orders.vendor)
        self._source: DeviceSource | None = None
        self._foreign = ForeignProcesses(orders.folder, os.getppid(), orders.container)
        self._reported: set[tuple[int, int]] = set()
        self._unclear = False
        self._means = ""
        self.tasks: list[Task] = []

    def run(self, stop: Stop) -> None:
        try:
            self._source = self._open()
            if self._source is None:
                return
            self._notes.means["devices"] = self._source.means
            self._sample(self._source, stop)
        except Exception as error:
            self._notes.event(f"the sampling of the devices failed: {type(error).__name__}: {error}")

    def _open(self) -> DeviceSource | None:
        """Open NVML, else the vendor's tool; note why a source cannot be used."""
        for source in self._sources():
            self._means = source.means
            problem = source.open(self._orders.devices)
            if problem is None:
                self._means = source.means
                return source
            self._notes.missing(f"devices: {problem}")
        return None

    def _sources(self) -> Iterator[DeviceSource]:
        every_s = self._orders.device_every_s
        if self._orders.nvml:
            from flagperf_driver.node.sampling.nvml.source import Nvml

            yield Nvml(every_s, self._files, self._notes)
        if self._orders.probe is not None:
            from flagperf_driver.node.sampling.probe import Probe

            yield Probe(self._orders.probe, every_s, self._files, self._notes)

    def _check_health(self, source: DeviceSource, tick: int) -> None:
        source.check_health(tick)
        if not self._notes.devices:
            self._describe(source)

    def _describe(self, source: DeviceSource) -> None:
        """Store the facts of the devices, as soon as the source has them."""
        self._notes.driver = source.driver
        self._notes.devices = source.facts()
        lines = [_describe_device(device) for device in source.facts()]
        with open(f"{self._orders.folder}/{layout.SYSTEM}", "a") as out:  # noqa: PTH123
            out.write("".join([f"accelerators: {source.means}\n", *lines] if lines else []))

    def report_hang(self) -> None:
        """Report a source that hangs; if nothing was read at all, also as the reason for that."""
        self._files.flush()
        if not self._files.series.written:
            self._notes.missing(f"devices: {self._means} does not answer")
        self._notes.event(f"{self._means} stopped answering: the measurements of the devices end early")

    def _sample(self, source: DeviceSource, stop: Stop) -> None:
        self.tasks = [
            Task("devices", source.every_s, source.sample),
            Task("device log", schedule.LOG_S, lambda tick: self._files.write_log() if tick else None),
            Task("device health", schedule.HEALTH_S, lambda tick: self._check_health(source, tick)),
            Task("foreign processes", schedule.FOREIGN_S, lambda _: self._check_foreign(source)),
            Task("device files", series.FLUSH_S, self._files.flush),
        ]
        schedule.run(self.tasks, stop)
        source.sample(0, everything=True)
        self._check_health(source, 1)
        self._check_foreign(source)
        if self._unclear and not self._foreign.pids_are_valid:
            self._notes.missing("foreign processes on the devices: the driver's pids do not apply in this container")
        if self._files.log is not None and not self._files.log.written:
            self._files.write_log()
        self._files.flush()
        source.close()

    def _check_foreign(self, source: DeviceSource) -> None:
        """Report each foreign process on each of the round's devices once."""
        processes = source.processes()
        foreign = {process.pid: process for process in self._foreign.among({pid for _, pid in processes})}
        self._unclear |= bool(processes) and not self._foreign.pids_are_valid
        for device, pid in processes:
            if pid in foreign and (device, pid) not in self._reported:
                self._reported.add((device, pid))
                process = foreign[pid]
                sentence = f"device {device} was also in use by {process.name} of {process.user} (pid {pid})"
                self._notes.event(sentence, device, FOREIGN)

    def losses(self) -> list[str]:
        files = [self._files.series, *([self._files.log] if self._files.log else [])]
        return [loss for file in files if (loss := file.loss)]


def _describe_device(device: Mapping[str, Any]) -> str:
    memory = device["memory_total"]
    known = [device["name"], memory and f"{memory:.0f} MiB", device["uuid"]]
    return f"accelerator {device['index']}: " + ", ".join(filter(None, known)) + "\n"
