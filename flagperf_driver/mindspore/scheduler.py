"""MindSpore's scheduler: a process beside the first rank, which tells the ranks of each other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Mapping

_CODE = Path(__file__).resolve().parents[2]
_PROGRAM = "from flagperf_driver.mindspore import scheduler; scheduler.run({})"
_POLL_S = 0.1


class SchedulerError(RuntimeError):
    """The scheduler did not start."""


def start(environment: Mapping[str, str], host: str, port: int, timeout_s: float) -> None:
    """Start the scheduler as a child, and wait until it listens; it ends with this process at the latest.

    A rank that calls MindSpore before connects again and again, and may lose a connection that it believes to have.
    """
    path = os.pathsep.join(filter(None, [str(_CODE), os.environ.get("PYTHONPATH")]))
    argv = [sys.executable, "-c", _PROGRAM.format(os.getpid())]
    child = subprocess.Popen(argv, env={**os.environ, **environment, "PYTHONPATH": path}, stdin=subprocess.DEVNULL)
    end = time.monotonic() + timeout_s
    while not _listens(host, port):
        if child.poll() is not None:
            raise SchedulerError(f"MindSpore's scheduler ended with exit code {child.returncode}; see this rank's log")
        if time.monotonic() > end:
            raise SchedulerError(f"MindSpore's scheduler did not listen at {host}:{port} within {timeout_s:g} s")
        time.sleep(_POLL_S)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def run(parent: int) -> None:
    """Run the scheduler in this process until the ranks have ended or ``parent`` ends."""
    from flagperf_driver.node.processes import die_with

    die_with(parent)  # by the kernel: MindSpore holds Python's lock while it waits for its ranks, for minutes
    import mindspore as ms

    ms.set_device("CPU")
    ms.communication.init()
