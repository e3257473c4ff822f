"""A rank's program of a measurement: its events and heartbeats."""

import functools
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from flagperf_driver import heartbeat, perflog
from flagperf_driver.driver import Config
from flagperf_driver.measuring import defaults, program
from flagperf_driver.measuring.loop import Loop
from flagperf_driver.measuring.measurement import Point
from flagperf_driver.perflog import PerfLog
from flagperf_driver.training.timeline import HostMarks, Marks
from tests.driver.measuring.fakes import BASE, FakeDevice, constant

CONFIG = Config({name: value for name, value in vars(defaults).items() if name.islower()})


def device(marks: Marks) -> Any:
    facts: dict[str, Any] = {"describe": lambda: {"device": "fake"}, "peak_memory": lambda: 64, "threads": lambda: 1}
    return SimpleNamespace(marks=marks, maximum=list, **facts)


def test_a_measurement_without_the_device_uses_the_clock_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, log = FakeDevice(constant, 0), io.StringIO()
    fake.on_host = True
    rank: Any = SimpleNamespace(config=CONFIG, log=PerfLog(0, log), heartbeat=Mock(), age=lambda: 0.0)
    made = Mock(return_value=SimpleNamespace(measure=list))
    monkeypatch.setattr(program, "Loop", made)
    program.Measuring(rank, fake, device(fake)).run()
    assert isinstance(made.call_args.args[1], HostMarks)
    assert made.call_args.kwargs["owns_time"]
    assert '"timing": "host clock"' in log.getvalue()


def test_the_kernel_counts_how_long_a_rank_waits_for_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "Path", lambda name: tmp_path / name[1:])
    assert program.core_wait(1) is program.core_wait(2) is None
    for task, waited in {"thread-self": 2, "self/task/1": 1, "self/task/2": 5}.items():
        (folder := tmp_path / "proc" / task).mkdir(parents=True)
        (folder / "schedstat").write_text(f"7 {waited}000000000 9\n")
    assert (program.core_wait(1), program.core_wait(2)) == (2.0, 3.0)


def test_every_point_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    fake, log, pulse = FakeDevice(constant, 0, *(Point(f"p{n}", {"n": n}) for n in range(2))), io.StringIO(), Mock()
    rank: Any = SimpleNamespace(config=CONFIG, log=PerfLog(0, log), heartbeat=pulse, age=lambda: fake.at)
    monkeypatch.setattr(program, "Loop", functools.partial(Loop, now=fake.now))
    assert program.Measuring(rank, fake, device(fake)).run() == 2
    records = [perflog.parse_line(line.encode()) for line in log.getvalue().splitlines()]
    events = [(record.event, dict(record.value)) for record in records if record]
    assert [name for name, _ in events] == ["INIT_END", "MEASURED", "MEASURED", "FINISHED"]
    begin, first, second, end = (value for _, value in events)
    assert (begin["device"], begin["threads"]) == ("fake", 1)
    assert begin["environment"]["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert (first["point"], first["values"], second["point"]) == ("p0", {"n": 0}, "p1")
    assert first["seconds"] == pytest.approx(BASE, rel=0.01)
    assert first["figures"]["rate"] == 1 / first["seconds"]
    assert (first["clock"], first["steady"], first["drift"], first["sides"]) == ("fake events", True, None, None)
    assert (end["points"], end["left_out"], end["timing"], end["peak_memory_bytes"]) == (2, 0, "fake events", 64)
    assert {beat.args[1] for beat in pulse.beat.call_args_list} == {heartbeat.TRAIN}
    assert pulse.beat.call_count > 10
    assert pulse.beat.call_args.args[0] == 1, "the second point's last turn"
