"""Ctrl-C and SIGTERM: the workers stop, and a second signal exits at once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_flagperf.plugin import interrupts
from pytest_flagperf.plugin.interrupts import Interrupts

from .conftest import Toy

TWICE = """
import os, signal, time
def pytest_keyboard_interrupt():
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
# SIGTERM acts like Ctrl-C, and unlike SIGINT it is not ignored in the background of a shell.
ONCE = "import os, signal\ndef test_mine(): os.kill(os.getpid(), signal.SIGTERM)\n"


@pytest.fixture
def config() -> Iterator[Any]:
    """A configuration with default signal handlers; pytest of these tests has its own."""
    usual: dict[int, Any] = dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT), signal.SIG_DFL)
    usual[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    cleanups: list[Any] = []
    yield SimpleNamespace(add_cleanup=cleanups.append)
    for cleanup in cleanups:
        cleanup()
    assert {number: signal.getsignal(number) for number in usual} == usual
    for number, handler in before.items():
        signal.signal(number, handler)


def test_workers_on_this_machine_are_stopped_at_once(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    here, elsewhere = processes
    controller = Interrupts(config, worker=False)
    for process in processes:
        gateway = SimpleNamespace(_io=SimpleNamespace(popen=process), spec=SimpleNamespace(popen=process is here))
        controller.pytest_testnodeready(SimpleNamespace(gateway=gateway))
    controller.pytest_keyboard_interrupt()
    here.communicate()
    elsewhere.communicate(b"\n")
    assert here.returncode == -signal.SIGTERM
    assert elsewhere.returncode == 0, "what would have been ended there is the connection"
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("its number may be another's by now"))
    controller.pytest_keyboard_interrupt()


def test_a_stopping_worker_ignores_further_signals(config: Any) -> None:
    Interrupts(config, worker=True)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)


def test_two_signals_of_one_event_count_once(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` signals its child and then the group of the child."""
    Interrupts(config, worker=False)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    monkeypatch.setattr(interrupts, "_ONE_EVENT_S", 0)
    with pytest.raises(KeyboardInterrupt):  # the control: a later signal is a second event
        signal.raise_signal(signal.SIGTERM)


def test_a_first_signal_does_not_interrupt_the_reports(config: Any) -> None:
    Interrupts(config, worker=False).pytest_sessionfinish()
    signal.raise_signal(signal.SIGTERM)


def test_a_closed_terminal_counts_once(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_ONE_EVENT_S", 0)
    Interrupts(config, worker=False)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):  # the control: a second SIGTERM stops the run
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_a_second_signal_while_the_reports_are_written_exits_with_a_message(toy: Toy) -> None:
    (toy.root / "suites" / "alpha" / "test_mine.py").write_text(ONCE)
    once = toy.run("suites", "-k", "mine")
    assert once.ret == pytest.ExitCode.INTERRUPTED
    once.stdout.fnmatch_lines(["!!* KeyboardInterrupt *!!"])
    (toy.root / "suites" / "conftest.py").write_text(TWICE)
    twice = toy.run("suites", "-k", "mine")
    assert twice.ret == pytest.ExitCode.INTERRUPTED
    assert (
        twice.errlines[-1] == "flagperf: interrupted again, exiting at once; ranks on other hosts stop with their lease"
    )
    assert "Traceback" not in twice.stderr.str() + twice.stdout.str()
