"""Signals that end a run: Ctrl-C and similar signals stop it in order, a second signal stops it at once.

A batch system sends SIGTERM, a closed terminal or SSH session SIGHUP, Ctrl and backslash SIGQUIT.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

_EXIT_MESSAGE = b"\nflagperf: interrupted again, exiting at once; ranks on other hosts stop with their lease\n"
# Signals within this time count as one: `timeout` signals its child and the group, a wrapper repeats Ctrl-C.
_ONE_EVENT_S = 0.5
# Windows has neither SIGHUP nor SIGQUIT.
_SIGHUP = getattr(signal, "SIGHUP", None)
_DEFAULT_HANDLERS: dict[int, Any] = {
    number: signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    for number in (signal.SIGINT, signal.SIGTERM, _SIGHUP, getattr(signal, "SIGQUIT", None))
    if number is not None
}


class Interrupts:
    """The signal handlers and hooks of an interrupted run; registered only if there is a run."""

    def __init__(self, config: pytest.Config, *, worker: bool) -> None:
        self._worker = worker
        self._ending = False
        self._last: int | None = None  # the last signal
        self._counted_at = -math.inf  # when the last separate event arrived
        self._workers: list[Any] = []
        self._outputs = {_file_of(fd) for fd in (1, 2)} - {None}
        if threading.current_thread() is not threading.main_thread():
            return
        # Ignored signals (Ctrl-C in the background of a shell, SIGHUP under nohup) and other handlers stay unchanged.
        for number, default in _DEFAULT_HANDLERS.items():
            if signal.getsignal(number) is default:
                signal.signal(number, self._on_signal)
                config.add_cleanup(partial(_restore, number, default))

    def _on_signal(self, number: int, _: object) -> None:
        """Stop in order at the first signal, and at once at the second; a stopping worker ignores further signals."""
        before, self._last = self._last, number
        if number == _SIGHUP:
            self._discard_dead_output()
        # A closed terminal is one event, reported by the shell, the kernel and a session manager.
        if before is not None and _SIGHUP in (before, number):
            return
        if time.monotonic() < self._counted_at + _ONE_EVENT_S:
            return
        self._counted_at = time.monotonic()
        if not self._ending:
            self._ending = self._worker
            raise KeyboardInterrupt
        if not self._worker and before is not None:
            with suppress(OSError):
                os.write(2, _EXIT_MESSAGE)
            # An exception would appear as a traceback in the reports of pytest.
            os._exit(pytest.ExitCode.INTERRUPTED)

    def _discard_dead_output(self) -> None:
        """Replace a closed terminal, or a pipe without a reader, by /dev/null, so that writing does not fail."""
        dead = [fd for fd in _open_files() if _file_of(fd) in self._outputs and _is_closed(fd)]
        if dead:
            null = os.open(os.devnull, os.O_WRONLY)
            for fd in dead:
                os.dup2(null, fd, os.get_inheritable(fd))
            os.close(null)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        """Remember the process of a worker on this machine."""
        process = getattr(getattr(node.gateway, "_io", None), "popen", None)
        if node.gateway.spec.popen and process is not None:
            self._workers.append(process)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Stop the workers at once; execnet would wait five seconds."""
        self._ending = True
        for process in self._workers:
            process.terminate()  # sends no signal if the process has ended and its PID may be reused

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self) -> None:
        """Write the reports even if the error is a closed terminal or pipe."""
        self._discard_dead_output()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Finish the reports despite a first signal, because the run has ended; a second signal exits at once."""
        self._ending = True


def _restore(number: int, handler: Any) -> None:
    signal.signal(number, handler)


def _open_files() -> list[int]:
    """Return the open files; empty on Windows, which reports no closed terminal."""
    for folder in ("/proc/self/fd", "/dev/fd"):  # the second one on macOS
        with suppress(FileNotFoundError):
            return [int(name) for name in os.listdir(folder)]  # noqa: PTH208 - numbers, not paths
    return []


def _file_of(fd: int) -> tuple[int, int] | None:
    """Return the device and inode of an open file; duplicates, such as those of pytest's capture, have the same."""
    with suppress(OSError):
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    return None


def _is_closed(fd: int) -> bool:
    """Return True if the terminal or the reader of the pipe is gone."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))
