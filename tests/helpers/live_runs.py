"""Runs as they leave their live records while they run, made up: each is written by the code that a real run uses."""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_flagperf.case import Case
from pytest_flagperf.report.terminal.live import Live
from pytest_flagperf.report.terminal.progress import RoundProgress
from pytest_flagperf.stored import layout, live_record
from pytest_flagperf.stored.live_record import LiveRecord

START = 1_795_000_000.0
CASES = ("glm:pytorch:A100:2:8:3", "bert:pytorch:A100:1:8:1", "toy:plain:CPU:1:1:1")


class Clock:
    """The time in seconds since the epoch; it moves when a test says so."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def progress(case: str, number: int, step: int) -> RoundProgress:
    start = RoundProgress(
        case, number, "training", step, metric_name="accuracy", target=0.9, sample_unit="images",
        elapsed_s=20 + step * 0.5,
    )  # fmt: skip
    if not step:
        return start
    return replace(
        start,
        loss=2.3 * math.exp(-step / 200) + 0.1,
        metric=0.93 * (1 - math.exp(-(step - step % 50) / 150)) if step >= 50 else None,
        throughput=12_000 + 300 * math.sin(step / 7),
        time_left_s=(1000 - step) * 0.5,
    )


class LiveRun:
    """The live record of a run in a directory; its processes share a clock."""

    def __init__(self, path: Path, cases: tuple[str, ...] = CASES) -> None:
        self.path, self.clock = path, Clock()
        self.lives: dict[str, Live] = {}
        self.main = self.process(layout.CONTROLLER)
        self.main.record.write(
            live_record.CASES, cases=[{"case": case, "rounds": Case.parse(case).repeat} for case in cases]
        )

    def process(self, name: str) -> Live:
        """Return the output of a process; nothing ticks beside the test."""
        output = Live(lambda _: None, width=80, live=False, quiet=True, follow=False)
        output.record = LiveRecord(self.path / layout.LIVE / layout.live_file(name), self.clock)
        self.lives[name] = output
        return output

    def file(self, name: str = layout.CONTROLLER) -> Path:
        return self.path / layout.LIVE / layout.live_file(name)

    def begin(self, output: Live, case: str, number: int = 1) -> None:
        output.begin_round(case, self.path / Case.parse(case).folder / layout.round_folder(number))

    def train(self, output: Live, case: str, steps: int, *, number: int = 1, hosts: int = 1, devices: int = 8) -> None:
        """Train to a step: with the beats of the ranks and the samples of the devices."""
        for step in range(0, steps + 1, 10):
            self.clock.now += 5
            output.progress(progress(case, number, step))
            for host in range(hosts):
                output.host(f"gpu{host + 1}", ranks(host, devices, step))
                output.host(f"gpu{host + 1}", samples(devices, step))
            output.tick()

    def end(self, exit_status: int = 0) -> None:
        self.main.record.write(live_record.END, exit=exit_status)

    def close(self) -> None:
        for output in self.lives.values():
            output.close()


def ranks(host: int, devices: int, step: int) -> Mapping[str, Any]:
    beats = {
        str(rank): {"step": step - (rank == 3), "phase": 1, "idle_s": 0.1}
        for rank in range(host * devices, (host + 1) * devices)
    }
    return {"ranks": beats, "slow": {"3": 1.42} if host == 0 else {}}


def samples(devices: int, step: int) -> Mapping[str, Any]:
    of_devices = {
        str(device): {
            "power": 600.0 + device + min(step, 40), "temperature": 60.0 + device, "utilization": 97.0,
            "memory_used": 70_000.0, "memory_total": 81_559.0,
        }
        for device in range(devices)
    }  # fmt: skip
    return {"samples": {"host": {"cpu": 0.21, "memory": 0.34}, "devices": of_devices}}


def training_run(path: Path) -> LiveRun:
    """A run of three cases in two processes: one trains, one failed, one has not begun."""
    run = LiveRun(path)
    worker = run.process("gw0")
    run.begin(worker, CASES[1])
    run.clock.now += 3
    worker.phase("building the pytorch environment in /root/.cache/x")
    run.clock.now += 90
    worker.passing("Prepared 12 of 40 packages, 1.2 GiB of 2.9 GiB")
    run.clock.now += 5
    worker.end_round("failed", "rank 3 was killed by SIGKILL (kill -9 by a user or a program)")
    worker.record.write(
        live_record.TEST, case=CASES[1], test="test_converges[x]", outcome="failed",
        sentences=["round 1 did not finish"],
    )  # fmt: skip
    run.begin(worker, CASES[0])
    run.train(worker, CASES[0], 400, hosts=2)
    worker.record.beat()
    for file in (run.file(), run.file("gw0")):
        os.utime(file, (run.clock.now, run.clock.now))
    return run
