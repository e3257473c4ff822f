"""Hosts over SSH, in the lab: passed data, refused connections, and the detection of losses."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flagperf.hosts import Channel, HostError, HostLost
from pytest_flagperf.hosts.cluster import ClusterConfig
from pytest_flagperf.hosts.host_pool import cluster_pool, run_on_each
from pytest_flagperf.hosts.ssh import SSHHost, ssh_hosts
from pytest_flagperf.runtime import RuntimeSetupError
from pytest_flagperf.runtime.venv import _write_program
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from tests.lab.lab import Lab, LabHost

ECHO = "import sys\nfor line in sys.stdin: print('noise'); print(line, end='', flush=True)"


def conf_of(lab: Lab, hosts: list[LabHost]) -> ClusterConfig:
    ssh = lab.ssh_settings(hosts)
    return ClusterConfig(tuple(ssh.hosts), ssh.user, ssh.port, ssh.key, ssh.known_hosts)


@pytest.fixture
def there(lab: Lab) -> LabHost:
    return lab.hosts(1)[0]


@pytest.fixture
def host(lab: Lab, there: LabHost) -> Iterator[SSHHost]:
    (made,) = ssh_hosts(conf_of(lab, [there]))
    yield made
    made.close()


def running(there: LabHost, word: str) -> list[str]:
    return [process.cmdline for process in there.processes() if word in process.cmdline]


def gone(there: LabHost, word: str) -> bool:
    until(lambda: not running(there, word), f"the end of {word}")
    return True


def test_input_and_output_of_any_size_arrive(host: SSHHost) -> None:
    sent = random.Random(2).randbytes(50_000_000)
    started = time.process_time()
    assert host.run(["cat"], timeout_s=120, stdin=sent).raw == sent
    assert time.process_time() - started < 20


def test_a_program_is_written_completely_or_not_at_all(host: SSHHost, there: LabHost) -> None:
    _write_program(host, "/tmp/deep/er/a 'name'", b"#!/bin/sh\necho it runs\n")
    assert host.run(["/tmp/deep/er/a 'name'"], timeout_s=30).out == "it runs\n"
    there.limit_disk("/small", 1 << 20)
    with pytest.raises(RuntimeSetupError, match=r"h1.*: cannot write /small/big: No space left on device"):
        _write_program(host, "/small/big", bytes(5_000_000))
    assert host.run(["ls", "-A", "/small"], timeout_s=30).out == ""


# Authentication


def test_a_user_who_is_not_root(lab: Lab, there: LabHost) -> None:
    there.add_user("bench")
    (host,) = ssh_hosts(replace(conf_of(lab, [there]), user="bench"))
    try:
        assert host.run(["id", "-un"], timeout_s=30).out == "bench\n"
        with pytest.raises(RuntimeSetupError, match="cannot write /root/x/y: Permission denied"):
            _write_program(host, "/root/x/y", b"x")
    finally:
        host.close()


def refused(conf: ClusterConfig) -> str:
    (host,) = ssh_hosts(conf)
    with pytest.raises(HostLost) as caught:
        host.run(["true"], timeout_s=30)
    host.close()
    return str(caught.value)


def test_an_unknown_or_changed_host_is_refused_with_the_fix(lab: Lab, there: LabHost, tmp_path: Path) -> None:
    file = tmp_path / "known"
    message = refused(replace(conf_of(lab, [there]), known_hosts=str(file)))
    known = subprocess.run(["ssh-keygen", "-lf", lab.known_hosts], capture_output=True, text=True, check=True).stdout
    assert f"the host key of {there.address} is unknown: ed25519 {known.split()[1]}. If it is" in message
    cure = message.rpartition("add it: ")[2]
    assert cure == f"ssh-keyscan -t ed25519 -p 22 {there.address} >> {file}"
    subprocess.run(cure, shell=True, check=True, capture_output=True)
    (host,) = ssh_hosts(replace(conf_of(lab, [there]), known_hosts=str(file)))
    assert host.run(["true"], timeout_s=30).code == 0
    host.close()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    file.write_text(f"{there.address} {(tmp_path / 'other.pub').read_text()}")
    message = refused(replace(conf_of(lab, [there]), known_hosts=str(file)))
    assert f"the host key of {there.address} differs from the one in {file}: got ed25519 SHA256:" in message
    assert message.endswith(f"ssh-keygen -R {there.address} -f {file}")


def test_a_refused_key_is_named(lab: Lab, there: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    message = refused(replace(conf_of(lab, [there]), key=str(key)))
    assert f"no key was accepted for the user root; tried {key} and the keys of the SSH agent" in message
    assert message.endswith(f"ssh-copy-id -i {key} -p 22 root@{there.address}")
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True)
    assert f"{key} has a passphrase; add it to the SSH agent" in refused(replace(conf_of(lab, [there]), key=str(key)))
    key.write_text("no key")
    assert "22: not a valid OPENSSH private key file" in refused(replace(conf_of(lab, [there]), key=str(key)))


def test_the_ssh_agents_key_is_used(lab: Lab, there: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        while not path.exists():
            time.sleep(0.01)
        subprocess.run(["ssh-add", "-q", lab.key], check=True)
        (host,) = ssh_hosts(replace(conf_of(lab, [there]), key=None))
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
    conf = conf_of(lab, [there])
    pool = cluster_pool(replace(conf, hosts=(f"{there.address}:2222", "no.such.host.invalid", unused)))
    started = time.monotonic()
    errors = run_on_each(pool.hosts, lambda host: host.run(["true"], timeout_s=30)).values()
    assert time.monotonic() - started < 60
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
    conf = conf_of(lab, others)
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
    assert gone(way, "sshd: root")
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
    (host,) = ssh_hosts(replace(conf_of(lab, [there]), python=python))
    for work in (lambda: host.run(["true"], timeout_s=30), lambda: host.open(["true"])):
        with pytest.raises(HostError, match=message):
            work()
    host.close()


# Channels


def test_closing_leaves_no_thread_and_no_file(lab: Lab, there: LabHost) -> None:
    threads, files = set(threading.enumerate()), len(list(Path("/proc/self/fd").iterdir()))
    (host,) = ssh_hosts(conf_of(lab, [there]))
    host.run(["true"], timeout_s=30)
    channel = host.open([host.python, "-c", ECHO])
    host.close()
    assert channel.close() is None
    until(lambda: set(threading.enumerate()) <= threads, "the end of the threads")
    assert len(list(Path("/proc/self/fd").iterdir())) <= files
    with pytest.raises(HostError, match="the connection was closed"):
        host.run(["true"], timeout_s=30)


# Losses


def flood(channel: Channel) -> None:
    while True:
        channel.send({"data": "x" * 300_000})


def lost_after(host: SSHHost, cut: Callable[[], None]) -> tuple[float, str]:
    """Return how long it takes until the loss is detected with data under way in both directions, and the message."""
    channel, endless = host.open(["sleep", "600"]), host.open(["yes", "{}"])
    with ThreadPoolExecutor() as pool:
        run = pool.submit(host.run, ["sleep", "600"], timeout_s=600)
        sent = pool.submit(flood, channel)
        time.sleep(0.3)
        started = time.monotonic()
        cut()
        with pytest.raises(HostLost) as caught:
            channel.receive(30)
        took = time.monotonic() - started
        for other in (run, sent):
            with pytest.raises(HostLost):
                other.result(5)
    with pytest.raises(HostLost):
        host.run(["true"], timeout_s=30)
    for one in (channel, endless):
        one.close()
    return took, str(caught.value)


@pytest.mark.slow
def test_a_cut_link_and_a_frozen_host_are_detected_and_reconnected(host: SSHHost, there: LabHost) -> None:
    took, message = lost_after(host, lambda: there.link(False))
    assert took < 30
    # The kernel decides which of the two errors comes first.
    assert message.endswith(("lost: no sign of life for 10 s", "lost: No route to host", "lost: Connection timed out"))
    with pytest.raises(HostLost, match=r"no answer within 10 s|No route to host"):
        host.reconnect()
    there.link(True)
    host.reconnect()
    assert host.run(["true"], timeout_s=30).code == 0
    took, message = lost_after(host, there.freeze)
    assert took < 30
    assert message.endswith("the connection is lost: no sign of life for 10 s")
    with pytest.raises(HostError, match="connected, but no reply within 10 s"):
        host.reconnect()
    there.thaw()
    host.reconnect()
    assert host.run(["true"], timeout_s=30).code == 0


# Forwarded sockets

SERVER = """
import os, socket, sys, threading
path = sys.argv[1]
server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen()
def serve(one):
    data = b"".join(iter(lambda: one.recv(65536), b""))
    one.sendall(data[::-1]); one.close()
while True: threading.Thread(target=serve, args=(server.accept()[0],)).start()
"""


def serve(there: LabHost, path: str) -> None:
    there.start(["python3", "-c", SERVER, path], log="/tmp/server.log")
    until((there.root / path.lstrip("/")).exists, "the server")


def ask(host: SSHHost, data: bytes) -> bytes:
    with host.open_socket("/run/test.sock") as asking:
        asking.settimeout(30)
        asking.sendall(data)
        asking.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: asking.recv(65536), b""))


def test_a_hosts_socket_is_reachable_on_this_machine(host: SSHHost, there: LabHost) -> None:
    serve(there, "/run/test.sock")
    big = random.Random(3).randbytes(1_000_000)
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda n: ask(host, big[n:]), range(12))) == [big[n:][::-1] for n in range(12)]
    with host.open_socket("/run/test.sock") as asking:  # a client that disconnects early leaves nothing
        asking.sendall(b"x")
    stream = host._stream
    assert stream is not None
    until(lambda: not stream._programs, "the end of the connections")
    with host.open_socket("/run/test.sock") as asking:
        there.kill_sshd_sessions()
        assert asking.recv(1) == b""
    host.reconnect()
    assert ask(host, b"abc") == b"cba"


def test_a_missing_or_forbidden_socket_is_reported_at_once(host: SSHHost, lab: Lab, there: LabHost) -> None:
    with pytest.raises(HostError, match=r"cannot reach the socket /no/such\.sock: No such file or directory"):
        host.open_socket("/no/such.sock")
    there.add_user("bench")
    serve(there, "/run/own.sock")
    there.run(["chmod", "600", "/run/own.sock"])
    (other,) = ssh_hosts(replace(conf_of(lab, [there]), user="bench"))
    with pytest.raises(HostError, match=r"cannot reach the socket /run/own\.sock: Permission denied"):
        other.open_socket("/run/own.sock")
    other.close()
