"""The lab itself: what hosts are, that each switch does what it says, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab import needs
from tests.lab.place import Place, traces
from tests.processes import running

if TYPE_CHECKING:
    from tests.lab.lab import Lab, LabHost

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def host(lab: Lab) -> LabHost:
    return lab.hosts(1)[0]


@pytest.fixture
def engine(host: LabHost) -> Iterator[LabHost]:
    """A host with docker, which ends with the test: engines of idle hosts cost memory."""
    host.docker()
    yield host
    if host.on:
        host.docker(False)


def over_ssh(host: LabHost, *command: str, timeout: float = 20, user: str = "root") -> subprocess.CompletedProcess[str]:
    return subprocess.run(host.ssh(*command, user=user), capture_output=True, text=True, timeout=timeout)


def output_of(host: LabHost, *command: str, user: str = "root") -> str:
    done = over_ssh(host, *command, user=user)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def seconds(host: LabHost, *command: str) -> float:
    start = time.monotonic()
    output_of(host, *command)
    return time.monotonic() - start


# What a host is


def test_hosts_are_machines_of_their_own_on_one_network(lab: Lab) -> None:
    hosts = lab.hosts(4)
    assert [output_of(one, "hostname") for one in hosts] == ["h1", "h2", "h3", "h4"]
    assert output_of(hosts[0], "ssh h3 hostname") == "h3"
    output_of(hosts[0], "touch /root/mine /tmp/mine /dev/shm/mine; sleep 100 >/dev/null 2>&1 &")
    assert over_ssh(hosts[1], "ls /root/mine /tmp/mine /dev/shm/mine").stdout == ""
    assert not any("sleep" in one.cmdline for one in hosts[1].processes())
    assert any("sleep 100" in one.cmdline for one in hosts[0].processes())
    assert not Path("/root/mine").exists()


def test_what_hosts_share(lab: Lab) -> None:
    one, two = lab.hosts(2)
    output_of(one, "echo data > /shared/file")
    assert output_of(two, "cat /shared/file") == "data"
    assert (lab.shared / "file").read_text() == "data\n"


def test_a_host_has_the_harness_python_and_not_its_checkout(host: LabHost) -> None:
    python = Path(sys.base_prefix) / "bin"
    assert output_of(host, "command -v python3") == str(python.resolve() / "python3")
    assert output_of(host, "python3 -c 'import sys; print(sys.version)'") == sys.version
    assert over_ssh(host, f"test -e {REPO}").returncode == 1


def test_a_host_knows_no_way_out(host: LabHost) -> None:
    routes = host.run(["ip", "route"]).stdout.splitlines()
    assert [route.split()[0] for route in routes] == [host._place.subnet]


def test_a_wrong_host_key_is_refused(host: LabHost, tmp_path: Path) -> None:
    other = tmp_path / "known_hosts"
    lines = host.known_hosts.read_text().splitlines()
    other.write_text(lines[0].replace(lines[0].split()[2], host.key.with_suffix(".pub").read_text().split()[1]) + "\n")
    argv = [word.replace(str(host.known_hosts), str(other)) for word in host.ssh("hostname")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_another_user(host: LabHost) -> None:
    host.add_user("bench")
    assert output_of(host, "id -un; python3 -c 'print(1)'; ls ~/.cache 2>/dev/null; true", user="bench") == "bench\n1"
    assert over_ssh(host, "cat /etc/shadow", user="bench").returncode != 0


# Switches


def test_power_off_and_boot_keep_the_disk(host: LabHost) -> None:
    from tests.lab.lab import until

    output_of(host, "echo kept > /root/file; echo gone > /tmp/file")
    pids = host._cgroup.pids()
    host.power_off()
    assert not host.on
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of its processes")
    assert over_ssh(host, "-o", "ConnectTimeout=1", "true").returncode == 255
    host.boot()
    assert output_of(host, "cat /root/file; ls /tmp") == "kept"


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


def test_a_cut_link(host: LabHost) -> None:
    argv = host.ssh("-o", "ConnectTimeout=1", "true")
    host.link(False)
    assert subprocess.run(argv, capture_output=True).returncode == 255
    assert host.run(["hostname"]).stdout == "h1\n"
    host.link(True)
    assert output_of(host, "hostname") == "h1"


def test_a_frozen_host_answers_no_request_until_it_thaws(host: LabHost) -> None:
    session = subprocess.Popen(host.ssh("sleep 0.2; echo done"), stdout=subprocess.PIPE, text=True)
    while not any(one.cmdline == "sleep 0.2" for one in host.processes()):
        time.sleep(0.01)
    host.freeze()
    with pytest.raises(subprocess.TimeoutExpired):
        session.communicate(timeout=1)
    assert host.run(["hostname"]).stdout == "h1\n"
    host.thaw()
    assert session.communicate(timeout=10)[0] == "done\n"
    host.freeze()
    host.power_off()  # also a frozen host dies
    assert not host.on


def test_a_cpu_quota_makes_it_slow(host: LabHost) -> None:
    burn = "python3 -c 'import time; t = time.process_time()\nwhile time.process_time() < t + 0.3: pass'"
    host.cpu_quota(20)
    assert seconds(host, burn) > 1.2
    usage = host.run(["cat", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"], check=False).stdout.strip()
    assert usage in ("20000", "")
    host.cpu_quota(None)
    assert output_of(host, "hostname") == "h1"


def test_a_full_disk(host: LabHost) -> None:
    host.limit_disk("/data", 1 << 20)
    done = over_ssh(host, "head -c 2000000 /dev/zero > /data/file")
    assert "No space left on device" in done.stderr
    host.limit_disk("/data", None)
    assert output_of(host, "head -c 2000000 /dev/zero > /data/file") == ""


def test_delay_is_there_and_goes(host: LabHost) -> None:
    quick = seconds(host, "true")
    host.delay(40)
    assert seconds(host, "true") > quick + 0.4  # a login is more than five round trips
    assert output_of(host, "head -c 3000000 /dev/zero | wc -c") == "3000000"
    host.delay(0)
    assert seconds(host, "true") < quick + 0.4


def test_loss_slows_but_does_not_change_what_arrives(host: LabHost) -> None:
    host.loss(10)
    done = subprocess.run(host.ssh("cat"), input=os.urandom(1 << 20), capture_output=True, timeout=60)
    assert len(done.stdout) == 1 << 20
    host.loss(100)
    assert subprocess.run(host.ssh("-o", "ConnectTimeout=1", "true"), capture_output=True).returncode == 255


def test_a_wrong_clock(host: LabHost) -> None:
    now = "python3 -c 'import time; print(time.time())'"
    host.clock(3600)
    assert float(output_of(host, now)) - time.time() == pytest.approx(3600, abs=5)
    assert float(output_of(host, "date +%s")) - time.time() == pytest.approx(3600, abs=5)
    host.clock(-60)
    assert float(output_of(host, now)) - time.time() == pytest.approx(-60, abs=5)


def test_sshd_and_its_sessions_end(host: LabHost) -> None:
    session = subprocess.Popen(host.ssh("sleep 50"), stderr=subprocess.DEVNULL)
    while not any(one.cmdline == "sleep 50" for one in host.processes()):
        time.sleep(0.01)
    host.stop_sshd()
    assert session.poll() is None
    assert over_ssh(host, "true").returncode == 255
    assert host.kill_sshd_sessions() >= 1
    assert session.wait(10) == 255
    assert any(one.cmdline == "sleep 50" for one in host.processes())  # what it ran lives on
    host.start_sshd()
    assert output_of(host, "hostname") == "h1"


def test_an_orphaned_program_is_collected(host: LabHost) -> None:
    output_of(host, "(sleep 0.01 &) ; sleep 0.2")
    deadline = time.monotonic() + 20
    while dead := [one for one in host.processes() if one.cmdline.startswith("[")]:
        assert time.monotonic() < deadline, dead  # sshd, too, is dead for a moment before it is collected
        time.sleep(0.02)


# Docker


def test_docker_runs_and_tells_of_memory_that_ran_out(engine: LabHost) -> None:
    assert output_of(engine, "docker run --rm flagperf-lab:base hostname | wc -c") == "13"
    hog = "x=x; while true; do x=$x$x; done"
    ran = f"docker run --name hog --memory=32m --memory-swap=32m flagperf-lab:base sh -c '{hog}'"
    assert over_ssh(engine, ran).returncode == 137
    assert output_of(engine, "docker inspect -f {{.State.OOMKilled}} hog") == "true"
    assert [row["Names"] for row in engine.containers()] == ["hog"]


def test_docker_takes_every_option_of_a_training(engine: LabHost) -> None:
    options = "--privileged --network=host --ipc=host --shm-size=64m --ulimit memlock=-1 --ulimit stack=67108864"
    assert output_of(engine, f"docker run --rm {options} flagperf-lab:base hostname") == "h1"


def test_an_image_is_built_and_finds_a_python(lab: Lab, engine: LabHost) -> None:
    python = Path(sys.base_prefix).resolve() / "bin/python3"
    image = lab.image(engine, python.parent)
    options = " ".join(lab.container_options(python))
    prefix = output_of(engine, f"docker run --rm {options} {image} python3 -c 'import sys, ssl; print(sys.prefix)'")
    assert prefix == str(python.parents[1])


def test_docker_dies_without_its_containers(engine: LabHost) -> None:
    output_of(engine, "docker run --detach --stop-timeout=1 flagperf-lab:base sleep 1000")
    engine.kill_dockerd()
    assert over_ssh(engine, "docker ps").returncode == 1
    assert any(one.cmdline == "sleep 1000" for one in engine.processes())
    engine.docker()
    assert engine.containers()[0]["State"] == "exited"


def test_another_user_may_use_docker(engine: LabHost) -> None:
    engine.add_user("bench", docker=True)
    engine.add_user("other")
    assert output_of(engine, "docker run --rm flagperf-lab:base id -un", user="bench") == "root"
    assert over_ssh(engine, "docker ps", user="other").returncode == 1


@pytest.mark.slow
def test_a_container_imports_torch(lab: Lab, engine: LabHost, torch_python: str) -> None:
    image, options = lab.image(engine, Path(torch_python).parent), lab.container_options(torch_python)
    program = "import torch; print(torch.ones(3).sum())"
    ran = engine.run(["docker", "run", "--rm", *options, image, "python3", "-c", program])
    assert ran.stdout == "tensor(3.)\n"
    assert ran.stderr == ""


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


def test_a_change_is_seen_live(host: LabHost, reader: Reader) -> None:
    gpu = host.nvml[3]
    gpu.set(temperature=91, sm_clock=1005, memory_clock=1593, clock_reasons=0x20, utilization=97, pcie_rx_kb=5)
    assert reader.ask("n.nvmlDeviceGetTemperature(one, 0)", "n.nvmlDeviceGetTemperatureV(one, 0)") == "91 91"
    assert reader.ask("n.nvmlDeviceGetClockInfo(one, 1)", "n.nvmlDeviceGetClockInfo(one, 2)") == "1005 1593"
    assert reader.ask("n.nvmlDeviceGetCurrentClocksEventReasons(one)") == "32"
    assert reader.ask("n.nvmlDeviceGetCurrentClocksThrottleReasons(one)") == "32"
    assert reader.ask("n.nvmlDeviceGetUtilizationRates(one).gpu", "n.nvmlDeviceGetPcieThroughput(one, 1)") == "97 5"
    gpu.processes((4711, 3 << 30))
    assert reader.ask("[(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(one)]") == (
        f"[(4711, {3 << 30})]"
    )
    assert reader.ask("n.nvmlDeviceGetMemoryInfo(one, n.nvmlMemory_v2).used") == str(3 << 30)
    gpu.set(ecc_corrected=2, ecc_uncorrected=1, rows_uncorrected=1, rows_pending=1)
    counts = [f"n.nvmlDeviceGetTotalEccErrors(one, {kind}, 0)" for kind in (0, 1)]
    assert reader.ask(*counts, "n.nvmlDeviceGetRemappedRows(one)") == "2 1 (0, 1, 1, 0)"
    gpu.set(error=15)
    assert reader.ask("n.nvmlDeviceGetTemperature(one, 0)") == "GPU is lost"
    assert reader.ask("n.nvmlDeviceGetTemperature(n.nvmlDeviceGetHandleByIndex(2), 0)") == "31"


def test_energy_is_the_integral_of_power(host: LabHost, reader: Reader) -> None:
    gpu = host.nvml[3]
    gpu.set(power_mw=300_000, wave_mw=100_000, wave_ms=200)
    before, start = int(reader.ask("n.nvmlDeviceGetTotalEnergyConsumption(one)")), time.monotonic()
    swing = set()
    for _ in range(50):
        swing.add(int(reader.ask("n.nvmlDeviceGetPowerUsage(one)")))
        time.sleep(0.01)
    gpu.set(power_mw=100_000, wave_mw=0)
    time.sleep(0.1)
    after, end = int(reader.ask("n.nvmlDeviceGetTotalEnergyConsumption(one)")), time.monotonic()
    assert min(swing) < 250_000 < 350_000 < max(swing)
    assert after / 1e3 == pytest.approx(gpu.energy_j(), abs=5)
    assert 100 * (end - start) < (after - before) / 1e3 < 400 * (end - start)


def test_a_machine_without_a_driver(host: LabHost, reader: Reader) -> None:
    host.nvml.error(18)
    assert "NVML/RM version mismatch" in over_ssh(host, "python3 /root/read.py </dev/null").stderr
    host.nvml.off()
    assert "NVML Shared Library Not Found" in over_ssh(host, "python3 /root/read.py </dev/null").stderr
    assert output_of(host, "ls /dev | grep -c nvidia; true") == "0"


def test_gpus_are_still_there_after_a_boot(host: LabHost) -> None:
    host.nvml.on(2)
    host.power_off()
    host.boot()
    assert output_of(host, "ls /dev | grep nvidia") == "nvidia0\nnvidia1\nnvidiactl"


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


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_lab_whose_owner_was_killed(lab: Lab, how: signal.Signals) -> None:
    process, place = owner()
    assert traces(place) != []
    process.send_signal(how)
    process.communicate()
    assert nothing_left(place) == []


def test_the_next_lab_removes_what_a_dead_reaper_left(lab: Lab) -> None:
    from tests.lab.lab import Lab as Another

    process, place = owner()
    for each in running():
        if ["tests.lab.place", str(place.number)] in [each.words[at : at + 2] for at in range(len(each.words))]:
            os.kill(each.pid, signal.SIGKILL)
    process.kill()
    process.communicate()
    time.sleep(0.2)
    assert traces(place) != []
    with Another():
        pass
    assert nothing_left(place) == []


# Without a lab


def test_a_machine_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "program", lambda name: None if name in ("sshd", "dockerd") else f"/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    first, second = needs.missing()[:2]
    assert "run as root" in first
    assert second == "missing sshd, dockerd: apt-get install openssh-server docker.io"


@pytest.mark.parametrize(("given", "outcome"), [([], "skipped"), (["--strict"], "errors")])
def test_without_a_lab_tests_are_skipped_aloud_or_fail(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, given: list[str], outcome: str
) -> None:
    monkeypatch.setattr("tests.lab.fixtures.missing", lambda: ["no sshd: apt-get install openssh-server"])
    pytester.makeconftest("pytest_plugins = ['tests.lab.fixtures']")
    pytester.makepyfile("def test_one(lab): pass")
    result = pytester.runpytest_inprocess("-p", "no:flagperf", "-rs", *given)
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(["*NO LAB ON THIS MACHINE*apt-get install openssh-server*"])
