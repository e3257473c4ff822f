"""SSH connections, gateways and the channels of programs, without a host."""

import fcntl
import os
import resource
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fabric
import paramiko
import pytest

from pytest_flagperf.hosts import HostError, silence, ssh
from pytest_flagperf.hosts.carriers import is_ready
from pytest_flagperf.hosts.clock import clock_offset
from pytest_flagperf.hosts.cluster import Address, ClusterConfig
from pytest_flagperf.hosts.host_pool import allow_descriptors, one_core
from pytest_flagperf.hosts.local import LocalHost
from tests.helpers.rounds import Elsewhere


def test_all_hosts_wait_for_one_attempt_at_an_unreachable_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []

    def away(*_: object) -> None:
        tries.append(time.monotonic())
        time.sleep(0.2)
        raise HostError("port 22: no answer within 10 s")

    monkeypatch.setattr(ssh, "Link", away)
    gateway = ssh.Gateway(Address("login", "login", None, None), ClusterConfig(), fabric.Config())
    together = threading.Barrier(8)

    def enter(number: int) -> str:
        together.wait()
        with pytest.raises(HostError) as refused:
            gateway.enter(number)
        return str(refused.value)

    with ThreadPoolExecutor(8) as pool:
        reasons = set(pool.map(enter, range(8)))
    assert reasons == {"gateway port 22: no answer within 10 s"}
    assert len(tries) == 1
    with pytest.raises(HostError):
        gateway.enter("later")
    assert len(tries) == 2


@pytest.mark.parametrize(
    ("of_paramiko", "expected"),
    [
        ("Authentication timeout.", "h port 22: the connection was lost during the login; check the network"),
        ("Authentication failed: transport shut down or saw EOF", "h port 22: the connection was lost during the"),
        ("Authentication failed.", "h port 22: no key was accepted for the user root"),
    ],
)
def test_a_lost_login_is_no_refused_key(of_paramiko: str, expected: str) -> None:
    error = paramiko.AuthenticationException(of_paramiko)
    assert ssh._reason(error, fabric.Connection("h", user="root"), ClusterConfig()).startswith(expected)


def test_the_known_keys_of_a_host_are_found_by_its_name_plain_or_hashed(tmp_path: Path) -> None:
    own, other, newer = (paramiko.ECDSAKey.generate() for _ in range(3))

    def line(names: str, key: paramiko.ECDSAKey) -> str:
        return f"{names} {key.get_name()} {key.get_base64()}\n"

    file = tmp_path / "known_hosts"
    hashed = paramiko.HostKeys.hash_host("h2")
    broken = "# h1\n\n|1|no salt|x y z\nh1 ecdsa-sha2-nistp256 broken\nh1\n"
    file.write_text(broken + line("h1,10.0.0.1", own) + line("[h1]:2222", other) + line(hashed, other))
    assert [*ssh.known_keys(str(file), "h1")] == [*ssh.known_keys(str(file), "10.0.0.1")] == [own]
    assert [*ssh.known_keys(str(file), "[h1]:2222")] == [*ssh.known_keys(str(file), "h2")] == [other]
    assert [*ssh.known_keys(str(file), "h3")] == [*ssh.known_keys(str(tmp_path / "missing"), "h1")] == []
    with file.open("a") as added:
        added.write(line("h3", newer))
    assert [*ssh.known_keys(str(file), "h3")] == [newer], "a file that has changed is read again"


@pytest.mark.parametrize(("hard", "allowed", "warned"), [(10_000, 8_392, False), (4_096, 4_096, True)])
def test_the_controller_may_open_as_many_files_as_its_hosts_need(
    hard: int, allowed: int, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    warning = "this process may open 4,096 files; the connections to 1,024 hosts need about 8,392: raise ulimit -Hn"
    assert allow_descriptors(16) == []
    assert allow_descriptors(1024) == [f"warning: {warning}"] * warned
    assert limits == [(allowed, hard)]


def test_threads_for_many_other_hosts_share_a_core() -> None:
    usable, found = os.sched_getaffinity(0), list[set[int]]()
    for hosts in ([Elsewhere(f"h{number}") for number in range(64)], [Elsewhere("h1")], [LocalHost()] * 64):
        with one_core(hosts):
            thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
            thread.start()
            thread.join()
        assert os.sched_getaffinity(0) == usable
    assert [len(cores) for cores in found] == [1, len(usable), len(usable)]


def test_a_descriptor_above_those_of_select_can_be_waited_for() -> None:
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD, 1100)
    assert not is_ready(high, 0)
    assert is_ready(writer, 0, to_write=True)
    os.write(writer, b"x")
    assert is_ready(high, 0)
    for descriptor in (reader, writer, high):
        os.close(descriptor)


@pytest.mark.parametrize(
    ("round_trips", "expected"), [([0.036, 0.0], (3600.0, 0.018)), ([0.5, 0.06, 0.3, 0.0], (3600.0, 0.03))]
)
def test_a_clock_is_asked_again_only_if_the_answer_was_slow(
    round_trips: list[float], expected: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "time", lambda: now)

    def ask(_message: object, _answer: str) -> Mapping[str, float]:
        nonlocal now
        seconds = round_trips.pop(0)
        now += seconds
        return {"clock_ms": (now - seconds / 2 + 3600) * 1000}

    assert clock_offset(ask) == pytest.approx(expected)
    assert round_trips == [0.0]


def test_all_hosts_together_send_a_hundred_signs_of_life_a_second_at_most() -> None:
    assert silence.every_s(silence.BEAT_S, 100) == silence.BEAT_S
    for hosts in (1, 100, 1024, 8192):
        assert hosts / silence.every_s(silence.BEAT_S, hosts) <= 100
        assert silence.ping_s(hosts) > silence.every_s(silence.BEAT_S, hosts), "a host that sends beats is not pinged"


def test_connections_leave_the_config_alone_that_all_hosts_share() -> None:
    config = fabric.Config()
    made = ssh.connection(Address("h1", "h1", None, None), ClusterConfig(), config)
    assert config._modifications == {}
    assert made.inline_ssh_env is True
    fabric.Connection("h1", config=config)
    assert config._modifications, "the control"
