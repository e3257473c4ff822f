"""Runs of pytest on the lab's hosts, as a user starts them, and the question what they left behind."""

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.trees import set_options
from tests.lab.engine import PORT
from tests.lab.lab import PYTHON, REPO, Lab, LabHost
from tests.plugin.conftest import Going, Toy

POD = "pod"
# What a host runs when it is idle.
_OWN = ("sshd", "dockerd", "containerd", "containerd-shim", "munged", "slurmctld", "slurmd")


@dataclass
class ClusterToy:
    """A toy tree whose settings name lab hosts; ``start`` and ``run`` call pytest in it."""

    toy: Toy
    lab: Lab
    hosts: list[LabHost]
    always: dict[str, Any] = field(default_factory=dict)
    """Settings that each call of ``settings`` writes as well."""

    @property
    def root(self) -> Path:
        return self.toy.root

    def settings(self, hosts: Sequence[LabHost] | None = None, **more: Any) -> None:
        """Write flagperf.toml: the hosts, and options by their names in Python."""
        cluster = self.lab.ssh_settings(self.hosts if hosts is None else hosts).toml()
        (self.root / "flagperf.toml").write_text(cluster)
        self.set(**{**self.always, **more})

    def set(self, **options: Any) -> None:
        """Set options in flagperf.toml; the rest of the file stays."""
        set_options(self.root, **options)

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> Going:
        return self.toy.start("suites", *arguments, env={"COLUMNS": "1000", **(env or {})})  # whole sentences

    def run(self, *arguments: str, timeout_s: float = 180, env: dict[str, str] | None = None) -> tuple[int, str]:
        going = self.start(*arguments, env=env)
        return going.wait(timeout_s), going.text

    def passed(self, *arguments: str) -> str:
        """Run rounds that must pass and leave nothing behind; return the output."""
        return self._ended(0, *arguments)

    def failed(self, *arguments: str) -> str:
        """Run rounds that must fail and leave nothing behind; return the output."""
        return self._ended(1, *arguments)

    def refused(self, *arguments: str) -> str:
        """Run something that must be refused before any round; return the output."""
        output = self._ended(int(pytest.ExitCode.USAGE_ERROR), *arguments)
        assert not list(self.root.glob("reports/run*/*/round*"))
        return output

    def _ended(self, expected: int, *arguments: str) -> str:
        code, output = self.run("-k", "converges", *arguments)
        assert code == expected, output
        assert_nothing_left(self.hosts)
        return output

    # -- what came of it ---------------------------------------------------------------------------------------

    def round_json(self, case: str = "*", name: str = "round") -> Any:
        """What a file of the first round says, such as its outcome.json."""
        (path,) = self.toy.runs[-1].glob(f"{case}/round1/{name}.json")
        return json.loads(path.read_text())

    def trains(self, host: LabHost, event: str = "STEP_END") -> bool:
        """Whether a rank is past its first step there, or as far as another event."""
        logs = host.root.glob("tmp/pytest-flagperf-*/rounds/*/rank*.out.log")
        return any(event in log.read_text(errors="replace") for log in logs)

    @property
    def page(self) -> str:
        return (self.toy.runs[-1] / "report.html").read_text()

    def use_nvidia(self, **more: Any) -> None:
        """The checkout's own vendor instead of toys: eight A100s in the first host, the only one from now on."""
        shutil.rmtree(self.root / "vendors")
        vendor = self.root / "vendors" / "nvidia"
        shutil.copytree(REPO / "vendors" / "nvidia", vendor, ignore=shutil.ignore_patterns("*-pytorch"))
        with (vendor / "vendor.toml").open("a") as file:
            file.write('[framework.plain]\ndevice = "cuda"\nbackend = "nccl"\n')
        del self.hosts[1:]
        self.hosts[0].nvml.on(8)
        self.always = {"vendor": "nvidia", "scale": "small", "runtime": "host"}
        self.settings(**more)

    def use_docker(self, **more: Any) -> None:
        """Containers on every host: engines with an image whose Python is this machine's."""
        for host in self.hosts:
            host.docker()
            self.lab.image(host, PYTHON.parent)
        options = [" ".join(self.lab.container_options(PYTHON))]
        self.settings(runtime="docker", image="flagperf-lab:python", container_opt=options, **more)

    def use_pods(self, **more: Any) -> None:
        """A container with a Python on every host, which the command of ``reach`` reaches over the network."""
        options = self.lab.container_options(PYTHON)
        for name in ("/tmp", "/shared"):
            options += ["-v", f"{name}:{name}"]
        for host in self.hosts:
            host.engine.on_network = True
            host.docker()
            image = self.lab.image(host, PYTHON.parent)
            # As a pod has: an address of its own, and a process that reaps what is left.
            words = ["docker", "run", "-d", "--init", f"--name={POD}", "--network=host", *options, image]
            host.run([*words, "sleep", "100000"])
        cluster = f"[cluster]\nhosts = {[f'{host.name}={host.address}' for host in self.hosts]}\n"
        cluster += f"python = '{PYTHON}'\nreach = 'docker -H tcp://{{host}}:{PORT} exec -i {POD}'\n"
        (self.root / "flagperf.toml").write_text(cluster)
        self.set(**{"runtime": "host", **more})


def _is_own(cmdline: str) -> bool:
    name = Path(cmdline.split()[0].rstrip(":")).name
    return name.startswith(_OWN) and name != "slurmstepd"


def leftovers(host: LabHost) -> list[str]:
    """Processes, containers, mounts, held locks and folders of ours on a host; there should be nothing."""
    if not host.on:
        return []
    found = [f"process {one.pid}: {one.cmdline[:200]}" for one in host.processes() if not _is_own(one.cmdline)]
    if host.engine.running:
        found += [f"container {one}" for one in host.containers()]
    mounted = [line.split()[4] for line in (host.root / "proc/1/mountinfo").read_text().splitlines()]
    found += [f"mount {path}" for path in mounted if "flagperf" in path and "/venv" not in path]
    found += [f"lock {path.name}" for path in (host.root / "tmp/pytest-flagperf-leases").glob("*.lock") if _held(path)]
    for kind in ("rounds", "tmp"):
        found += [f"folder {path}" for path in (host.root / "tmp").glob(f"pytest-flagperf-*/{kind}/*")]
    return found


def left_on(
    hosts: Sequence[LabHost], within_s: float, look: Callable[[LabHost], list[str]] = leftovers
) -> dict[str, list[str]]:
    """Return what is left on hosts after the time that the last processes may take."""
    deadline = time.monotonic() + within_s
    while (left := {host.name: found for host in hosts if (found := look(host))}) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def assert_nothing_left(hosts: Sequence[LabHost]) -> None:
    """Nothing, after the moment that the last processes may take."""
    left = left_on(hosts, 60)
    assert left == {}, left


def _held(path: Path) -> bool:
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
