"""Containers by the means of sites without Docker: Apptainer on hosts over SSH and in Slurm jobs, and pyxis.

Apptainer is the real one if the machine has it (/opt/apptainer, or the PATH); the plug-in pyxis is a double, which
goes all the way of a real Slurm's options (pyxis_double.c).
"""

import io
import shutil
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.engine import base_image
from tests.lab.lab import PYTHON, Lab, LabHost
from tests.lab.needs import SLURM, missing_programs, require
from tests.lab.runs import ClusterToy
from tests.lab.slurm import Slurm
from tests.lab.test_slurm import SlurmToy, slurm_toy, started_beside

IMAGE = "/shared/image"
DOUBLE = Path(__file__).with_name("apptainer_double.py")
_REAL = ("/opt/apptainer/bin/apptainer", "/usr/bin/apptainer", "/usr/local/bin/apptainer")


@pytest.fixture(scope="module")
def image(lab: Lab) -> Path:
    """The smallest system with a shell as a folder that all hosts see; programs of the machine are mounted into it."""
    folder = lab.folder / "shared" / "image"
    with tarfile.open(fileobj=io.BytesIO(base_image())) as tar:
        tar.extractall(folder, filter="fully_trusted")
    for name in ("etc/hosts", "etc/resolv.conf", "etc/localtime"):
        (folder / name).touch()
    (folder / "bin/python3").symlink_to(PYTHON)
    return folder


def install(hosts: list[LabHost]) -> None:
    """Put Apptainer on the hosts, unless the machine has it, which they see."""
    if not any(map(shutil.which, _REAL)):
        for host in hosts:
            program = host.root / "usr/local/bin/apptainer"
            program.write_text(f"#!{PYTHON}\n{DOUBLE.read_text()}")
            program.chmod(0o755)


@pytest.mark.usefixtures("image")
def test_apptainer_on_two_hosts(cluster: ClusterToy, lab: Lab) -> None:
    install(cluster.hosts)
    options = [" ".join(lab.container_options(PYTHON))]
    cluster.settings(nodes="2x2", runtime="apptainer", image=IMAGE, container_opt=options)
    cluster.passed()
    assert cluster.round_json(name="plan")["interpreter"]["image"] == IMAGE
    log = next(cluster.toy.runs[-1].glob("*/round1/h2_noderank1/rank2.out.log")).read_text()
    assert "FINISHED" in log
    output = cluster.failed("--set=fault=import")
    assert "rank 3 on h2" in output


@pytest.fixture(scope="module")
def slurm(lab: Lab, image: Path, request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """A Slurm with the double of pyxis on two hosts."""
    problems = missing_programs(SLURM)
    if not Path("/usr/include/slurm/spank.h").exists():
        problems.append("missing slurm/spank.h: apt-get install libslurm-dev")
    require(request.config, problems)
    hosts = lab.hosts(2, fresh=True)
    install(hosts)
    with Slurm(lab, hosts, pyxis=True) as started:
        yield started


@pytest.fixture
def toy(slurm: Slurm, lab: Lab, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmToy]:
    always = {"image": IMAGE, "container_opt": [" ".join(lab.container_options(PYTHON))], "runtime": "pyxis"}
    with slurm_toy(slurm, lab, pytester, monkeypatch, **always) as made:
        yield made


@pytest.mark.parametrize("runtime", ["apptainer", "pyxis"])
def test_containers_in_jobs(toy: SlurmToy, slurm: Slurm, runtime: str) -> None:
    toy.settings(runtime=runtime, nodes="2x2")
    toy.passed()
    assert toy.round_json(name="plan")["interpreter"]["label"] == f"{runtime}: {IMAGE}"
    assert slurm.queue == []


def test_an_image_that_pyxis_cannot_import_is_named(toy: SlurmToy) -> None:
    toy.set(image="registry.example/no/such:1")
    output = toy.failed()
    reason = "Slurm cannot start a container of registry.example/no/such:1: failed to import docker image"
    assert f"h1: {reason} registry.example#no/such:1; check --image" in output


def test_a_killed_controller_leaves_no_step_of_pyxis(toy: SlurmToy, slurm: Slurm) -> None:
    toy.settings(runtime="pyxis", nodes="1x1", lease_time=2)
    run = started_beside(toy, slurm, step_s=1)
    run.going.process.send_signal(signal.SIGKILL)
    slurm.wait_until_idle()
    for host in slurm.hosts:  # the logs wait for --resume
        host.run(["sh", "-c", "rm -rf /tmp/pytest-flagperf-0/rounds/*"])
