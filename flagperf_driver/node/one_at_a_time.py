"""Let one process of this host, or of the hosts that share a cache, do a long piece of work while the others wait."""

from __future__ import annotations

import fcntl
import select
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from flagperf_driver.node.request_server import RequestError, caller_left, send

_POLL_S = 0.2


@contextmanager
def one_at_a_time(path: Path, deadline: float, does: str, doing: str) -> Iterator[None]:
    """Hold the lock of a file; RequestError at the deadline, or when the caller leaves.

    ``does`` and ``doing`` are what the holder of the lock does, as in "builds this" and "building this".
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
            if select.select([sys.stdin.fileno()], [], [], _POLL_S)[0] and caller_left():
                raise RequestError("the caller has left")
        yield


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
