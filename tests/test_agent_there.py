"""An agent on a lab host, over SSH and in Docker: its ranks when the connection or the container fails."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flagperf_driver.node.deployed_code import module_argv
from pytest_flagperf.hosts import Channel, HostError, Message
from pytest_flagperf.hosts.cluster import ClusterConfig
from pytest_flagperf.hosts.deploy import Code, attach, open_module, pack
from pytest_flagperf.hosts.ssh import SSHHost, ssh_hosts
from tests.driver.lab import BEATING

if TYPE_CHECKING:
    from tests.lab.lab import Lab, LabHost

AGENT = "flagperf_driver.node.agent.main"
FOREVER = "train(1, 10**6)"
STEPS = """
    for step in range(1500):
        log(events.STEP_END, {"step": step})
        heart.beat(step, heartbeat.TRAIN)
        time.sleep(0.01)
    log(events.FINISHED)
"""
EATING = "heap = []\nwhile True: heap.append(bytearray(os.urandom(1 << 20)))"
PATIENCE_S = 60.0


class Round:
    """An agent on the host, and all its messages."""

    def __init__(self, there: LabHost, host: SSHHost, code: Code, lease_s: float, name: str) -> None:
        self.there, self.host = there, host
        self.messages: list[Message] = []
        self.channel: Channel = open_module(host, code, AGENT)
        self.channel.send({"op": "hello", "log_dir": None, "name": name, "lease_s": lease_s, "silence_s": 3})
        hello = self.wait_for("hello")
        self.log_dir, self.code_root = hello["log_dir"], hello["code_root"]

    def start(self, *programs: str, **more: object) -> None:
        ranks = []
        for number, program in enumerate(programs):
            path = f"{self.log_dir}/rank{number}.py"
            text = textwrap.dedent(BEATING) + textwrap.dedent(program)
            self.there.run(["tee", path], input=text)
            env = {"RANK": str(number), "PYTHONPATH": self.code_root, "FLAGPERF_LOG_DIR": self.log_dir}
            python = [self.host.python, "-u", path]
            ranks.append({"rank": number, "argv": python, "env": env, "cwd": self.log_dir})
        self.channel.send({"op": "start", "ranks": ranks, "grace_s": 1, **more})

    def next(self) -> Message:
        message = self.channel.receive(PATIENCE_S)
        assert message is not None, f"the agent ended: {self.messages[-3:]}, {self.channel.error_output()}"
        self.messages.append(message)
        if "seq" in message:
            self.channel.send({"op": "ack", "seq": message["seq"]})
        return message

    def wait_for(self, kind: str) -> Message:
        while (message := self.next())["type"] != kind:
            pass
        return message

    def listen_until_lost(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        try:
            while time.monotonic() < deadline:
                self.next()
        except HostError:
            return
        raise AssertionError("the loss was not noticed")

    def reattach(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                self.host.reconnect()
                break
            except HostError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        self.channel = attach(self.host, self.log_dir)
        self.channel.send({"op": "attach", "after": max(m.get("seq", 0) for m in self.messages)})
        self.wait_for("attached")

    def leave(self) -> None:
        self.channel.send({"op": "leave", "remove": True})
        self.wait_for("end")
        self.channel.close()

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.messages if message["type"] == kind]

    @property
    def steps(self) -> list[int]:
        return [m["value"]["step"] for m in self.of("perflog") if m["event"] == "STEP_END"]

    @property
    def left(self) -> list[str]:
        words = ("agent", "pytest-flagperf", "rank0.py", "rank1.py", "sleep")
        return [each.cmdline for each in self.there.processes() if any(word in each.cmdline for word in words)]

    def wait_until_nothing_is_left(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while self.left or self.containers:
            assert time.monotonic() < deadline, f"{self.left} {self.containers}"
            time.sleep(0.1)

    @property
    def containers(self) -> list[str]:
        done = self.there.run(["docker", "ps", "--all", "--quiet"], check=False)
        return done.stdout.split()


@pytest.fixture(scope="module")
def code() -> Code:
    return pack({})


@pytest.fixture
def there(lab: Lab) -> LabHost:
    return lab.hosts(1)[0]


@pytest.fixture
def host(lab: Lab, there: LabHost) -> Iterator[SSHHost]:
    ssh = lab.ssh_settings([there])
    (connected,) = ssh_hosts(ClusterConfig(tuple(ssh.hosts), ssh.user, ssh.port, ssh.key, ssh.known_hosts))
    yield connected
    connected.close()


@pytest.fixture
def begin(there: LabHost, host: SSHHost, code: Code, request: pytest.FixtureRequest) -> Any:
    return lambda lease_s=60.0: Round(there, host, code, lease_s, f"test-{time.time_ns()}")


# -- the link ----------------------------------------------------------------------------------------------


def test_a_link_that_comes_back_loses_no_line(there: LabHost, begin: Any) -> None:
    round_ = begin()
    round_.start(STEPS)
    while len(round_.steps) < 50:
        round_.next()
    there.link(up=False)
    try:
        round_.listen_until_lost(30)
    finally:
        there.link(up=True)
    round_.reattach()
    round_.wait_for("over")
    assert round_.steps == list(range(1500))
    assert round_.of("fault") == []
    round_.leave()
    round_.wait_until_nothing_is_left(5)


def test_a_killed_ssh_session_does_not_disturb_the_ranks(there: LabHost, begin: Any) -> None:
    round_ = begin()
    round_.start("train(1, 300)")
    round_.wait_for("started")
    there.kill_sshd_sessions()
    round_.listen_until_lost(20)
    round_.reattach()
    round_.wait_for("over")
    assert [m["code"] for m in round_.of("exit")] == [0]
    round_.leave()
    round_.wait_until_nothing_is_left(5)


def test_after_a_permanent_cut_nothing_is_left_when_the_lease_ends(there: LabHost, begin: Any) -> None:
    round_ = begin(2.0)
    round_.start("subprocess.Popen(['sleep', '1000'])\n" + FOREVER)
    round_.wait_for("started")
    there.link(up=False)
    try:
        time.sleep(1)
        assert round_.left != []  # control: there is something to remove
        round_.wait_until_nothing_is_left(15)
        state = json.loads((there.root / round_.log_dir.lstrip("/") / "agent.json").read_text())
        assert (state["state"], state["fault"]["kind"]) == ("ended", "lost_controller")
    finally:
        there.link(up=True)


# -- the container -----------------------------------------------------------------------------------------


@pytest.fixture
def contained(there: LabHost, begin: Any, lab: Lab) -> Iterator[Any]:
    """Start a round in a container of the base image, which sees the machine's Python."""
    there.docker()

    def start(*programs: str, options: tuple[str, ...] = (), **more: object) -> Round:
        round_: Round = begin()
        python = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
        shown = [*lab.container_options(python), "-v", f"{round_.code_root}:{round_.code_root}:ro"]
        shown += ["-v", f"{round_.log_dir}:{round_.log_dir}", "--network=host", *options]
        argv = [*module_argv(python, round_.code_root, AGENT), "--inner", round_.log_dir]
        made = there.run(["docker", "create", *shown, "--entrypoint", argv[0], "flagperf-lab:base", *argv[1:]])
        container = {"socket": "/run/docker.sock", "id": made.stdout.strip()}
        round_.host.python = python
        round_.start(*programs, container=container, **more)
        return round_

    yield start
    if not there.engine.running:
        there.docker()


def test_a_round_in_a_container_leaves_no_container(contained: Any) -> None:
    round_ = contained("log(events.INIT_START); train(1, 20)", "train(1, 20)")
    round_.wait_for("started")
    assert len(round_.containers) == 1
    round_.wait_for("over")
    assert [m["code"] for m in round_.of("exit")] == [0, 0]
    assert round_.of("fault") == round_.of("warning") == []
    assert round_.containers == []
    round_.leave()


def test_a_killed_container_is_reported(there: LabHost, contained: Any) -> None:
    round_ = contained(FOREVER, FOREVER)
    round_.wait_for("started")
    there.run(["docker", "kill", *round_.containers])
    fault = round_.wait_for("fault")
    round_.wait_for("over")
    assert fault["sentence"].startswith("the container of ranks 0 to 1 was killed (exit code 137)")
    assert round_.containers == []
    round_.leave()


def test_a_rank_over_its_containers_memory_limit_is_reported(contained: Any) -> None:
    round_ = contained(EATING, FOREVER, options=("--memory=128m", "--memory-swap=128m"))
    fault = round_.wait_for("fault")
    round_.wait_for("over")
    assert fault["sentence"].startswith("rank 0 was killed by SIGKILL (the container's memory limit, 128 MiB)")
    assert [m["cause"] for m in round_.of("exit") if m["rank"] == 1] == ["stopped"]
    round_.leave()


def test_a_killed_engine_does_not_stop_the_round_and_is_a_warning(there: LabHost, contained: Any) -> None:
    round_ = contained("train(1, 200)")
    round_.wait_for("started")
    there.kill_dockerd()
    warning = round_.wait_for("warning")
    assert "cannot be removed yet: " in warning["sentence"]
    there.docker()
    round_.wait_for("over")
    assert [m["code"] for m in round_.of("exit")] == [0]
    assert round_.of("fault") == []
    assert round_.containers == []
    round_.leave()


def test_the_container_of_a_killed_agent_is_removed(there: LabHost, contained: Any) -> None:
    round_ = contained(FOREVER)
    pid = next(m["pid"] for m in round_.messages if m["type"] == "hello")
    round_.wait_for("started")
    there.run(["kill", "-9", str(pid)])
    round_.wait_until_nothing_is_left(15)


def test_a_frozen_host_continues_where_it_stopped(there: LabHost, begin: Any) -> None:
    round_ = begin()
    round_.start(STEPS)
    while len(round_.steps) < 50:
        round_.next()
    there.freeze()
    try:
        round_.listen_until_lost(30)
    finally:
        there.thaw()
    round_.reattach()
    round_.wait_for("over")
    assert round_.steps == list(range(1500))
    assert round_.of("fault") == []
    round_.leave()
    round_.wait_until_nothing_is_left(5)
