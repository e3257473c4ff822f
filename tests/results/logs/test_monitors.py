"""What samplers and the original's monitors left, read back: times, gaps, energy, and what a kill cut short."""

import json
import shutil
from pathlib import Path

import pytest

from flagperf_driver.node.logs.samples import Samples
from flagperf_driver.node.sampling import devices, host_counters
from pytest_flagperf.results.logs import monitors
from tests.helpers.results_help import edit_json, replay_dir

START = 1_700_000_000.0


def folder(round_dir: Path, name: str = "h1_noderank0") -> Path:
    made = round_dir / name
    made.mkdir(exist_ok=True)
    return made


def host_rows(folder: Path, *rows: tuple[object, ...]) -> None:
    """Time after the start, CPU, memory, then bytes in and out."""
    lines = [",".join(host_counters.COLUMNS)]
    for when, cpu, memory, received, sent in rows:
        lines.append(f"{START + float(str(when))},{cpu},{memory},{received},{sent},,,,,,")
    (folder / "host.series.csv").write_text("\n".join(lines) + "\n")


def device_rows(folder: Path, *rows: tuple[object, ...]) -> None:
    """Time after the start, device, power, throttle reasons and energy."""
    lines = [",".join(devices.COLUMNS)]
    for when, device, power, throttle, energy in rows:
        lines.append(f"{START + float(str(when))},{device},,{power},,,,,,{throttle},{energy}")
    (folder / "devices.series.csv").write_text("\n".join(lines) + "\n")


def read(round_dir: Path) -> Samples:
    return monitors.read(round_dir)["h1_noderank0"]


def test_each_quantity_has_its_own_times_and_unit(tmp_path: Path) -> None:
    host_rows(folder(tmp_path), (0, "", 0.5, "", ""), (0.1, 0.25, "", "", ""), (0.2, 0.75, 0.5, 1000, 10))
    found = read(tmp_path).host
    assert list(found) == ["cpu", "memory", "net_rx", "net_tx"]
    assert list(found["cpu"].times) == [START + 0.1, START + 0.2]
    assert (found["cpu"].mean, found["cpu"].highest, found["cpu"].unit) == (0.5, 0.75, "1")
    assert (found["net_rx"].unit, list(found["net_rx"].values)) == ("B/s", [1000.0])
    assert list(found["cpu"].between(START + 0.15, START + 9).values) == [0.75]


def test_the_clocks_offset_of_each_host_is_taken_off(tmp_path: Path) -> None:
    for rank in (0, 1):
        host_rows(folder(tmp_path, f"h_{rank}_noderank{rank}"), (3600 * rank, 0.5, 0.5, "", ""))
    report = {"events": [{"time": START + 3605, "device": None, "sentence": "something"}]}
    (tmp_path / "h_1_noderank1" / "monitors.json").write_text(json.dumps(report))
    hosts = [{"name": "h_0", "noderank": 0}, {"name": "h_1", "noderank": 1, "clock_offset_s": 3600}]
    edit_json(Path(shutil.copy(replay_dir("converged_1x1") / "plan.json", tmp_path)), hosts=hosts)
    first, second = (monitors.read(tmp_path)[f"h_{rank}_noderank{rank}"] for rank in (0, 1))
    assert first.host["cpu"].times[0] == second.host["cpu"].times[0] == START
    assert second.events[0].time == START + 5


@pytest.mark.parametrize(
    "plan", ["", "[]", "{}", '{"hosts": 3}', '{"hosts": ["h1"]}', '{"hosts": [{"clock_offset_s": "x"}]}']
)
def test_without_a_measurement_the_offset_is_unknown(tmp_path: Path, plan: str) -> None:
    host_rows(folder(tmp_path), (0, 0.5, 0.5, "", ""))
    (tmp_path / "plan.json").write_text(plan)
    assert read(tmp_path).host["cpu"].times[0] == START


@pytest.mark.parametrize(
    "torn",
    [
        "17000",
        "1700000009.0,0.9",
        "1700000009.0,0.9,0.9,0,0,,,,,",
        "x,0.9,0.9,,,,,,,\n",
        "\n",
        "1700000009.0,nan,,,,,,,,\n",
        "1700000009.0,0.9,0.9,,,,,,,4#\n",
        "nan,0.9,0.9,,,,,,,\n",
    ],
)
def test_a_row_cut_short_or_broken_is_passed_over(tmp_path: Path, torn: str) -> None:
    host_rows(folder(tmp_path), (0, 0.5, 0.5, "", ""), (1, 0.6, 0.5, "", ""))
    with (folder(tmp_path) / "host.series.csv").open("a") as out:
        out.write(torn)
    assert list(read(tmp_path).host["cpu"].values) == [0.5, 0.6]


@pytest.mark.parametrize("content", ["", "\n", "time [s],cpu [1]", "\x00\xff", "time [s],device\n1,2\n1\n"])
def test_files_of_nothing_are_no_samples(tmp_path: Path, content: str) -> None:
    for name in ("host.series.csv", "devices.series.csv"):
        (folder(tmp_path) / name).write_text(content, encoding="latin-1")
    for name in ("monitors.json",):
        (folder(tmp_path) / name).write_text(content, encoding="latin-1")
    assert read(tmp_path).host == {}
    assert all(not found for found in read(tmp_path).devices.values())


def test_times_without_samples_are_gaps_once_for_all_devices(tmp_path: Path) -> None:
    times = [0, 1, 2, 3, 8, 9, 10, 13, 14]
    host_rows(folder(tmp_path), *((when, 0.5, 0.5, "", "") for when in times))
    device_rows(folder(tmp_path), *((when + 0.01, device, 100, "", "") for when in times for device in range(3)))
    found = read(tmp_path)
    assert [(gap.start - START, round(gap.seconds, 1)) for gap in found.gaps] == [(3, 5.0), (10, 3.0)]
    assert "2 gaps between the samples, 8.0 s in total" in monitors.notes(found)


def test_the_samplers_messages_are_reported(tmp_path: Path) -> None:
    host_rows(folder(tmp_path), (0, 0.5, 0.5, "", ""))
    report = {
        "means": {"network": "/proc/net/dev: eth0", "cpu": "/proc/stat"},
        "missing": ["power: none"],
        "events": [{"time": START, "device": 3, "sentence": "device 3 is lost: GPU is lost"}, "x", {}],
        "errors": [{"sentence": "tool: bad", "times": 3}],
        "lost_lines": ["2 lines of x were lost: full"],
    }
    (folder(tmp_path) / "monitors.json").write_text(json.dumps(report))
    found = read(tmp_path)
    assert monitors.notes(found) == [
        "device 3 is lost: GPU is lost",
        "tool: bad (3 times)",
        "2 lines of x were lost: full",
        "power: none",
    ]
    assert monitors.warnings(tmp_path) == ["h1: device 3 is lost: GPU is lost"]
    assert (found.read_from("net_rx"), found.read_from("cpu"), found.read_from("power")) == (
        "/proc/net/dev: eth0",
        "/proc/stat",
        "",
    )


def test_the_share_of_each_reason_for_low_clocks(tmp_path: Path) -> None:
    reasons = ["none", "sw_power_cap", "sw_power_cap+hw_thermal", "none", ""]
    device_rows(folder(tmp_path), *((when, 0, 1, reason, "") for when, reason in enumerate(reasons)))
    assert read(tmp_path).throttle == {0: {"hw_thermal": 0.25, "sw_power_cap": 0.5}}
