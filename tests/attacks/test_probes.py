"""Probes that write, connect or leave a process behind: they cannot. The readings of an honest probe arrive."""

import os
import socket
import sys
from pathlib import Path

import pytest

from flagperf_driver.node.sampling import probe
from flagperf_driver.node.sampling.probe.process import ToolProcess
from tests.helpers.processes import running

# Does the same when it is loaded, as its tool, and when it reads the tool's output; the readings tell what worked.
PROBE = """
import os, subprocess, sys, time

def attempt():
    try:
        {attack}
    except OSError as error:
        return str(error)
    return "done"

LOADED = attempt()
COMMAND = [sys.executable, __file__]

def parse(text):
    return [dict(power=1, name=LOADED), dict(power=1, name=text.strip()), dict(power=1, name=attempt())]

if __name__ == "__main__":
    print(attempt())
"""
# As programs do it that become a service: their parent ends, and they leave its session.
DAEMON = """if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in range(3):
                    os.close(number)
                os.environ["FLAGPERF_DAEMON"] = "1"
                os.execv("/bin/sleep", ["{name}", "600"])
            os._exit(0)"""


def results(folder: Path, attack: str) -> list[str]:
    """Survey the devices with this probe; return what its three attempts said."""
    (folder / "probe.py").write_text(PROBE.replace("{attack}", attack))
    survey = probe.survey(str(folder / "probe.py"))
    assert survey["error"] is None
    return [device["name"] for device in survey["devices"]]


@pytest.mark.parametrize(
    ("crash", "reason"),
    [
        ("sys.exit(3)", "the probe's process: SystemExit: 3"),
        ("os.kill(os.getpid(), 9)", "the probe's process ended with exit code 137"),
    ],
)
def test_the_reason_why_a_probe_crashed_is_reported(tmp_path: Path, crash: str, reason: str) -> None:
    path = tmp_path / "probe.py"
    path.write_text(f"import os, sys\nCOMMAND = ['true']\ndef parse(text):\n    {crash}\n")
    assert probe.survey(str(path))["error"] == reason


def test_an_honest_probe_is_confined_and_read(tmp_path: Path) -> None:
    assert results(tmp_path, "open('/proc/cpuinfo').close()") == ["done"] * 3
    tool = ToolProcess(str(tmp_path / "probe.py"))
    assert tool.not_confined is None
    assert [reading["power"] for reading in tool.read()] == [1, 1, 1]
    tool.close()


@pytest.mark.parametrize(
    "place", [f"{sys.prefix}/lib/kept.pth", "{folder}/sitecustomize.py", "/tmp/kept", "/dev/shm/kept"]
)
def test_a_probe_writes_nothing(tmp_path: Path, place: str) -> None:
    place = place.format(folder=tmp_path)
    assert results(tmp_path, f"open({place!r}, 'w').close()") == [f"[Errno 13] Permission denied: {place!r}"] * 3
    assert not Path(place).exists()


def test_a_probe_connects_to_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as local, socket.create_server(("127.0.0.1", 0)) as remote:
        local.bind(path)
        local.listen()
        for family, address in (("AF_UNIX", path), ("AF_INET", remote.getsockname()), ("AF_INET6", ("::1", 9))):
            attack = f"import socket; socket.socket(socket.{family}).connect({address!r})"
            assert results(tmp_path, attack) == ["[Errno 13] Permission denied"] * 3, family


def test_what_a_probe_starts_ends_with_it_and_with_its_reading(tmp_path: Path) -> None:
    name = f"daemon-{os.getpid()}"
    assert results(tmp_path, DAEMON.format(name=name)) == ["done"] * 3
    assert [process.pid for process in running() if process.words[:1] == [name]] == []
    # A sampler's probe lives as long as the round, but its daemons do not.
    (tmp_path / "probe.py").write_text(PROBE.replace("{attack}", DAEMON.format(name=name)))
    tool = ToolProcess(str(tmp_path / "probe.py"))
    for _ in range(2):
        tool.read()
        assert [process.pid for process in running() if process.words[:1] == [name]] == []
    tool.close()
