"""Events on hosts that distort a round's measurements give validity warnings; an undisturbed round has none."""

import json
from typing import Any

import pytest

from pytest_flagperf.results.measured.outcome import Outcome
from tests.helpers.waiting import until
from tests.lab.lab import LabHost
from tests.lab.runs import ClusterToy, assert_nothing_left
from tests.plugin.conftest import Going

GIB = 1 << 30
_SLOW = "--set=step_s=0.5"  # eight seconds to the target: longer than two checks for foreign processes


@pytest.fixture
def gpus(gpus: ClusterToy) -> ClusterToy:
    """One host of eight A100s, whose clock can be set."""
    gpus.hosts[0].clock(0)
    gpus.settings(nodes="1x2", sample=0.1)
    return gpus


def _pids(host: LabHost, words: str) -> list[int]:
    return [one.pid for one in host.processes() if words in one.cmdline]


def begun(cluster: ClusterToy, *arguments: str) -> Going:
    """A run whose ranks have begun to train, and are seen on their devices as a driver shows them."""
    going = cluster.start("-k", "converges", _SLOW, *arguments)
    host = cluster.hosts[0]
    going.wait_for(lambda: cluster.trains(host), "the first step", 60)
    for device, rank in enumerate(_pids(host, "run_pretraining.py")[:2]):
        host.nvml[device].processes((rank, GIB))
        host.nvml[device].set(clock_reasons=0, utilization=97, sm_clock=1410)
    return going


def ended(cluster: ClusterToy, going: Going) -> Outcome:
    """The only round of it, which ended well as far as its ranks are concerned."""
    assert going.wait(120) == 0, going.text
    (path,) = cluster.toy.runs[-1].glob("*/round1/outcome.json")
    outcome = Outcome.from_json(json.loads(path.read_text()))
    assert outcome.ok
    return outcome


def sentences(outcome: Outcome) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for warning in outcome.validity_warnings:
        found.setdefault(warning.kind, []).append(warning.sentence)
    return found


def test_an_undisturbed_round_has_no_validity_warning_and_records_its_machine(gpus: ClusterToy) -> None:
    """The control: a round's own ranks compute, and a foreign process is on another device."""
    going = begun(gpus)
    host = gpus.hosts[0]
    host.nvml[0].set(clock_reasons=0x4)
    host.nvml[5].processes((1, GIB))
    outcome = ended(gpus, going)
    assert sentences(outcome) == {}
    ran_on: dict[str, Any] = {"driver": "550.54.15", "chip": "NVIDIA A100-SXM4-80GB", "firmware": "92.00.45.00.05"}
    ran_on |= {"interconnect": "PCIe 4 x16", "power_limit": "400 W", "chip_memory": "81920 MiB"}
    assert {name: outcome.machine.get(name) for name in ran_on} == ran_on
    assert {"cpu", "cores", "kernel", "os"} <= outcome.machine.keys()
    assert "network" not in outcome.machine
    assert_nothing_left(gpus.hosts)


def test_ranks_in_a_container_are_not_foreign_processes_but_others_are(gpus: ClusterToy, foreign_pid: int) -> None:
    """Root's ranks hide their environment from any other user, but not that they are in the round's container."""
    host = gpus.hosts[0]
    host.nvml.container_toolkit()
    gpus.use_docker(nodes="1x2", sample=0.1)
    host.add_user("bench", docker=True)
    settings = gpus.root / "flagperf.toml"
    settings.write_text(settings.read_text().replace('user = "root"', 'user = "bench"'))
    going = begun(gpus)
    until(lambda: len(_pids(host, "run_pretraining.py")) == 2, "two ranks")
    host.nvml[1].processes((_pids(host, "run_pretraining.py")[1], GIB), (foreign_pid, GIB))
    outcome = ended(gpus, going)
    assert sentences(outcome) == {"foreign": [f"h1: device 1 was also in use by sleep of root (pid {foreign_pid})"]}
    assert outcome.machine["image"] == "flagperf-lab:python"
    assert outcome.machine["image_id"].startswith("sha256:")
