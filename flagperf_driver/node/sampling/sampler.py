"""The sampler: measure the host and its devices during a round, in a process beside the agent.

It reads its orders as one JSON line from stdin, and ends at the end of stdin or at SIGTERM. It writes to ``folder``:

* ``sys_info.log``, ``cpu_monitor.log`` and ``mem_monitor.log`` (shares, every 5 s), ``pwr_monitor.log`` (W, every
  120 s) and ``<vendor>_monitor.log`` (a block every 5 s), in FlagPerf's original formats;
* ``host.series.csv``, ``load.series.csv`` and ``devices.series.csv``: one column for each quantity with its unit in the
  header, and the time of each row in seconds since the epoch;
* ``monitors.json``: the source of each quantity, missing quantities, events, and the number of missed samples.

It writes about once a second, so that a killed sampler loses at most the last second.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Callable

from flagperf_driver import layout
from flagperf_driver.node import run_tool
from flagperf_driver.node.sampling import host_counters, load, power, schedule, series
from flagperf_driver.node.sampling.device_sampler import DeviceSampler
from flagperf_driver.node.sampling.notes import CLOCK_SET, Notes
from flagperf_driver.node.sampling.sampler_orders import SamplerOrders
from flagperf_driver.node.sampling.schedule import Stop, Task

POWER_LOG_S = 120.0
_REPORT_S = 10.0
_THREADS_END_S = 1.0
_CLOCK_SET_S = 0.5
"""A larger step of the clock between two samples cannot result from gradual adjustment."""


class HostSampler:
    """Write the host's series, and its logs in FlagPerf's original format."""

    def __init__(self, orders: SamplerOrders, notes: Notes, node_power: power.NodePower) -> None:
        self._every_s = orders.every_s
        self._folder = orders.folder
        self._power = node_power
        self._series = series.Lines(f"{orders.folder}/{layout.HOST_SERIES}", ",".join(host_counters.COLUMNS))
        self._files = [self._series]
        self._logs = {name: self._log(name) for name in ("cpu", "mem")}
        self._cpu, self._memory = host_counters.Cpu(), host_counters.Memory()
        self._cpu_of_log = host_counters.Cpu()  # over the longer interval of the log
        self._rates = _rates(notes)
        self._slow_due = 0
        self._notes = notes
        self._epoch = time.time() - time.monotonic()
        self._watts: list[float] = []
        self._power_log: series.Lines | None = None
        self._power_logged = 0.0
        notes.means.update(cpu=self._cpu.means, memory=self._memory.means)

    def _log(self, name: str) -> series.Lines:
        log = series.Lines(f"{self._folder}/{layout.monitor_log(name)}")
        self._files.append(log)
        return log

    def tasks(self) -> list[Task]:
        return [
            Task("host", self._every_s, self.sample),
            Task("host logs", schedule.LOG_S, self._write_logs),
            Task("host files", series.FLUSH_S, self.flush),
        ]

    def sample(self, tick: int, everything: bool = False) -> None:
        """Add one row, with the slow quantities if they are due."""
        self._watch_clock()
        cells = [f"{time.time():.4f}", _share(self._cpu.read())]
        if everything or tick >= self._slow_due:
            self._slow_due = tick + max(1, round(host_counters.SLOW_S / self._every_s))
            cells += self._slow()
        else:
            cells += [""] * (len(host_counters.COLUMNS) - len(cells))
        self._series.add(",".join(cells))

    def _watch_clock(self) -> None:
        """Note that the host's clock was set. Rows keep the host's time, as the ranks' logs do."""
        epoch = time.time() - time.monotonic()
        if abs(epoch - self._epoch) > _CLOCK_SET_S:
            step = epoch - self._epoch
            self._notes.event(f"the host's clock was set by {step:+.1f} s", kind=CLOCK_SET, seconds=round(step, 3))
            self._epoch = epoch

    def _slow(self) -> list[str]:
        cells = [_share(self._memory.read())]
        for rate, read in self._rates:
            cells += ["" if value is None else f"{value:.0f}" for value in rate.of(read())] if read else ["", ""]
        power = self._power.fresh()
        if power.watts is not None:
            self._log_power(power.watts)
        return cells + ["" if value is None else f"{value:.1f}" for value in power]

    def _log_power(self, watts: float) -> None:
        """Log the first reading, then the mean of every two minutes."""
        self._watts.append(watts)
        if self._power_log is None:
            self._power_log = self._log("pwr")
        if time.monotonic() - self._power_logged > POWER_LOG_S - series.FLUSH_S:
            self._power_logged = time.monotonic()
            self._power_log.add(series.stamped(str(round(sum(self._watts) / len(self._watts)))))
            self._watts.clear()

    def _write_logs(self, tick: int) -> None:
        if tick == 0:
            return  # the first line comes after one interval, as in FlagPerf
        for name, value in (("cpu", self._cpu_of_log.read()), ("mem", self._memory.read())):
            if value is not None:
                self._logs[name].add(series.stamped(f"{value:.4f}"))

    def flush(self, _: int = 0) -> None:
        for file in self._files:
            file.flush()

    def finish(self) -> None:
        """Add a last row; after a very short round also a line in each log."""
        self.sample(0, everything=True)
        if not self._logs["mem"].written:
            self._write_logs(1)
        self.flush()

    def losses(self) -> list[str]:
        return [loss for file in self._files if (loss := file.loss)]


def _rates(notes: Notes) -> list[tuple[host_counters.Rate, Callable[[], tuple[float, ...]] | None]]:
    """Return a rate and the function that reads its two counters; None if the host has no such device."""
    network, rdma, disks = host_counters.Network(), host_counters.Rdma(), host_counters.Disks()
    notes.means["network"] = network.means
    notes.means.update({name: counted.means for name, counted in (("rdma", rdma), ("disk", disks)) if counted})
    return [
        (host_counters.Rate(), network.read),
        (host_counters.Rate(), rdma.read if rdma else None),
        (host_counters.Rate(), disks.read if disks else None),
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


class LoadSampler:
    """Write who uses the cores, as counters that only grow, so that any part of the round can be computed."""

    def __init__(self, orders: SamplerOrders, notes: Notes) -> None:
        self._notes = notes
        self._load = load.Load(orders.folder, os.getppid(), orders.container)
        self._series = series.Lines(f"{orders.folder}/{layout.LOAD_SERIES}", ",".join(load.COLUMNS))
        notes.means["load"] = load.MEANS

    def run(self, stop: Stop) -> None:
        """Sample in a separate thread, because reading thousands of processes takes time."""
        file = Task("load file", series.FLUSH_S, lambda _: self._series.flush())
        schedule.run([Task("load", schedule.LOAD_S, lambda _: self.sample()), file], stop)

    def sample(self, everything: bool = False) -> None:
        cells = ["" if value is None else f"{value:.3f}" for value in self._load.read(everything)]
        self._series.add(",".join([f"{time.time():.4f}", *cells]))

    def finish(self) -> None:
        self.sample(everything=True)
        self._series.flush()
        if self._load.missing:
            self._notes.missing(self._load.missing)

    def others(self) -> list[dict[str, Any]]:
        """Return the busiest processes outside the round while a rank waited for a core."""
        return self._load.busiest()

    def losses(self) -> list[str]:
        return [loss] if (loss := self._series.loss) else []


class Sampling:
    """All sampling of a round, from the orders to the last report."""

    def __init__(self, orders: SamplerOrders) -> None:
        self._orders = orders
        self._notes = Notes()
        self._notes.host = host_counters.facts(orders.variables)
        self._started = time.time()
        self._stop = Stop()
        self._power = power.NodePower(self._notes, processors_first=orders.processors_first)
        self._host = HostSampler(orders, self._notes, self._power)
        self._load = LoadSampler(orders, self._notes)
        has_devices = (orders.nvml or orders.probe) and orders.devices != []
        self._devices = DeviceSampler(orders, self._notes) if has_devices else None
        self._tasks = [*self._host.tasks(), Task("report", _REPORT_S, self._report)]

    def run(self, stdin: int) -> None:
        signal.signal(signal.SIGTERM, self._stop.stop)
        with open(f"{self._orders.folder}/{layout.SYSTEM}", "w") as out:  # noqa: PTH123
            out.write(host_counters.system_info(self._notes.host))
        threads = [threading.Thread(target=call, args=(self._stop,), daemon=True) for call in self._thread_calls()]
        for thread in [*threads, threading.Thread(target=self._listen, args=(stdin,), daemon=True)]:
            thread.start()
        schedule.run(self._tasks, self._stop)
        run_tool.end_all()
        end = time.monotonic() + _THREADS_END_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if self._devices is not None and threads[0].is_alive():
            self._devices.report_hang()
        self._host.finish()
        self._load.finish()
        self._report(ended=time.time())

    def _listen(self, stdin: int) -> None:
        """Stop at the end of stdin; ignore any input."""
        while os.read(stdin, 4096):
            pass
        self._stop.stop()

    def _thread_calls(self) -> list[Callable[[Stop], None]]:
        """Return the functions that run in threads, that of the devices first."""
        devices = [self._devices.run] if self._devices is not None else []
        return [*devices, self._load.run, *([self._power.run] if self._power.asks else [])]

    def _report(self, _: int = 0, ended: float | None = None) -> None:
        devices = self._devices.tasks if self._devices is not None else []
        losses = (
            self._host.losses() + self._load.losses() + (self._devices.losses() if self._devices is not None else [])
        )
        content = {
            "started": round(self._started, 3),
            "ended": None if ended is None else round(ended, 3),
            "vendor": self._orders.vendor or None,
            **self._notes.report(),
            "others": self._load.others(),
            "lost_lines": losses,
            "cpu_seconds": round(time.process_time(), 3),
            "schedule": {task.name: task.report() for task in [*self._tasks, *devices] if task.name in _REPORTED_TASKS},
        }
        with contextlib.suppress(OSError):  # the disk is full; the next report may succeed
            series.replace(f"{self._orders.folder}/{layout.MONITORS}", content)


_REPORTED_TASKS = ("host", "devices")


def main() -> int:
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)  # the agent decides when to end
    line = sys.stdin.buffer.readline()
    try:
        sampling = Sampling(SamplerOrders(json.loads(line)))
        # Exclude the imported modules from garbage collection: the sampler creates no reference cycles.
        gc.freeze()
        sampling.run(sys.stdin.fileno())
    except OSError as error:
        print(f"sampler: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    # Do not wait for a thread that a driver blocks in the kernel.
    os._exit(main())
