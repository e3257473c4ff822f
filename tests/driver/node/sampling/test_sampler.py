"""The sampler as a process: its files, its times, and failures of devices, tools and disks."""

import os
import pwd
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node import run_tool
from flagperf_driver.node.sampling import host_counters, power, probe, sampler, schedule, series
from flagperf_driver.node.sampling.devices import COLUMNS, QUANTITIES, DeviceFiles
from flagperf_driver.node.sampling.notes import MOST_KEPT, Notes
from flagperf_driver.node.sampling.nvml.quantities import throttle_names
from flagperf_driver.node.sampling.sampler_orders import SamplerOrders
from pytest_flagperf.results.logs import monitors
from tests.driver.test_old_python import old_pythons
from tests.helpers.processes import kill
from tests.helpers.processes import running as living
from tests.helpers.sampling import Running, gpus, with_gpus
from tests.helpers.waiting import until
from tests.lab.nvml import GPU_IS_LOST, Nvml

pytestmark = pytest.mark.integration

STAMP = r"\d{4}-\d\d-\d\d-\d\d:\d\d:\d\d"
Start = Callable[..., Running]


@pytest.fixture
def devices(tmp_path: Path) -> tuple[Nvml, dict[str, str]]:
    return gpus(tmp_path, 8)


# -- the host ------------------------------------------------------------------------------------------------


def test_a_short_round_has_every_file_and_correct_times(start: Start) -> None:
    running = start(every_s=0.05)
    running.go_on(2.1)
    assert running.end() == ""
    for name in ("cpu", "mem"):
        lines = (running.folder / f"{name}_monitor.log").read_text().splitlines()
        assert lines
        assert all(re.fullmatch(STAMP + r"\t[01]\.\d{4}", line) for line in lines)
    facts = dict(line.split(": ", 1) for line in (running.folder / "sys_info.log").read_text().splitlines())
    assert int(facts["cores"]) == os.cpu_count()
    assert facts["kernel"] == os.uname().release
    report, rows = running.report(), running.rows("host")
    assert report["ended"] >= report["started"] + 2
    assert report["schedule"]["host"]["samples"] > 12
    times = [float(row["time"]) for row in rows]
    assert running.started <= times[0] <= times[-1] <= time.time()
    assert statistics.median(later - earlier for earlier, later in pairwise(times)) == pytest.approx(0.05, abs=0.01)
    with_memory = [row for row in rows if row["memory"]]
    assert 2 <= len(with_memory) <= len(rows) / 10, "slow quantities are read slowly"
    assert all(0 <= float(row["cpu"]) <= 1 for row in rows if row["cpu"])
    assert sum(1 for row in rows if row["cpu"]) > len(rows) / 3  # a tick of the kernel's clock is 10 ms


def test_a_clock_that_is_set_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    orders = SamplerOrders({"folder": str(tmp_path)})
    sampled = sampler.HostSampler(orders, notes, power.NodePower(notes, str(tmp_path)))
    sampled.sample(0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    sampled.sample(1)
    sampled.sample(2)
    (event,) = notes.report()["events"]
    assert (event["kind"], event["sentence"]) == ("clock", "the host's clock was set by +3600.0 s")
    assert event["seconds"] == pytest.approx(3600, abs=0.1)


def test_only_sigterm_ends_the_sampler(start: Start) -> None:
    running = start(every_s=0.1)
    running.until(lambda: running.rows("host"))
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        running.process.send_signal(number)
    time.sleep(0.3)
    assert running.process.poll() is None
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == ""
    assert running.process.returncode == 0
    assert running.report()["ended"]


def test_a_missing_folder_is_refused_with_a_sentence(start: Start) -> None:
    running = start(folder="/nowhere/at/all")
    complaint = running.wait()
    assert running.process.returncode == 1
    assert complaint.startswith("sampler: ")
    assert "No such file or directory" in complaint
    assert "Traceback" not in complaint


def test_a_full_disk_costs_only_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = series.Lines(str(tmp_path / "x.csv"), "time [s],cpu [1]")
    lines.add("1.0,0.5")
    lines.flush()
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:3]))
    lines.add("2.0,0.5")
    lines.add("3.0,0.5")
    lines.flush()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    lines.add("4.0,0.5")
    lines.flush()
    monkeypatch.setattr(os, "write", real)
    lines.add("5.0,0.5")
    lines.flush()
    assert (tmp_path / "x.csv").read_text() == "time [s],cpu [1]\n1.0,0.5\n2.0#\n5.0,0.5\n"
    assert (lines.lost, lines.error) == (3, "No space left on device")


def test_a_file_that_is_created_late_has_its_header(tmp_path: Path) -> None:
    lines = series.Lines(str(tmp_path / "not yet/x.csv"), "time [s]")
    lines.add("1")
    lines.flush()
    assert (lines.lost, lines.written) == (1, 0)
    (tmp_path / "not yet").mkdir()
    lines.add("2")
    lines.flush()
    assert (tmp_path / "not yet/x.csv").read_text() == "time [s]\n2\n"


def test_interfaces_that_would_count_bytes_twice_are_left_out(tmp_path: Path) -> None:
    head = "Inter-|   Receive\n face |bytes\n"
    line = "{:>6}: {} 0 0 0 0 0 0 0 {} 0 0 0 0 0 0 0\n"
    (tmp_path / "net").mkdir()
    names = ("lo", "eth0", "br0", "veth1")
    dev = head + "".join(line.format(name, 10**place, 5) for place, name in enumerate(names))
    (tmp_path / "net/dev").write_text(dev)
    net = tmp_path / "sys/class/net"
    for path in ("lo", "eth0", "br0/bridge", "veth1/master"):
        (net / path).mkdir(parents=True)
    assert host_counters.Network(str(tmp_path), str(tmp_path / "sys")).names == {"eth0"}
    (net / "veth1/device").mkdir()  # a physical interface is preferred to all others
    assert host_counters.Network(str(tmp_path), str(tmp_path / "sys")).read() == (1000.0, 5.0)


def test_a_reset_counter_has_no_rate_and_rdma_counts_words_of_four_bytes(tmp_path: Path) -> None:
    rate = host_counters.Rate()
    assert rate.of((5.0,)) == (None,)
    assert rate.of((3.0,)) == (None,)
    assert (rate.of((4.0,))[0] or 0) > 0
    counters = tmp_path / "class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "port_rcv_data").write_text("10\n")
    (counters / "port_xmit_data").write_text("20\n")
    assert host_counters.Rdma(str(tmp_path)).read() == (40.0, 80.0)
    assert not host_counters.Rdma(str(tmp_path / "none"))


def test_accelerators_are_those_that_the_kernel_has(tmp_path: Path) -> None:
    ids = [
        ("10de", "2330", "030200"),
        ("10de", "2330", "030200"),
        ("19e5", "d802", "120000"),
        ("8086", "1572", "020000"),
    ]
    for number, (vendor, device, kind) in enumerate(ids):
        folder = tmp_path / f"bus/pci/devices/0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        for name, text in {"vendor": vendor, "device": device, "class": kind}.items():
            (folder / name).write_text(f"0x{text}\n")
    assert host_counters.accelerators(str(tmp_path)) == "2 x 10de:2330, 1 x 19e5:d802"
    assert host_counters.accelerators(str(tmp_path / "none")) == ""


# -- the schedule --------------------------------------------------------------------------------------------


def test_missed_ticks_are_skipped_and_the_grid_is_kept() -> None:
    ticks: list[int] = []
    task = schedule.Task("x", 0.1, ticks.append)
    task.start(0.0)
    for now in (0.0, 0.1, 0.45, 0.5):
        assert task.due <= now
        task.run(now)
    assert ticks == [0, 1, 4, 5]
    assert task.report()["missed"] == 2
    assert task.due == pytest.approx(0.6)


# -- power ---------------------------------------------------------------------------------------------------


def rapl(root: Path, *zones: tuple[str, str, int]) -> None:
    for zone, name, energy in zones:
        folder = root / "sys/class/powercap" / zone
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(name)
        (folder / "energy_uj").write_text(str(energy))
        (folder / "max_energy_range_uj").write_text("1000000000")


def test_rapl_sums_packages_and_memory_and_survives_a_wrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    start = [("intel-rapl:0", "package-0", 999_000_000), ("intel-rapl:0:0", "core", 5), ("intel-rapl:1", "psys", 5)]
    rapl(tmp_path, *start, ("intel-rapl:0:1", "dram", 1_000_000))
    node = power.NodePower(Notes(), str(tmp_path))
    assert node.fresh() == (None, 0)
    now[0] += 2
    rapl(tmp_path, ("intel-rapl:0", "package-0", 99_000_000), ("intel-rapl:0:1", "dram", 21_000_000))
    assert node.fresh() == pytest.approx(((100 + 20) / 2, 100 + 20))
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    assert node.fresh() == (None, None)


def test_the_source_of_power_or_the_reason_without_one_is_noted(tmp_path: Path) -> None:
    notes = Notes()
    assert power.NodePower(notes, str(tmp_path)).fresh() == (None, None)
    (missing,) = notes.report()["missing"]
    assert missing.startswith("power: IPMI: no device found (/dev/ipmi0")
    assert "RAPL: no counters in" in missing
    rapl(tmp_path, ("intel-rapl:0", "package-0", 1))
    notes = Notes()
    power.NodePower(notes, str(tmp_path))
    assert notes.report()["means"]["power"].startswith("RAPL: processors, not the whole host (IPMI: no device found")
    rapl(tmp_path, ("intel-rapl:0:1", "dram", 1))
    power.NodePower(notes, str(tmp_path))
    assert notes.report()["means"]["power"].startswith("RAPL: processors and memory, not the whole host (IPMI: no")


@pytest.mark.parametrize(
    ("dcmi", "sdr", "watts"),
    [
        ("    Instantaneous power reading:                   223 Watts\n    Minimum during: 3 Watts\n", None, 223.0),
        (None, "Temp | 30 degrees C | ok\nPwr 1 | 110 Watts | ok\nTotal | 350 Watts | ok\n", 350.0),
    ],
)
def test_ipmi_uses_the_first_command_that_works(dcmi: str | None, sdr: str | None, watts: float) -> None:
    asked: list[list[str]] = []

    def ask(argv: list[str], _: float) -> str:
        asked.append(argv)
        text = dcmi if "dcmi" in argv else sdr
        if text is None:
            raise run_tool.CommandError("ipmitool ended with exit code 1: Unable to get")
        return text

    ipmi = power.Ipmi("", ask)
    assert [ipmi.read(), ipmi.read()] == [watts, watts]
    assert len(asked) == (2 if dcmi else 3)


def controller(root: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Create a host with a management controller, and a fake ipmitool."""
    tool = root / "bin/ipmitool"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    (root / "dev").mkdir()
    (root / "dev/ipmi0").touch()


def test_for_processors_rapl_comes_before_ipmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller(tmp_path, monkeypatch, "echo 'Instantaneous power reading: 223 Watts'")
    assert power.NodePower(Notes(), str(tmp_path), processors_first=True).asks  # without RAPL
    rapl(tmp_path, ("intel-rapl:0", "package-0", 1))
    assert power.NodePower(Notes(), str(tmp_path)).asks
    notes = Notes()
    assert not power.NodePower(notes, str(tmp_path), processors_first=True).asks
    assert notes.report()["means"]["power"].endswith("(IPMI: not used, because the benchmark runs on the processors)")


def test_rapl_replaces_an_ipmi_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller(tmp_path, monkeypatch, "echo 'Could not open device at /dev/ipmi0' >&2; exit 1")
    rapl(tmp_path, ("intel-rapl:0", "package-0", 1))
    notes = Notes()
    node = power.NodePower(notes, str(tmp_path))
    assert node.asks
    assert node.fresh() == (None, None)  # the source is not known yet
    node.ask()
    assert not node.asks
    assert "Could not open device" in notes.report()["means"]["power"]


# -- devices through NVML ------------------------------------------------------------------------------------


@with_gpus
@pytest.mark.parametrize("python", [sys.executable, *old_pythons()])
def test_devices_are_in_the_series_and_in_the_original_log(
    start: Start, devices: tuple[Nvml, dict[str, str]], python: str
) -> None:
    nv, env = devices
    nv[3].set(temperature=48, power_mw=311_000, utilization=83, memory_used=28736 << 20)
    running = start(env, python=python, vendor="acme", nvml=True, device_every_s=0.1, devices=[2, 3])
    running.go_on(1.2, "devices")
    assert running.end() == ""
    head = (running.folder / "devices.series.csv").read_text().splitlines()[0]
    assert head.split(",") == list(COLUMNS)
    rows = running.rows()
    assert {row["device"] for row in rows} == {"2", "3"}
    first = next(row for row in rows if row["device"] == "3")
    assert [first[name] for name in QUANTITIES[:-1]] == ["48", "311.0", "28736", "81920", "83", "210", "1593", "idle"]
    times = [float(row["time"]) for row in rows if row["device"] == "3"]
    assert running.started <= times[0] <= times[-1] <= time.time()
    assert sum(1 for row in rows if row["temperature"]) < len(rows) / 3
    log = (running.folder / "acme_monitor.log").read_text().split("\n")
    assert re.fullmatch(STAMP, log[0])
    assert log[1:4] == ["31C 62W 0MiB 81920MiB 0%", "48C 311W 28736MiB 81920MiB 83%", ""]
    report = running.report()
    assert (report["means"]["devices"], report["errors"]) == ("NVML, driver 550.54.15", [])
    assert [sampled["index"] for sampled in report["devices"]] == [2, 3]
    assert "accelerator 3: " in (running.folder / "sys_info.log").read_text()
    assert throttle_names(0x800 | 0x8) == "hw_slowdown+0x800"


@with_gpus
def test_a_lost_device_is_reported_once(start: Start, devices: tuple[Nvml, dict[str, str]], tmp_path: Path) -> None:
    nv, env = devices
    running = start(env, vendor="acme", nvml=True, device_every_s=0.05)
    running.go_on(0.4, "devices")
    nv[5].set(error=GPU_IS_LOST)
    lost = time.time()
    time.sleep(1)
    running.end()
    (event,) = running.report()["events"]
    assert (event["device"], event["sentence"]) == (5, "device 5 is lost: GPU is lost")
    assert event["time"] == pytest.approx(lost, abs=0.6)
    read = monitors.read(tmp_path)["h1_noderank0"]
    assert read.devices[5]["power"].times[-1] <= event["time"] < lost + 0.6 < read.devices[4]["power"].times[-1]
    assert "device 5 is lost: GPU is lost" in monitors.notes(read)
    assert not any(gap.devices == (5,) for gap in read.gaps)


@pytest.mark.parametrize(
    ("orders", "reason"),
    [
        ({}, ["devices: NVML: NVML Shared Library Not Found"]),
        ({"with_pynvml": False}, ["devices: NVML: the pynvml module cannot be imported: No module named 'pynvml'"]),
        ({"devices": []}, []),
    ],
)
def test_a_missing_nvml_is_reported_once_and_only_with_devices(
    start: Start, orders: dict[str, Any], reason: list[str]
) -> None:
    running = start(nvml=True, vendor="acme", every_s=0.05, device_every_s=0.05, **orders)
    running.go_on(0.3)
    running.end()
    missing = [sentence for sentence in running.report()["missing"] if "nvml" in sentence.lower()]
    assert missing == reason
    assert not list(running.folder.glob("devices*"))
    assert not list(running.folder.glob("acme*"))


# -- devices through the tool of their vendor ----------------------------------------------------------------

PROBE = """
COMMAND = {command!r}
EVERY_S = 0.1
DEADLINE_S = 60
def parse(text):
    rows = [line.split() for line in text.splitlines()]
    return [{{"temperature": float(row[0]), "power": float(row[1]), "memory_used": int(row[2])}} for row in rows]
"""


def written_probe(folder: Path, *words: str, text: str = PROBE) -> dict[str, str]:
    path = folder / "probe.py"
    path.write_text(text.format(command=list(words)))
    return {"module": str(path)}


def test_a_vendors_tool_is_read_in_place_of_a_missing_nvml(start: Start, tmp_path: Path) -> None:
    result = written_probe(tmp_path, "printf", "40 114.6 28653\\n41 90 1\\n")
    running = start(nvml=True, vendor="acme", probe=result, devices=[1], device_every_s=0.05)
    running.go_on(0.3, "devices")
    running.end()
    rows = running.rows()
    assert {(row["device"], row["temperature"], row["power"], row["utilization"]) for row in rows} == {
        ("1", "41.0", "90.0", "")
    }
    assert "41C 90W 1MiB N/A N/A" in (running.folder / "acme_monitor.log").read_text()
    assert running.report()["means"]["devices"].startswith("printf 40 114.6")
    assert "utilization: missing in the tool's output (device 1)" in running.report()["missing"]
    assert running.report()["schedule"]["devices"]["every_s"] == 0.1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["printf", "not figures\\n"], "parse() of the output of printf: ValueError: could not convert"),
        (["sh", "-c", "echo no device >&2; exit 3"], "sh ended with exit code 3: no device"),
        (["no-such-tool"], "no-such-tool: No such file or directory"),
        (["sleep", "60"], "sleep did not end within 0.2 s and was killed"),
        (["sh", "-c", "sleep 60 & exec sleep 60"], "sh did not end within 0.2 s and was killed"),
    ],
)
def test_a_failing_tool_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], message: str
) -> None:
    monkeypatch.setenv("FLAGPERF_SAMPLING", str(tmp_path))
    notes = Notes()
    module = written_probe(tmp_path, *words, text=PROBE.replace("60", "0.2") if "0.2" in message else PROBE)["module"]
    tool = probe.Probe(module, 0.1, DeviceFiles(str(tmp_path), "acme"), notes)
    assert tool.open(None) is None
    for tick in range(2):
        tool.sample(tick)
    tool.close()
    (error,) = notes.report()["errors"]
    assert error["sentence"].startswith(message)
    assert error["times"] == 2
    until(lambda: not tools_of(tmp_path), "the end of its tools", 5)


def test_a_running_tool_delays_no_host_sample_and_ends(start: Start, tmp_path: Path) -> None:
    result = written_probe(tmp_path, "sleep", "61")
    running = start(vendor="acme", probe=result, every_s=0.1)
    running.until(lambda: tools_of(running.folder) and len(running.rows("host")) > 5)
    running.end()
    assert tools_of(running.folder) == []
    running = start(vendor="acme", probe=result, every_s=0.1)
    running.until(lambda: tools_of(running.folder))
    running.process.kill()
    running.wait()
    until(lambda: not tools_of(running.folder), "the end of its tools", 5)


def tools_of(folder: Path) -> list[str]:
    """Return the pids of the running tools of the sampler with this folder."""
    tools = (process for process in living() if process.words[:1] == ["sleep"])
    return [str(process.pid) for process in tools if str(folder) in " ".join(process.environment.values())]


READY = "COMMAND = ['tool']\ndef parse(text): return []"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def parse(text): return []", "COMMAND must be a list of strings, for example ['tool', '-q']; got None"),
        ("COMMAND = 'tool -q'\ndef parse(text): return []", "COMMAND must be a list of strings, for example ['tool',"),
        ("COMMAND = ['tool']", "has no parse(text)"),
        ("EVERY_S = '1'\n" + READY, "EVERY_S must be a positive number of seconds; got '1'"),
        ("DEADLINE_S = 0\n" + READY, "DEADLINE_S must be a positive number of seconds; got 0"),
        ("ENVIRONMENT = ['A=1']\n" + READY, "ENVIRONMENT must map strings to strings, for example {'PATH': "),
        ("import nowhere", "cannot be loaded: ModuleNotFoundError"),
        ("def (", "cannot be loaded: SyntaxError"),
    ],
)
def test_a_broken_probe_is_reported(tmp_path: Path, text: str, message: str) -> None:
    module = written_probe(tmp_path, text=text)["module"]
    assert message in str(probe.Probe(module, 1.0, DeviceFiles(str(tmp_path), "acme"), Notes()).open(None))


def opened(folder: Path, text: str) -> tuple[probe.Probe, Notes]:
    """A probe of this text in the sampler, and what it notes."""
    (folder / "probe.py").write_text(text)
    notes = Notes()
    sampled = probe.Probe(str(folder / "probe.py"), 1.0, DeviceFiles(str(folder), "acme"), notes)
    assert sampled.open(None) is None
    return sampled, notes


@pytest.mark.parametrize(
    ("answer", "missing", "errors"),
    [
        ("[{'power': 'NA'}]", "power: 'NA' is not a number (device 0)", []),
        ("[{'power': float('nan')}]", "power: nan is not a number (device 0)", []),
        ("[{'power': 1, 'fan': 3}]", "fan: unknown key; expected one of", []),
        ("[{'power': 1, 'links': '3'}]", "links: invalid value '3' (device 0)", []),
        ("{'power': 1}", "", ["parse() must return a list of dictionaries, one for each device"]),
        ("[3]", "", ["parse() must return a list of dictionaries, one for each device"]),
        ("[{'device': '0'}]", "", ["parse() returned the device number '0'; expected a unique integer"]),
        ("[{'device': None}]", "", ["parse() returned the device number None; expected a unique integer"]),
        ("[{1: 2, 'fan': 3}]", "1: unknown key; expected one of", []),
        ("[{}, {'device': 0}]", "", ["parse() returned the device number 0; expected a unique integer"]),
    ],
)
def test_invalid_readings_are_reported(tmp_path: Path, answer: str, missing: str, errors: list[str]) -> None:
    sampled, notes = opened(tmp_path, f"COMMAND = ['true']\ndef parse(text): return {answer}\n")
    sampled.sample(0)
    sampled.close()
    report = notes.report()
    assert [error["sentence"] for error in report["errors"]] == errors
    assert any(sentence.startswith(missing) for sentence in report["missing"]) == bool(missing)


def test_ever_changing_invalid_values_do_not_fill_the_report() -> None:
    notes = Notes()
    for number in range(2 * MOST_KEPT):
        notes.missing(f"uuid: invalid value {number}", 0)
    notes.missing("uuid: invalid value 0", 1)
    missing = notes.report()["missing"]
    assert (len(missing), missing[0]) == (MOST_KEPT, "uuid: invalid value 0 (devices 0, 1)")


def test_a_tool_reports_foreign_processes_and_health(start: Start, tmp_path: Path) -> None:
    orphan = subprocess.run(["sh", "-c", "sleep 60 >&- 2>&- & echo $!"], capture_output=True, text=True, check=True)
    (tmp_path / "message").write_text("OK 0")
    text = (
        "COMMAND = {command}\nEVERY_S = 0.1\n"
        "def parse(text):\n"
        "    health, count = text.split()\n"
        f"    reading = dict(memory_total=5, ecc_uncorrected=int(count), processes=[dict(pid={int(orphan.stdout)})])\n"
        "    return [reading if health == 'OK' else dict(reading, trouble=health)]\n"
    )
    try:
        result = written_probe(tmp_path, "cat", str(tmp_path / "message"), text=text)
        running = start(vendor="acme", probe=result, device_every_s=0.1)
        running.until(running.rows)
        (tmp_path / "message").write_text("Alarm 3")
        running.go_on(0.4, "devices")
        running.end()
    finally:
        kill(int(orphan.stdout))
    user = pwd.getpwuid(os.getuid()).pw_name
    assert {(event["kind"], event["sentence"]) for event in running.report()["events"]} == {
        (None, "device 0: trouble changed from none to Alarm"),
        (None, "device 0: ecc_uncorrected changed from 0 to 3"),
        ("foreign", f"device 0 was also in use by sleep of {user} (pid {int(orphan.stdout)})"),
    }
    assert "accelerator 0: 5 MiB\n" in (running.folder / "sys_info.log").read_text()


def test_a_device_missing_in_the_tools_output_and_a_change_of_its_facts_are_events(tmp_path: Path) -> None:
    command = f"COMMAND = {['cat', str(tmp_path / 'n')]!r}\n"
    (tmp_path / "n").write_text("xx")
    sampled, notes = opened(tmp_path, f"{command}def parse(text): return [dict(power=1)] * len(text)\n")
    sampled.sample(0)
    (tmp_path / "n").write_text("x")
    sampled.sample(1)
    sampled.sample(2)
    sampled.close()
    assert [event["sentence"] for event in notes.report()["events"]] == ["device 1 is no longer in the output of cat"]
    # So is a change of the facts that the tool reports.
    parse = "return [dict(power=1, name='X9', driver=text.strip(), uuid='u1')]"
    (tmp_path / "n").write_text("1.0\n")
    sampled, notes = opened(tmp_path, f"{command}def parse(text): {parse}\n")
    sampled.sample(0)
    (tmp_path / "n").write_text("2.0\n")
    sampled.sample(1)
    sampled.sample(2)
    sampled.close()
    (event,) = notes.report()["events"]
    assert (event["kind"], event["sentence"]) == ("changed", "device 0: driver changed from 1.0 to 2.0")
    assert sampled.driver == "1.0"
    (facts,) = sampled.facts()
    known = {name: value for name, value in facts.items() if value is not None}
    assert known == {"index": 0, "name": "X9", "driver": "1.0", "uuid": "u1"}
