"""Preflight: the problems of all hosts before a run, each with its remedy."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from flagperf_driver import ports
from flagperf_driver.node import orphans, preflight_facts, temporary
from flagperf_driver.node.folder import default_folder
from flagperf_driver.node.sampling import load, topology
from flagperf_driver.node.sampling.health import describe_device
from pytest_flagperf.catalog import DataItem
from pytest_flagperf.engines import FAIL, OK, WARN, Finding
from pytest_flagperf.engines.agents.preflight import (
    Data,
    HostRequirements,
    Thresholds,
    host_check,
    host_findings,
    inspect,
    lines,
    near_devices,
    sentences,
    unfit_devices,
)
from pytest_flagperf.engines.agents.preflight.host_rules import network_findings
from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.hosts.ssh import ssh_hosts
from pytest_flagperf.progress import subscribed
from pytest_flagperf.runtime import EngineRequirements
from tests.helpers.rounds import Elsewhere
from tests.helpers.trees import write

if TYPE_CHECKING:
    from tests.lab.lab import Lab

pytestmark = pytest.mark.usefixtures("fresh_cache")
CODE = pack({})
GIB = 1 << 30
BUSY, IDLE = "while True: pass", "input()"
# The machine of the tests may be small or busy.
ROOMY = Thresholds(
    disk_warn_gib=0.01, disk_fail_gib=0.001, memory_warn_gib=0.1, memory_fail_gib=0.01, others_warn=9, stolen_warn=9
)
REQUIREMENTS = HostRequirements(CODE, limits=ROOMY)


def of(findings: list[Finding], kind: str) -> list[tuple[str, str]]:
    return [(one.level, one.sentence) for one in findings if one.kind == kind]


def bad(findings: list[Finding]) -> set[tuple[str, str]]:
    return {(one.host, one.kind) for one in findings if one.level != OK}


def test_good_hosts_are_ok_and_reach_each_other_where_they_must() -> None:
    hosts = [Elsewhere("a"), Elsewhere("b"), Elsewhere("c")]
    findings = inspect(hosts, replace(REQUIREMENTS, nnodes=2))
    assert bad(findings) == set()
    assert [one.host for one in findings] == sorted(one.host for one in findings)
    kinds = {one.kind for one in findings if one.host == "b"}
    assert kinds == {"python", "clock", "cores", "memory", "load", "disk", "port", "network"}
    assert of(findings, "network") == [(OK, "reaches 2 others")] * 3
    seen: list[Host] = []
    assert of(inspect([LocalHost("a"), LocalHost("b")], REQUIREMENTS, meanwhile=seen.append), "network") == []
    assert sorted(host.name for host in seen) == ["a", "b"]


def test_a_missing_and_a_broken_python_are_named_and_other_hosts_checked(tmp_path: Path) -> None:
    lacking = Elsewhere("lacking")
    lacking.python = "/no/such/python"
    findings = inspect([Elsewhere("a"), lacking, Elsewhere("b")], replace(REQUIREMENTS, nnodes=2))
    assert bad(findings) == {("lacking", "python")}
    (fault,) = [one for one in findings if one.fatal]
    assert "/no/such/python" in fault.sentence
    assert fault.remedy.startswith("Python >= 3.8 is required")
    assert of(findings, "network") == [(OK, "reaches 1 other")] * 2
    broken = Elsewhere("broken")
    script = write(tmp_path, "python", "#!/bin/sh\necho out of order >&2\nexit 3\n")
    script.chmod(0o755)
    broken.python = str(script)
    (fault,) = [one for one in inspect([broken], REQUIREMENTS) if one.fatal]
    assert "out of order" in fault.sentence


def test_data_missing_on_one_host_are_reported_for_that_host_only(tmp_path: Path) -> None:
    folder = str(write(tmp_path, "cases/train", "12345").parent)

    def needing(*items: DataItem) -> HostRequirements:
        return replace(REQUIREMENTS, data=(Data(folder, items),))

    reported: list[str] = []
    with subscribed({"activity": lambda text: reported.append(text)}):
        findings = inspect([LocalHost()], needing(DataItem("train", size=5)))
    assert of(findings, "data") == [(OK, folder)]
    assert reported[-1] == f"preflight: checking {folder}: 1 of 1 part"
    assert of(inspect([LocalHost()], needing(DataItem("train", size=6), DataItem("eval"))), "data") == [
        (FAIL, f"{folder}/train: got 5 bytes, expected 6"),
        (FAIL, f"{folder}/eval: file not found; {folder} contains train"),
    ]


def test_a_wrong_clock_is_a_warning_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of(inspect([Elsewhere("a")], REQUIREMENTS), "clock")[0][0] == OK
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3600.0)
    found = inspect([Elsewhere("a")], REQUIREMENTS)
    assert of(found, "clock")[0][1].startswith("1.0 h ahead of this machine's clock")
    assert bad(found) == {("a", "clock")}
    assert not any(one.fatal for one in found)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    results = replace(REQUIREMENTS, folder=str(tmp_path / "file" / "reports"))
    sentence = f"cannot write in {tmp_path}/file/reports: Not a directory"
    assert of(inspect([LocalHost()], results), "disk")[-1] == (FAIL, sentence)
    assert bad(inspect([Elsewhere()], results)) == set()  # results are written only on this machine


def test_a_hanging_host_is_reported_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_check, "_ANSWER_S", 1.0)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "docker.sock"))
        silent.listen()
        engine = EngineRequirements("x", image_is_ours=True, socket=str(tmp_path / "docker.sock"))
        (fault,) = inspect([Elsewhere("slow")], replace(REQUIREMENTS, engine=engine))
    assert (fault.kind, fault.level) == ("host", FAIL)
    assert "no reply to the host check in time" in fault.sentence


def place(server: preflight_facts.TokenServer, **changed: object) -> dict[str, object]:
    return {"name": "mine", "address": "127.0.0.1", "port": server.port, "token": server.token, **changed}


def test_another_program_at_an_address_is_not_a_connection() -> None:
    mine, other = preflight_facts.TokenServer(), preflight_facts.TokenServer()
    places = [
        place(mine),
        place(other, name="other", token=mine.token),
        place(mine, name="closed", port=1),
        place(mine, name="unknown", address="no.such.host.invalid"),
    ]
    failed = preflight_facts.connect(places, 2.0)
    assert failed["other"] == "another machine or program answers at this address"
    assert failed["closed"] == "connection refused"
    assert failed["unknown"].startswith("no.such.host.invalid: ")
    assert "mine" not in failed


def test_a_host_without_free_descriptors_waits_between_two_visitors(monkeypatch: pytest.MonkeyPatch) -> None:
    here, visitor = socket.socketpair()
    refusals, visitors = [errno.EMFILE, errno.EMFILE], [here]
    pauses: list[float] = []

    class Listener:
        def accept(self) -> tuple[socket.socket, None]:
            if refusals:
                raise OSError(refusals.pop(), "no free descriptor")
            if not visitors:
                threading.Event().wait()
            return visitors.pop(), None

    monkeypatch.setattr(preflight_facts, "_listener", Listener)
    monkeypatch.setattr(preflight_facts, "time", SimpleNamespace(sleep=pauses.append))
    server = preflight_facts.TokenServer()
    with visitor:
        assert visitor.recv(100) == server.token.encode()
    assert pauses == [0.1, 0.1]


def test_no_route_is_tried_again_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [errno.EHOSTUNREACH, errno.EHOSTUNREACH]
    connect = socket.create_connection

    def lossy(*what: Any) -> socket.socket:
        if failures:
            raise OSError(number := failures.pop(), os.strerror(number))
        return connect(*what)

    monkeypatch.setattr(socket, "create_connection", lossy)
    monkeypatch.setattr(ports, "_AGAIN_S", 0.01)
    places = [place(preflight_facts.TokenServer())]
    assert preflight_facts.connect(places, 5.0) == {}
    failures[:] = [errno.EHOSTUNREACH] * 100
    assert preflight_facts.connect(places, 0.1) == {"mine": "no route to host"}
    failures[:] = [errno.ENETUNREACH]
    assert preflight_facts.connect(places, 5.0) == {"mine": "network is unreachable"}


def meetings(**failed: list[str]) -> list[tuple[str, str, str]]:
    """Return the findings of hosts that tried to connect with each other."""
    met = {name: {one: "late" if one in targets else None for one in failed} for name, targets in failed.items()}
    found = network_findings(met, {name: f"10.0.0.{number}" for number, name in enumerate(failed)})
    return [(one.host, one.level, one.sentence) for its in found.values() for one in its]


def test_the_host_that_others_or_that_cannot_reach_others_gets_the_finding() -> None:
    assert meetings(h0=["h2"], h1=["h2"], h2=["h2"], h3=["h2"]) == [
        ("h2", FAIL, "h0, h1, h2 and 1 more cannot reach this host at 10.0.0.2: late"),
        ("h2", OK, "reaches 3 others"),
        ("h0", OK, "reaches 2 others"),
        ("h1", OK, "reaches 2 others"),
        ("h3", OK, "reaches 2 others"),
    ]
    found = meetings(h0=[], h1=[], h2=[], h3=["h0", "h1", "h2"])
    assert [entry for entry in found if entry[1] == FAIL] == [
        ("h3", FAIL, "cannot reach h0, h1, h2 (10.0.0.0: late; 10.0.0.1: late; 10.0.0.2: late)")
    ]


def test_of_many_hosts_each_tries_itself_and_some_others() -> None:
    places = [{"name": str(number)} for number in range(20)]
    tried = [[place["name"] for place in host_check._neighbours(own, places)] for own in range(20)]
    assert tried[17] == ["17", "18", "19", "0", "1", "2", "3", "4", "5"]
    assert {len(names) for names in tried} == {9}
    assert [place["name"] for place in host_check._neighbours(1, places[:3])] == ["1", "2", "0"]


FACTS: dict[str, Any] = {
    "python": "3.11.7",
    "executable": "/usr/bin/python3",
    "cores": 64,
    "memory": {"total": 512 * GIB, "free": 400 * GIB},
    "disks": [{"what": "cache", "path": "/c", "free": 100 * GIB, "total": 200 * GIB, "device": 1, "error": None}],
    "port": 20000,
    "docker": None,
    "apptainer": None,
    "data": [],
    "caches": None,
    "leftovers": [],
    "load": {"cores": 64, "others": 0.4, "stolen": 0.0, "load1": "0.50", "busiest": []},
    "devices": None,
}


def device(index: int, **changed: Any) -> dict[str, Any]:
    well = {
        "name": "Acme X9-80GB", "uuid": f"u{index}", "memory_total": 81920, "partitioned": False,
        "ecc_corrected": 7, "ecc_uncorrected": 0, "row_remap_pending": False, "row_remap_failed": False,
        "power_limit": 700.0, "usual_power_limit": 700.0, "links": 18, "links_down": 0, "link_errors": 3,
        "pcie_generation": 1, "best_pcie_generation": 5, "pcie_width": 16, "best_pcie_width": 16,
    }  # fmt: skip
    return describe_device(index, {**well, **changed}, processes=[], throttle=[], error=None) | changed


def silent(index: int) -> dict[str, Any]:
    """Return a device of which the tool reports nothing but its index."""
    return describe_device(index, {}, processes=[], throttle=[], error=None)


def judged(*devices: dict[str, Any], survey: dict[str, Any] | None = None, **requirements: Any) -> list[Finding]:
    facts = {**FACTS, "devices": {"driver": "1.2", "devices": list(devices), "error": None, **(survey or {})}}
    usual = {"hardware": "X9", "chips": {"X9": (), "Y1": ("Why ?1",)}, "nproc": 2, "devices_per_host": len(devices)}
    merged = HostRequirements(CODE, **{**usual, **requirements})
    return list(host_findings("h1", facts, merged))


def foreign_process(**changed: Any) -> dict[str, Any]:
    return {"pid": 77, "name": "python", "memory": 512, "own": False, "user": "eve", **changed}


def test_devices_are_counted_missing_ones_never_leased_and_too_few_refused() -> None:
    """Rounds could request any number up to the host's number of cores."""
    found = judged(device(0), device(2), devices_per_host=None)
    assert of(found, "devices") == [(OK, "2 Acme X9-80GB, driver 1.2")]
    assert unfit_devices(found) == {"h1": {1, *range(3, 64)}}
    assert unfit_devices(judged(device(0), device(1), device(3), devices_per_host=3)) == {"h1": {2}}
    assert of(judged(device(0), device(1)), "devices") == [(OK, "2 Acme X9-80GB, driver 1.2")]
    assert bad(judged(device(0), device(1))) == set()
    assert of(judged(device(0)), "devices") == [(FAIL, "1 available, 2 needed")]
    found = judged(device(0), device(1), device(3), devices_per_host=5)
    assert of(found, "devices") == [(WARN, "found 3, expected 5 on a host with X9: devices 2, 4 are missing")]
    assert unfit_devices(found) == {"h1": {2, 4}}
    assert of(judged(device(0), device(2), devices_per_host=3), "devices") == [
        (WARN, "found 2, expected 3 on a host with X9: device 1 is missing")
    ]


def test_another_chip_is_refused_and_the_right_name_offered() -> None:
    (fault,) = [one for one in judged(device(0), device(1, name="Acme Why1"), device(2)) if one.level != OK]
    assert (fault.level, fault.sentence) == (FAIL, "device 1 is a Acme Why1, not X9")
    assert fault.remedy == "pass --hw=Y1"
    (fault,) = [one for one in judged(*(device(n, name="Acme X90") for n in range(2))) if one.level != OK]
    assert fault.sentence == "devices 0, 1 are Acme X90, not X9"
    assert "chips.X9.names in vendor.toml" in fault.remedy


def test_the_cores_near_each_device_are_reported_if_the_host_knows_them() -> None:
    near = [[0, 1], [0, 1], [2, 3], []]
    found = judged(*(device(index, near=its) for index, its in enumerate(near)))
    assert of(found, "numa") == [(OK, "devices 0-1 near cores 0-1; device 2 near cores 2-3")]
    assert near_devices(found) == {"h1": {0: (0, 1), 1: (0, 1), 2: (2, 3)}}
    assert near_devices(judged(device(0), device(1, near=[]))) == {}


def test_the_cores_near_a_device_are_read_from_the_kernel_by_its_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    survey = {"devices": [describe_device(0, {"pci": "0:65:00.0"}, processes=[]), describe_device(1, {}, processes=[])]}
    monkeypatch.setattr(preflight_facts, "_survey", lambda _: survey)
    monkeypatch.setattr(topology, "near", lambda pci, usable: sorted(usable)[:1] if pci else [])
    near = [one["near"] for one in preflight_facts._devices({})["devices"]]
    assert near == [sorted(os.sched_getaffinity(0))[:1], []]


def test_a_device_with_a_foreign_process_is_refused_only_if_it_is_needed() -> None:
    taken = device(1, processes=[foreign_process()])
    (fault,) = [one for one in judged(device(0), taken) if one.level != OK]
    assert (fault.kind, fault.level, fault.devices) == ("foreign processes", FAIL, (1,))
    assert fault.sentence == "device 1 is in use by python (pid 77 of eve, 512 MiB)"
    (spare,) = [one for one in judged(device(0), taken, device(2)) if one.level != OK]
    assert spare.level == WARN
    assert unfit_devices([spare]) == {"h1": {1}}
    own = device(1, processes=[foreign_process(own=True)])  # a round waits for its lease
    assert bad(judged(device(0), own)) == set()


def test_unhealthy_devices_are_named() -> None:
    sick = [
        device(0, ecc_uncorrected=3),
        device(1, row_remap_pending=True),
        device(2, throttle=["hw_thermal", "sw_power_cap", "{hot}"]),
        device(3, row_remap_failed=True),
        device(4, error="GPU is lost", name=None),
        device(5, trouble="Warning {0}"),
        device(6, power_limit=250.0, throttle=["sw_power_cap"]),
        device(7, power_limit=250.0),
        device(8, pcie_width=8),
        device(9, links=16, links_down=2),
        device(10, throttle=["sw_power_cap"]),
    ]
    assert of(judged(*sick), "health") == [
        (WARN, "device 3 could not remap failing memory rows"),
        (WARN, "device 4 cannot be read: GPU is lost"),
        (WARN, "device 0 had 3 uncorrected memory errors"),
        (WARN, "device 1 needs a reset to remap failing memory rows"),
        (WARN, "device 2 is throttled: hw_thermal, {hot}"),
        (WARN, "the vendor's tool reports for device 5: Warning {0}"),
        (WARN, "devices 6, 7 are limited to 250 W; the default is 700 W"),
        (WARN, "device 8 has 8 of its 16 PCIe lanes"),
        (WARN, "device 9 has 16 of 18 links to other devices up"),
    ]
    assert {level for level, _ in of(judged(*sick, nproc=10), "health")} == {WARN, FAIL}
    assert unfit_devices(judged(*sick)) == {"h1": {3, 4}}


def test_normal_and_unknown_values_are_not_findings() -> None:
    """A limit above the default, an idle bus, devices without a bridge."""
    assert bad(judged(silent(0), device(1))) == set()
    assert bad(judged(device(0, power_limit=750.0), device(1, pcie_generation=1))) == set()
    assert bad(judged(device(0, links=0, links_down=12), device(1, links=0, links_down=12))) == set()
    for links, down in ((0, 18), (None, 2)):
        found = judged(device(0, links=links, links_down=down), device(1))
        assert of(found, "health") == [(WARN, f"device 0 has 0 of {down} links to other devices up")]


def test_a_partition_is_not_the_chip_and_without_a_driver_nothing_is() -> None:
    (fault,) = [one for one in judged(device(0), device(1, partitioned=True)) if one.level != OK]
    assert (fault.level, fault.devices) == (FAIL, (1,))
    assert fault.sentence == "device 1 is partitioned (MIG) and not a whole chip"
    assert fault.remedy == "disable its partitioning"
    (spare,) = [one for one in judged(device(0), device(1, partitioned=True), device(2)) if one.level != OK]
    assert spare.level == WARN
    found = judged(survey={"driver": None, "error": "NVML: no driver"}, nvml=True)
    assert of(found, "devices") == [(FAIL, "NVML: no driver")]


def test_devices_that_are_read_with_the_fallback_tool_are_reported() -> None:
    found = judged(silent(0), device(1), survey={"fallback_reason": "NVML: no library"}, nvml=True)
    assert of(found, "devices")[0] == (
        WARN,
        "the vendor's command-line tool is started for each sample and reports fewer values: NVML: no library",
    )
    assert {one.level for one in found} == {OK, WARN}


SMALL_REQUIREMENTS = HostRequirements(CODE, nproc=8)


def found_of(**facts: Any) -> list[Finding]:
    """Return the findings of a host that are not OK."""
    return [one for one in host_findings("h", {**FACTS, **facts}, SMALL_REQUIREMENTS) if one.level != OK]


def limits(**facts: Any) -> dict[str, str]:
    return {one.kind: one.level for one in found_of(**facts)}


def test_little_disk_space_memory_for_each_process_and_old_pythons_are_reported() -> None:
    for free, level in ((3 * GIB, None), (GIB, WARN), (GIB // 8, FAIL)):
        assert limits(disks=[{**FACTS["disks"][0], "free": free}]) == ({"disk": level} if level else {})
    for free, level in ((9 * GIB, None), (7 * GIB, WARN), (GIB, FAIL)):
        assert limits(memory={"total": 9 * GIB, "free": free}) == ({"memory": level} if level else {})
    assert "request fewer" in "".join(one.remedy for one in found_of(memory={"total": 2 * GIB, "free": GIB}))
    for version, fits in (("3.7.17", False), ("3.8.0", True), ("3.14.0rc1", True)):
        assert limits(python=version) == ({} if fits else {"python": FAIL})


def test_other_work_stolen_or_few_cores_no_port_and_uncleared_caches_are_reported() -> None:
    busiest = [{"pid": 17, "name": "make", "cores": 6.0}, {"pid": 4, "name": "cc1", "cores": 0.51}]
    load = {"cores": 64, "others": 6.6, "stolen": 0.0, "load1": "7.21", "busiest": busiest}
    (found,) = found_of(load=load)
    assert (found.kind, found.level) == ("load", WARN)
    assert found.sentence == (
        "other processes use 6.6 of 64 cores, load average 7.21; busiest: make (pid 17, 6.0), cc1 (pid 4, 0.5)"
    )
    assert limits(load={**load, "others": 6.3}) == {}
    load = {**FACTS["load"], "stolen": 0.12}
    (found,) = found_of(load=load)
    assert found.sentence == "the hypervisor gives 12 % of the cores' working time to other machines"
    assert limits(load={**load, "stolen": 0.04}) == {}
    assert limits(cores=2, port=None, caches=False) == {"cores": WARN, "port": FAIL, "caches": WARN}


@pytest.mark.parametrize(
    ("others", "stolen", "readings"), [(0.0, 0.0, 1), (0.2, 0.0, 1), (0.3, 0.0, 2), (0.0, 0.01, 2)]
)
def test_a_busy_host_is_reread(others: float, stolen: float, readings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read_at: list[float] = []

    def reading(_: load.Survey, seconds: float) -> tuple[dict[str, Any], dict[int, float]]:
        read_at.append(seconds)
        return {"cores": 4, "others": others, "stolen": stolen, "after": seconds}, {}

    survey = load.Survey()
    monkeypatch.setattr(load.Survey, "_after", reading)
    monkeypatch.setattr(time, "monotonic", lambda: survey._begin)  # a busy machine may take longer than a reading
    found = survey.result()
    assert read_at == list(load._SURVEY_S[:readings])
    assert found["after"] == read_at[-1]


def test_a_busy_process_is_found_and_a_process_of_a_round_is_not(tmp_path: Path) -> None:
    with running(BUSY) as other, running(BUSY, FLAGPERF_LOG_DIR=tmp_path, RANK=0) as own:
        survey = load.Survey(controller=-1)  # both are children of this process
        time.sleep(0.5)
        found = survey.result()
    assert found["others"] > 0.1
    # Other processes of this machine may be even busier.
    every = {pid for pid, _ in survey._busiest._most}
    assert other.pid in every
    assert own.pid not in every


def test_processes_that_the_controller_starts_during_the_survey_are_not_others() -> None:
    survey = load.Survey(controller=os.getpid())
    with running(BUSY) as runs:
        subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.2: pass"], check=True)
        survey.result()
        own = survey._own_processes()
    assert runs.pid in own
    used_s = round(own[os.getpid()] - survey._own_s_before[os.getpid()], 2)  # in ticks of 0.01 s
    assert used_s >= 0.19  # with the process that has ended
    assert runs.pid not in {pid for pid, _ in survey._busiest._most}


@contextmanager
def running(code: str, **environment: object) -> Iterator[subprocess.Popen[bytes]]:
    argv, env = [sys.executable, "-c", f"print(flush=True)\n{code}"], {k: str(v) for k, v in environment.items()}
    with subprocess.Popen(
        argv, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is running
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.alone  # the check of another run would end the process first
def test_only_leftovers_of_a_dead_run_are_ended_and_reported(tmp_path: Path) -> None:
    dead, alive, unknown = tmp_path / "dead", tmp_path / "alive", tmp_path / "unknown"
    for folder in (dead, alive, unknown):
        folder.mkdir()
    (dead / "agent.lock").touch()
    with (alive / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marked = (running(IDLE, FLAGPERF_LOG_DIR=folder) for folder in (dead, alive, unknown))
        with next(marked) as left, next(marked) as used, next(marked) as other, running(IDLE) as unmarked:
            found = of(inspect([LocalHost("h")], REQUIREMENTS), "leftovers")
            assert left.wait(5) == -9
            assert [process.poll() for process in (used, other, unmarked)] == [None] * 3
    ((level, sentence),) = found
    assert level == WARN
    assert re.fullmatch(rf"a dead run left \S+ \(pid {left.pid}\) of {dead}; removed", sentence)
    assert of(inspect([LocalHost("h")], REQUIREMENTS), "leftovers") == []


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_host_is_found_at_addresses_of_both_kinds() -> None:
    meeting = preflight_facts.TokenServer()
    places = [place(meeting, name=one, address=one) for one in ("127.0.0.1", "::1", "::ffff:127.0.0.1")]
    failed = preflight_facts.connect(places, 5.0)
    assert {name: why for name, why in failed.items() if "assign" not in why} == {}


def test_unfetched_logs_are_removed_after_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(temporary, "SHORT", str(tmp_path))
    week_ago = time.time() - 8 * 86400
    for name, when in (("old", week_ago), ("young", time.time()), ("held", week_ago)):
        folder = default_folder(name)
        folder.mkdir(parents=True)
        (folder / "agent.lock").touch()
        for path in (folder / "agent.lock", folder):
            os.utime(path, (when, when))
    default_folder("x").parent.with_name("tmp").joinpath("r1").mkdir(parents=True)  # its age does not matter
    left = default_folder("left")  # its agent ended in order and left the logs
    left.mkdir()
    os.utime(left, (week_ago, week_ago))
    with (default_folder("held") / "agent.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = [line.partition(" in ")[0] for line in orphans.remove("/no/docker")]
        assert found == ["temporary files", *["logs of 8 days ago"] * 2]
    assert sorted(path.name for path in default_folder("x").parent.iterdir()) == ["held", "young"]


def test_a_leased_device_is_seen_without_touching_the_lease(tmp_path: Path) -> None:
    folder = tmp_path / "leases"
    folder.mkdir()
    with (folder / "device3.lock").open("w") as lock:
        assert not preflight_facts._is_leased(3)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert preflight_facts._is_leased(3)
        assert not preflight_facts._is_leased(2)
    assert not preflight_facts._is_leased(3)


def test_ok_findings_are_short_and_problems_have_a_remedy() -> None:
    findings = [
        Finding("h1", "python", OK, "3.11.7"),
        Finding("h1", "disk", OK, "100 GiB free"),
        Finding("h2", "python", OK, "3.8.18"),
        Finding("h2", "clock", WARN, "it is 2.0 min behind", "set it right"),
        Finding("h2", "disk", FAIL, "full " * 30, "make room"),
    ]
    assert lines(findings, 200) == [
        "h1",
        "  ok    python 3.11.7 · disk 100 GiB free",
        "h2",
        "  ok    python 3.8.18",
        "  warn  clock: it is 2.0 min behind",
        "        -> set it right",
        "  FAIL  disk: full full full full full full full full full full full full full full full full full",
        "        full full full full full full full full full full full full full",
        "        -> make room",
        "2 hosts: 1 ok, 1 unfit (h2)",
    ]


def test_a_finding_of_many_hosts_is_printed_once() -> None:
    findings = [Finding(f"h{n}", "disk", FAIL, "full", "make room") for n in range(5)]
    findings += [Finding("h9", "clock", WARN, "late"), Finding("h9", "data", FAIL, "none")]
    assert sentences(findings) == ["h0, h1, h2 and 2 more: disk: full - make room", "h9: data: none"]
    assert sentences(findings, WARN) == ["h9: clock: late"]


def test_docker_without_permission_and_without_an_engine(lab: Lab) -> None:
    well, mute = lab.hosts(2)
    well.docker()
    well.add_user("bench")
    mute.wear()
    conf = lab.ssh_settings([well])
    hosts = [host for one in (conf, replace(conf, user="bench"), lab.ssh_settings([mute])) for host in ssh_hosts(one)]
    engine = EngineRequirements("no/such:image", socket="/var/run/docker.sock")
    requirements = HostRequirements(CODE, engine=engine, limits=ROOMY)
    fine, forbidden, missing = (inspect([host], requirements) for host in hosts)
    for host in hosts:
        host.close()
    assert [level for level, _ in of(fine, "docker")] == [OK]
    assert of(fine, "image") == [(WARN, "no/such:image not found on the host; it will be pulled")]
    ((level, sentence),) = of(forbidden, "docker")
    assert level == FAIL
    assert "user bench may not use /var/run/docker.sock" in sentence
    assert "(sudo usermod -aG " in sentence
    ((level, sentence),) = of(missing, "docker")
    assert (level, "Docker is not installed or not running" in sentence) == (FAIL, True)
