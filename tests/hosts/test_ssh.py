"""Hosts over SSH, in the lab: passed data, refused connections, and the detection of losses."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flagperf.hosts import HostError, HostLost
from pytest_flagperf.hosts.cluster import ClusterConfig
from pytest_flagperf.hosts.host_pool import cluster_pool, run_on_each
from pytest_flagperf.hosts.ssh import SSHHost, ssh_hosts
from pytest_flagperf.runtime import RuntimeSetupError
from pytest_flagperf.runtime.venv import _write_program
from tests.helpers.waiting import until
from tests.hosts.test_stream import talk

if TYPE_CHECKING:
    from tests.lab.lab import Lab, LabHost


@pytest.fixture
def there(lab: Lab) -> LabHost:
    return lab.hosts(1)[0]


@pytest.fixture
def host(lab: Lab, there: LabHost) -> Iterator[SSHHost]:
    (made,) = ssh_hosts(lab.ssh_settings([there]))
    yield made
    made.close()


def running(there: LabHost, word: str) -> list[str]:
    return [process.cmdline for process in there.processes() if word in process.cmdline]


def test_input_and_output_of_any_size_arrive(host: SSHHost) -> None:
    sent = random.Random(2).randbytes(50_000_000)
    assert host.run(["cat"], timeout_s=120, stdin=sent).raw == sent


def test_a_program_is_written_completely_or_not_at_all(host: SSHHost, there: LabHost) -> None:
    _write_program(host, "/tmp/deep/er/a 'name'", b"#!/bin/sh\necho it runs\n")
    assert host.run(["/tmp/deep/er/a 'name'"], timeout_s=30).out == "it runs\n"
    there.limit_disk("/small", 1 << 20)
    with pytest.raises(RuntimeSetupError, match=r"h1.*: cannot write /small/big: No space left on device"):
        _write_program(host, "/small/big", bytes(5_000_000))
    assert host.run(["ls", "-A", "/small"], timeout_s=30).out == ""


def refused(conf: ClusterConfig) -> str:
    (host,) = ssh_hosts(conf)
    with pytest.raises(HostLost) as caught:
        host.run(["true"], timeout_s=30)
    host.close()
    return str(caught.value)


def test_an_unknown_or_changed_host_is_refused_with_the_fix(lab: Lab, there: LabHost, tmp_path: Path) -> None:
    file = tmp_path / "known"
    message = refused(replace(lab.ssh_settings([there]), known_hosts=str(file)))
    known = subprocess.run(["ssh-keygen", "-lf", lab.known_hosts], capture_output=True, text=True, check=True).stdout
    assert f"the host key of {there.address} is unknown: ed25519 {known.split()[1]}. If it is" in message
    cure = message.rpartition("add it: ")[2]
    assert cure == f"ssh-keyscan -t ed25519 -p 22 {there.address} >> {file}"
    subprocess.run(cure, shell=True, check=True, capture_output=True)
    (host,) = ssh_hosts(replace(lab.ssh_settings([there]), known_hosts=str(file)))
    assert host.run(["true"], timeout_s=30).code == 0
    host.close()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    file.write_text(f"{there.address} {(tmp_path / 'other.pub').read_text()}")
    message = refused(replace(lab.ssh_settings([there]), known_hosts=str(file)))
    assert f"the host key of {there.address} differs from the one in {file}: got ed25519 SHA256:" in message
    assert message.endswith(f"ssh-keygen -R {there.address} -f {file}")


def test_a_refused_key_is_named(lab: Lab, there: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    conf = replace(lab.ssh_settings([there]), key=str(key))
    message = refused(conf)
    assert f"no key was accepted for the user root; tried {key} and the keys of the SSH agent" in message
    assert message.endswith(f"ssh-copy-id -i {key} -p 22 root@{there.address}")
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True)
    assert f"{key} has a passphrase; add it to the SSH agent" in refused(
        replace(lab.ssh_settings([there]), key=str(key))
    )
    key.write_text("no key")
    assert "22: not a valid OPENSSH private key file" in refused(conf)


def test_the_ssh_agents_key_is_used(lab: Lab, there: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        until(path.exists, "the agent")
        subprocess.run(["ssh-add", "-q", lab.key], check=True)
        (host,) = ssh_hosts(replace(lab.ssh_settings([there]), key=None))
        assert host.run(["true"], timeout_s=30).code == 0
        host.close()
    finally:
        agent.terminate()
        agent.wait()


def test_the_ssh_configuration_is_followed(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = lab.hosts(2)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text(
        f"Host near far\nUser root\nIdentityFile {lab.key}\nUserKnownHostsFile {lab.known_hosts}\n"
        f"Host near\nHostName {near.address}\nHost far\nHostName {far.address}\nProxyJump near\n"
    )
    hosts = ssh_hosts(ClusterConfig(("near", "far")))
    assert [host.address for host in hosts] == [near.address, far.address]
    try:
        outputs = [host.run(["sh", "-c", "hostname; echo $SSH_CLIENT"], timeout_s=30).out.split() for host in hosts]
        assert [words[0] for words in outputs] == ["h1", "h2"]
        assert outputs[1][1] == near.address
    finally:
        for host in hosts:
            host.close()


def test_unreachable_hosts_are_reported_all_at_once(lab: Lab, there: LabHost) -> None:
    unused = lab.place.address(250)
    conf = lab.ssh_settings([there])
    pool = cluster_pool(replace(conf, hosts=(f"{there.address}:2222", "no.such.host.invalid", unused)))
    errors = run_on_each(pool.hosts, lambda host: host.run(["true"], timeout_s=30)).values()
    assert all(isinstance(error, HostError) for error in errors)
    lines = "\n".join(map(str, errors)).splitlines()
    assert len(lines) == 3
    assert f"{there.address} port 2222: connection refused; no sshd listens there" in lines[0]
    assert "unknown host name no.such.host.invalid: " in lines[1]
    assert lines[2].startswith(f"{unused}: {unused} port 22: ")
    pool.close()


@pytest.mark.slow
def test_a_gateway_leads_to_the_others_over_one_connection(lab: Lab) -> None:
    way, *others = lab.hosts(3)
    conf = lab.ssh_settings(others)
    pool = cluster_pool(replace(conf, gateway=f"root@{way.address}"))
    try:
        with ThreadPoolExecutor(2) as both:
            outputs = both.map(
                lambda host: host.run(["sh", "-c", "hostname; echo $SSH_CLIENT"], timeout_s=30).out, pool.hosts
            )
        assert [text.split()[:2] for text in outputs] == [["h2", way.address], ["h3", way.address]]
        assert len(running(way, "sshd: root")) == 1
        others[0].link(False)
        with pytest.raises(HostLost, match="the connection is lost: no sign of life for 10 s"):
            pool.hosts[0].run(["sleep", "60"], timeout_s=60)
        assert pool.hosts[1].run(["true"], timeout_s=30).code == 0
        others[0].link(True)
        pool.hosts[0].reconnect()
        assert pool.hosts[0].run(["true"], timeout_s=30).code == 0
    finally:
        pool.close()
    until(lambda: not running(way, "sshd: root"), "the end of its sessions")
    message = refused(replace(conf, hosts=(f"{others[0].address}:1",), gateway=way.address))
    assert f"the gateway {way.address} cannot connect to it" in message


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("python9", r"python9: program not found \(.*not found.*\); Python >= 3\.8 is required"),
        ("/bin/true", r"/bin/true: it cannot be started \(no output\); Python >= 3\.8 is required"),
    ],
)
def test_a_host_without_python_is_told_what_to_set(lab: Lab, there: LabHost, python: str, message: str) -> None:
    (host,) = ssh_hosts(replace(lab.ssh_settings([there]), python=python))
    for work in (lambda: host.run(["true"], timeout_s=30), lambda: host.open(["true"])):
        with pytest.raises(HostError, match=message):
            work()
    host.close()


def test_closing_leaves_no_thread_and_no_file(lab: Lab, there: LabHost) -> None:
    threads, files = set(threading.enumerate()), len(list(Path("/proc/self/fd").iterdir()))
    (host,) = ssh_hosts(lab.ssh_settings([there]))
    host.run(["true"], timeout_s=30)
    channel = host.open(["cat"])
    host.close()
    assert channel.close() is None
    until(lambda: set(threading.enumerate()) <= threads, "the end of the threads")
    assert len(list(Path("/proc/self/fd").iterdir())) <= files
    with pytest.raises(HostError, match="the connection was closed"):
        host.run(["true"], timeout_s=30)


@pytest.mark.slow
def test_a_cut_link_and_a_frozen_host_are_detected_and_reconnected(host: SSHHost, there: LabHost) -> None:
    channel = host.open(["sleep", "600"])
    there.link(False)
    # The kernel decides which of the errors comes first.
    with pytest.raises(HostLost, match=r"lost: (no sign of life for 10 s|No route to host|Connection timed out)$"):
        channel.receive(30)
    with pytest.raises(HostLost, match=r"no answer within 10 s|No route to host"):
        host.reconnect()
    there.link(True)
    host.reconnect()
    channel = host.open(["yes", "{}"])
    there.freeze()
    with pytest.raises(HostLost, match=r"lost: no sign of life for 10 s$"):
        talk(channel, sends=False)
    with pytest.raises(HostError, match="connected, but no reply within 10 s"):
        host.reconnect()
    there.thaw()
    host.reconnect()
    assert host.run(["true"], timeout_s=30).code == 0
