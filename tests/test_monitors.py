"""Monitor logs read back; what a kill cut short is passed over."""

from __future__ import annotations

from pathlib import Path

from pytest_flagperf.results import monitors


def test_samples_are_read_by_host_and_quantity(tmp_path: Path) -> None:
    host = tmp_path / "localhost_noderank0"
    host.mkdir()
    (host / "cpu_monitor.log").write_text("2023-03-27-11:20:05\t0.0312\n2023-03-27-11:20:06\t0.5\n")
    read = monitors.read(tmp_path)["localhost_noderank0"]
    assert [sample.value for sample in read["cpu"]] == [0.0312, 0.5]
    assert read["cpu"][1].time - read["cpu"][0].time == 1
    assert read["memory"] == ()


def test_a_line_cut_short_is_passed_over(tmp_path: Path) -> None:
    host = tmp_path / "a_noderank0"
    host.mkdir()
    (host / "mem_monitor.log").write_text("2023-03-27-11:20:05\t0.25\n2023-03-27-11:2")
    (host / "cpu_monitor.log").write_text("garbage\n2023-03-27-11:20:05\tx\n")
    read = monitors.read(tmp_path)["a_noderank0"]
    assert [sample.value for sample in read["memory"]] == [0.25]
    assert read["cpu"] == ()


def test_no_hosts_no_samples(tmp_path: Path) -> None:
    assert monitors.read(tmp_path) == {}
