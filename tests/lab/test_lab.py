"""The lab itself: what no test that uses it would notice. A broken switch fails the tests that use it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.place import Place, traces
from tests.processes import running

if TYPE_CHECKING:
    from tests.lab.lab import Lab, LabHost

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def host(lab: Lab) -> LabHost:
    return lab.hosts(1)[0]


def over_ssh(host: LabHost, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(host.ssh(*command), capture_output=True, text=True, timeout=20)


def output_of(host: LabHost, *command: str) -> str:
    done = over_ssh(host, *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Hosts


def test_a_worn_host_comes_back_as_new(lab: Lab) -> None:
    one, two = lab.hosts(2)
    output_of(one, "touch /root/file")
    output_of(two, "touch /root/file")
    one.link(False)
    assert lab.hosts(2) == [one, two]
    assert over_ssh(one, "ls /root/file").returncode == 2
    assert output_of(two, "ls /root/file") == "/root/file"
    lab.hosts(2, fresh=True)
    assert over_ssh(two, "ls /root/file").returncode == 2


# GPUs

READ = """
import sys, pynvml as n
try:
    n.nvmlInit()
except n.NVMLError as error:
    sys.exit(str(error))
print(n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion(), n.nvmlDeviceGetCount(), flush=True)
one = n.nvmlDeviceGetHandleByIndex(3)
for line in sys.stdin:
    try:
        print(*eval(line), flush=True)
    except n.NVMLError as error:
        print(error, flush=True)
"""


class Reader:
    """A program on the host that has NVML open while a test changes what it tells."""

    def __init__(self, host: LabHost) -> None:
        import pynvml

        (host.root / "root/pynvml.py").write_bytes(Path(pynvml.__file__).read_bytes())
        (host.root / "root/read.py").write_text(READ)
        self._process = subprocess.Popen(
            host.ssh("python3 /root/read.py"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.first = self._line()

    def ask(self, *expressions: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"[{', '.join(expressions)}]\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def reader(host: LabHost) -> Iterator[Reader]:
    host.nvml.on()
    reader = Reader(host)
    yield reader
    reader.close()


def test_gpus_are_what_a_driver_would_tell(host: LabHost, reader: Reader) -> None:
    assert reader.first == "550.54.15 12040 8"
    assert reader.ask("n.nvmlDeviceGetName(one)") == "NVIDIA A100-SXM4-80GB"
    assert reader.ask("n.nvmlDeviceGetUUID(one)") == host.nvml[3].uuid
    assert reader.ask("n.nvmlDeviceGetPciInfo(one).busId") == "00000000:13:00.0"
    assert reader.ask("n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(one)))") == "3"
    assert reader.ask("n.nvmlDeviceGetHandleByIndex(8)") == "Invalid Argument"
    assert reader.ask("n.nvmlDeviceGetCudaComputeCapability(one)", "n.nvmlDeviceGetMigMode(one)") == "(8, 0) [0, 0]"
    assert reader.ask("n.nvmlDeviceGetFanSpeed(one)") == "Not Supported"
    assert output_of(host, "ls /dev | grep nvidia | wc -l") == "9"


# Nothing stays

OWNER = (
    "import os, subprocess, sys\nfrom tests.lab.lab import Lab\nlab = Lab()\nhosts = lab.hosts(2)\nhosts[1].docker()\n"
)
OWNER += "hosts[0].delay(5)\nhosts[0].freeze()\n"
OWNER += "slurm = {**os.environ, 'SLURM_CONF': str(lab.place.folder / 'shared/slurm/login.conf')}\n"
OWNER += "srun = subprocess.Popen(['sleep', '600'], env=slurm, stdout=subprocess.DEVNULL, start_new_session=True)\n"
OWNER += "print(lab.place.number, flush=True)\nsys.stdin.read()\n"


def owner() -> tuple[subprocess.Popen[str], Place]:
    """Another process with a lab of its own, one host of which is frozen."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPO
    )
    assert process.stdout is not None
    return process, Place(int(process.stdout.readline()))


def clients(place: Place) -> list[int]:
    """Return the processes of this machine that use the lab's Slurm."""
    return [one.pid for one in running() if one.environment.get("SLURM_CONF", "").startswith(f"{place.folder}/")]


def nothing_left(place: Place, deadline_s: float = 15) -> list[str]:
    def left() -> list[str]:
        return [*traces(place), *(f"pid {pid}" for pid in (*place.cgroup().pids(), *clients(place)))]

    deadline = time.monotonic() + deadline_s
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    return left()


def test_two_labs_stand_beside_each_other_and_one_goes_alone(lab: Lab) -> None:
    from tests.lab.lab import Lab as Another

    mine = lab.hosts(2)
    with Another() as other:
        theirs = other.hosts(2)
        assert other.subnet != lab.subnet
        assert output_of(theirs[0], "ssh h2 hostname") == output_of(mine[0], "ssh h2 hostname") == "h2"
        assert traces(other.place) != []
    assert nothing_left(other.place) == []
    assert output_of(mine[1], "hostname") == "h2"


def test_nothing_is_left_of_a_lab_whose_owner_was_killed(lab: Lab) -> None:
    process, place = owner()
    assert traces(place) != []
    process.kill()
    process.communicate()
    assert nothing_left(place) == []
