"""Long work of a host module: a lock that one process holds while others wait, and programs whose output is progress.

Both end when the caller of the module leaves.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, Iterator, Mapping, Sequence

from flagperf_driver.node import processes
from flagperf_driver.node.request_server import RequestError, caller_left, send

with suppress(ImportError):  # Windows imports this module for its names, but runs no rounds
    import fcntl

_POLL_S = 0.2
_LINE_END = re.compile(rb"\r\n|\r|\n")  # programs end the states of a progress bar with \r


@contextmanager
def one_at_a_time(path: Path, deadline: float, does: str, doing: str) -> Iterator[None]:
    """Hold the lock of a file, also against the hosts that share a cache.

    RequestError at the deadline, or when the caller leaves. ``does`` and ``doing`` are what the holder of the lock
    does, as in "builds this" and "building this".
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    reported = False
    with path.open("a") as file:
        while not _locked(file.fileno()):
            if time.monotonic() >= deadline:
                raise RequestError(f"{path}: another process is still {doing}")
            if not reported:
                send("progress", line=f"another process {does}; waiting for it")
                reported = True
            if select.select([sys.stdin.fileno()], [], [], _POLL_S)[0]:
                _check_caller()
        yield


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def run_program(
    argv: Sequence[str],
    deadline: float,
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> int:
    """Run a program, call ``on_line`` with each line of its output, and return its exit code.

    TimeoutError at the deadline, RequestError when the caller leaves; the program has ended in any case.
    """
    parent = os.getpid()
    process = subprocess.Popen(
        list(argv),
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: processes.die_with(parent),  # safe: this process has one thread
    )
    try:
        for line in _lines(process, deadline):
            on_line(line)
        return process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    finally:
        _kill(process)


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    assert process.stdout is not None
    out, rest = process.stdout.fileno(), b""
    while True:
        ready = select.select([out, sys.stdin.fileno()], [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            raise TimeoutError
        if ready != [out]:
            _check_caller()
        if out not in ready:
            continue
        chunk = os.read(out, 1 << 16)
        if not chunk:
            break
        *lines, rest = _LINE_END.split(rest + chunk)
        yield from (line.decode("utf-8", "replace").rstrip() for line in lines)
    if rest:
        yield rest.decode("utf-8", "replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
    if process.stdout is not None:
        process.stdout.close()


def _check_caller() -> None:
    if caller_left():
        raise RequestError("the caller has left")
