"""Ctrl-C, and SIGTERM, a batch system's polite word for it: once ends in order, twice at once."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import Any

import pytest

_LEFT = b"\nflagperf: interrupted again, so it left at once: ranks elsewhere end by their lease\n"


class Interrupts:
    """Registered only where there is a run."""

    def __init__(self, config: pytest.Config, *, worker: bool) -> None:
        self._worker = worker
        self._ending = False
        self._workers: list[Any] = []
        if threading.current_thread() is not threading.main_thread():
            return
        # Who ignores Ctrl-C, as what runs in a shell's background does, or has a handler, keeps it so.
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is usual:
                signal.signal(number, self._heard)
                config.add_cleanup(partial(_put_back, number, usual))

    def _heard(self, *_: object) -> None:
        """End in order; while that goes on, a worker is told again by others and must not be disturbed by it."""
        if not self._ending:
            self._ending = self._worker
            raise KeyboardInterrupt
        if not self._worker:
            os.write(2, _LEFT)
            # Not by an exception: it would come up in the middle of pytest's own reports, as a traceback.
            os._exit(pytest.ExitCode.INTERRUPTED)

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


def _put_back(number: int, handler: Any) -> None:
    signal.signal(number, handler)
