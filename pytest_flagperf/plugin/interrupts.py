"""Signals that end a run: Ctrl-C and its like end it in order, a second one at once.

A batch system sends SIGTERM, a closed terminal or a dropped SSH session SIGHUP, Ctrl and a backslash SIGQUIT.
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

_LEFT = b"\nflagperf: interrupted again, so it left at once: ranks elsewhere end by their lease\n"
_ONE_EVENT_S = 0.5  # `timeout` signals its child and then the child's group, a wrapper passes on the terminal's Ctrl-C
_USUAL: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
}


class Interrupts:
    """Registered only where there is a run."""

    def __init__(self, config: pytest.Config, *, worker: bool) -> None:
        self._worker = worker
        self._ending = False
        self._last: int | None = None  # the newest of the signals that arrived
        self._counted_at = -math.inf  # when the newest arrived that was an event of its own
        self._workers: list[Any] = []
        self._outputs = {_file_of(fd) for fd in (1, 2)} - {None}
        if threading.current_thread() is not threading.main_thread():
            return
        # A signal that is ignored, as Ctrl-C in a shell's background and SIGHUP under nohup, or has a handler stays so.
        for number, usual in _USUAL.items():
            if signal.getsignal(number) is usual:
                signal.signal(number, self._heard)
                config.add_cleanup(partial(_put_back, number, usual))

    def _heard(self, number: int, _: object) -> None:
        """End in order; while that goes on, a worker is told again by others and must not be disturbed by it."""
        before, self._last = self._last, number
        if number == signal.SIGHUP:
            self._discard_dead_output()
        # A closed terminal is one event, which its shell, the kernel and a session manager each report.
        if before is not None and signal.SIGHUP in (before, number):
            return
        if time.monotonic() < self._counted_at + _ONE_EVENT_S:
            return
        self._counted_at = time.monotonic()
        if not self._ending:
            self._ending = self._worker
            raise KeyboardInterrupt
        if not self._worker and before is not None:
            with suppress(OSError):
                os.write(2, _LEFT)
            # Not by an exception: it would come up in the middle of pytest's own reports, as a traceback.
            os._exit(pytest.ExitCode.INTERRUPTED)

    def _discard_dead_output(self) -> None:
        """Replace a closed terminal, or a pipe without a reader, by /dev/null: writes fail, and reports with them."""
        dead = [fd for fd in _open_files() if _file_of(fd) in self._outputs and _is_closed(fd)]
        if dead:
            null = os.open(os.devnull, os.O_WRONLY)
            for fd in dead:
                os.dup2(null, fd, os.get_inheritable(fd))
            os.close(null)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        """Keep a worker's process, where it is one of this machine."""
        process = getattr(getattr(node.gateway, "_io", None), "popen", None)
        if node.gateway.spec.popen and process is not None:
            self._workers.append(process)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Tell the workers at once: execnet would wait for five seconds before it does."""
        self._ending = True
        for process in self._workers:
            process.terminate()  # the number of one that has ended may be another's by now

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self) -> None:
        """Let the reports be written where the error is that the terminal or the reader of a pipe is gone."""
        self._discard_dead_output()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Finish the reports despite a first signal: the run has ended, and only a second signal shows impatience."""
        self._ending = True


def _put_back(number: int, handler: Any) -> None:
    signal.signal(number, handler)


def _open_files() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - numbers, not paths


def _file_of(fd: int) -> tuple[int, int] | None:
    """The device and inode of an open file: equal for all its duplicates, such as those of pytest's capture."""
    with suppress(OSError):
        found = os.fstat(fd)
        return found.st_dev, found.st_ino
    return None


def _is_closed(fd: int) -> bool:
    """Whether the other side is gone: the terminal, or the reader of a pipe."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))
