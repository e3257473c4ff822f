"""Runs as they leave their live records while they run, made up: each is written by the code that a real run uses."""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_flagperf.case import Case
from pytest_flagperf.progress import NoteKind, RoundProgress
from pytest_flagperf.stored import layout
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


class Process:
    """A process of a run that writes its live record; nothing ticks beside the test."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.record = LiveRecord(path, clock)

    def note(self, kind: NoteKind, **values: Any) -> None:
        self.record.subscriber[kind](**values)


class LiveRun:
    """The live record of a run in a directory; its processes share a clock."""

    def __init__(self, path: Path, cases: tuple[str, ...] = CASES) -> None:
        self.path, self.clock = path, Clock()
        self.processes: list[Process] = []
        self.main = self.process(layout.CONTROLLER)
        self.main.note("cases", cases=[{"case": case, "rounds": Case.parse(case).repeat} for case in cases])

    def process(self, name: str) -> Process:
        self.processes.append(Process(self.file(name), self.clock))
        return self.processes[-1]

    def file(self, name: str = layout.CONTROLLER) -> Path:
        return self.path / layout.LIVE / layout.live_file(name)

    def begin(self, process: Process, case: str, number: int = 1) -> None:
        process.note("round", case=case, folder=f"{Case.parse(case).folder}/{layout.round_folder(number)}")

    def train(
        self, process: Process, case: str, steps: int, *, number: int = 1, hosts: int = 1, devices: int = 8
    ) -> None:
        """Train to a step: with the beats of the ranks and the samples of the devices."""
        for step in range(0, steps + 1, 10):
            self.clock.now += 5
            process.note("progress", progress=progress(case, number, step))
            for host in range(hosts):
                process.note("host", host=f"gpu{host + 1}", values=ranks(host, devices, step))
                process.note("host", host=f"gpu{host + 1}", values=samples(devices, step))
            process.note("tick")

    def end(self, exit_status: int = 0) -> None:
        self.main.note("end", exit_status=exit_status)

    def close(self) -> None:
        for process in self.processes:
            process.record.close()


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
    worker.note("phase", text="building the pytorch environment in /root/.cache/x")
    run.clock.now += 90
    worker.note("activity", text="Prepared 12 of 40 packages, 1.2 GiB of 2.9 GiB")
    run.clock.now += 5
    worker.note("round_end", state="failed", sentence="rank 3 was killed by SIGKILL (kill -9 by a user or a program)")
    worker.note("test", case=CASES[1], test="test_converges[x]", outcome="failed", sentences=["round 1 did not finish"])
    run.begin(worker, CASES[0])
    run.train(worker, CASES[0], 400, hosts=2)
    worker.note("tick")
    for file in (run.file(), run.file("gw0")):
        os.utime(file, (run.clock.now, run.clock.now))
    return run
