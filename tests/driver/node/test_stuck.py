"""Processes that are stuck in the kernel do not block the end of a round."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagperf_driver.node import processes
from flagperf_driver.node.agent import main as agent_main
from flagperf_driver.node.agent import sampler_process
from flagperf_driver.node.folder import LogFolder

CHILDREN = """
import subprocess, sys, time
from flagperf_driver.node import processes
child = subprocess.Popen(["sleep", "60"])
if sys.argv[1] == "stuck":
    processes._kill = lambda pid, number: None
began = time.monotonic()
processes.kill_children(except_pid=0, timeout_s=0.3)
print(time.monotonic() - began < 20, child.poll() is None)
subprocess.run(["kill", "-9", str(child.pid)], stderr=subprocess.DEVNULL)
"""


@pytest.mark.parametrize(("how", "output"), [("stuck", "True True"), ("well", "True False")])
def test_kill_children_does_not_wait_for_a_stuck_child(repo: Path, how: str, output: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, how], capture_output=True, text=True, cwd=repo, timeout=20, check=True
    )
    assert done.stdout.strip() == output


def test_a_stuck_sampler_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    sampler = sampler_process.SamplerProcess({}, messages.append, module="this")
    child = sampler._child
    assert child is not None
    monkeypatch.setattr(sampler_process, "_END_S", 0.05)
    monkeypatch.setattr(processes, "has_ended", lambda _: False)
    monkeypatch.setattr(processes, "kill_session", lambda _: None)
    sampler.end()
    deadline = time.monotonic() + 5
    while not sampler.ended and time.monotonic() < deadline:
        sampler.process()
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert messages == [
        "the sampler did not end within 0.05 s and was killed",
        "the sampler cannot be killed: it is stuck in the kernel",
    ]


def test_beats_are_sent_while_caches_are_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    link: Any = SimpleNamespace(gone_s=lambda: None, reply=lambda message: messages.append(message["type"]))
    caches: Any = SimpleNamespace(ended=lambda: False)
    monkeypatch.setattr(agent_main, "_BEAT_S", 0.0)
    agent_main.AgentRound(LogFolder(tmp_path), link, 0)._start_when_cleared(None, caches)  # type: ignore[arg-type]
    assert messages == ["beat"]
