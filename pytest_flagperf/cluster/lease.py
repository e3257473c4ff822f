"""Waiting for devices, until rounds leave that to their agents: see flagperf_driver/node/lease.py."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from flagperf_driver.node.lease import Lease, LeaseError, Owner, _folder, _lock, default_directory, holders, owner, take

__all__ = ["Lease", "LeaseError", "default_directory", "holders", "lease", "owner"]

T = TypeVar("T")
OnWait = Callable[[str], None]

_POLL_S = 0.1
_REPORT_EVERY_S = 10.0


@contextmanager
def lease(
    wanted: int,
    *,
    candidates: Sequence[int],
    whole_host: bool,
    owner: Owner,
    on_wait: OnWait = lambda _: None,
    timeout_s: float = 24 * 3600.0,
    directory: Path | None = None,
) -> Iterator[Lease]:
    """``wanted`` of the ``candidates``, all or none, for as long as the body runs and its agent lives."""
    folder = _folder(directory or default_directory())
    wait = partial(_wait, folder=folder, deadline=time.monotonic() + timeout_s, on_wait=on_wait)
    line = wait(lambda: _lock(folder / "line.lock", fcntl.LOCK_EX))
    try:
        held = wait(lambda: take(wanted, candidates=candidates, whole_host=whole_host, owner=owner, directory=folder))
    finally:
        os.close(line)
    try:
        yield held
    finally:
        held.release()


def _wait(attempt: Callable[[], T | None], *, folder: Path, deadline: float, on_wait: OnWait) -> T:
    report_at = time.monotonic()
    while (got := attempt()) is None:
        now = time.monotonic()
        sentence = "; ".join(holders(folder)) or "others stand in line before us"
        if now >= deadline:
            raise LeaseError("no devices in time: " + sentence)
        if now >= report_at:
            on_wait(sentence)
            report_at = now + _REPORT_EVERY_S
        time.sleep(min(_POLL_S, max(0.0, deadline - now)))
    return got
