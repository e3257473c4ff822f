"""The shipped suites on hosts of the lab: two of them train one model over SSH, in containers and in environments."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.trees import set_options
from tests.lab.lab import CACHE, HOME, PYTHON, Lab, LabHost
from tests.lab.needs import SLURM, SYSTEM_PATH, missing_programs, require
from tests.lab.runs import assert_nothing_left
from tests.lab.slurm import Slurm


@dataclass
class Bench:
    """The repo's suites in a tree whose settings name two hosts."""

    root: Path
    lab: Lab
    hosts: list[LabHost]

    def run(self, *arguments: str, **settings: Any) -> Path:
        """A run that ends well; its directory."""
        hosts = "" if settings.get("cluster") else self.lab.ssh_settings(self.hosts).toml()
        (self.root / "flagperf.toml").write_text(hosts)
        set_options(self.root, **settings)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "suites", "--nodes=2x1", *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return sorted(self.root.glob("reports/run*"))[-1]


@pytest.fixture
def bench(torch_python: str, lab: Lab, repo: Path, tmp_path: Path) -> Bench:
    """Hosts that are installed when PyTorch's environment is there, which they see."""
    for name in ("suites", "vendors"):
        (tmp_path / name).symlink_to(repo / name)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return Bench(tmp_path, lab, lab.hosts(2, fresh=True))


def test_containers_on_two_hosts_train_resnet50(bench: Bench, torch_python: str) -> None:
    for host in bench.hosts:
        host.docker()
        bench.lab.image(host, Path(torch_python).parent)
    options = [" ".join(bench.lab.container_options(torch_python))]
    run = bench.run(
        "-kresnet50:pytorch and converges", runtime="docker", image="flagperf-lab:python", container_opt=options
    )
    assert_both_took_part(run, "docker")
    assert_nothing_left(bench.hosts)


def test_a_slurm_job_of_two_nodes_trains_resnet50(
    bench: Bench, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(request.config, missing_programs(SLURM))
    with Slurm(bench.lab, bench.hosts, node_timeout_s=30) as slurm:
        number = slurm.allocate("--nodes=2", "--cpus-per-task=2")
        own = {"SLURM_CONF": str(slurm.conf), "SLURM_JOB_ID": number}
        for name, value in {**own, "PATH": f"{PYTHON.parent}:{SYSTEM_PATH}"}.items():
            monkeypatch.setenv(name, value)
        # The nodes inherit the variables: the cache is that with the environments, which they see.
        # The settings of pip and uv stay those with which they were built.
        monkeypatch.setenv("XDG_CONFIG_HOME", os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config"))
        monkeypatch.setenv("HOME", str(HOME))
        monkeypatch.setenv("FLAGPERF_CACHE", str(CACHE))
        run = bench.run("-kresnet50:pytorch and converges", cluster="slurm", runtime="venv")
        assert slurm.queue == [number]
        slurm.command("scancel", number)
        slurm.wait_until_idle()
        assert_nothing_left(bench.hosts)
    assert_both_took_part(run, "venv")


def assert_both_took_part(run: Path, runtime: str) -> None:
    """In what was measured, and on the page."""
    (results,) = json.loads((run / "results.json").read_text())["cases"]
    assert (results["case"], results["converged"]) == ("resnet50:pytorch:CPU:2:1:1", 1)
    environment = results["outcomes"][0]["environment"]
    assert (environment["hosts"], environment["runtime"], environment["world size"]) == ("h1, h2", runtime, "2")
    page = (run / "report.html").read_text()
    for rank, host in enumerate(("h1", "h2")):
        (folder,) = run.glob(f"*/round1/{host}_noderank{rank}")
        assert '"FINISHED"' in (folder / f"rank{rank}.out.log").read_text()
        assert len((folder / "host.series.csv").read_text().splitlines()) > 3
        assert f"{folder.name}/rank{rank}.out.log" in page


def test_the_pair_of_a_limited_cable_is_the_slowest_and_has_its_bandwidth(bench: Bench, torch_python: str) -> None:
    """The second host sends at most 50 MB/s; what it receives is not limited."""
    second = bench.hosts[1]
    second.wear()
    second.run(
        ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "400mbit", "burst", "256kb", "latency", "100ms"]
    )
    run = bench.run(
        "-kinterconnect", f"--python={torch_python}", '--set=operations=["all_reduce"]', "--set=sizes=[1024, 1048576]",
        runtime="host",
    )  # fmt: skip
    outcome = json.loads(next(run.glob("interconnect*/round1/outcome.json")).read_text())
    rates = {point["name"]: point["figures"].get("pair") for point in outcome["points"]}
    figures = {metric["name"]: metric["value"] for metric in outcome["metrics"]}
    assert figures["pair"] == rates["pair 1->0"] == pytest.approx(50e6, rel=0.15)
    assert rates["pair 0->1"] > 2 * rates["pair 1->0"]
    # An all-reduce needs both directions. FlagPerf's formula has one rank per host, for which it is 0.
    assert figures["all_reduce"] < 60e6
    assert figures["P2P_interserver"] == rates["pair 0->1"]
    assert "MPI_interserver" not in figures
    assert "worst: " in (run / "report.html").read_text()
