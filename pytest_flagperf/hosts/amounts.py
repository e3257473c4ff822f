"""Amounts of bytes that are copied to or from a host."""

from __future__ import annotations

import time
from collections.abc import Callable

Report = Callable[[str], None]
OnBytes = Callable[[int], None]
"""Called with the number of bytes that were copied so far."""
_EVERY_S = 1.0


def megabytes(done: int, total: int) -> str:
    """Return an amount such as ``12 of 38 MB``."""
    digits = 0 if total >= 10e6 else 1
    return f"{done / 1e6:.{digits}f} of {total / 1e6:.{digits}f} MB"


def reporter(report: Report, title: str, total: int) -> OnBytes:
    """Return a function that reports the copied bytes at most once a second: ``TITLE: 12 of 38 MB``."""
    due = time.monotonic()

    def on_bytes(done: int) -> None:
        nonlocal due
        if time.monotonic() >= due or done == total:
            due = time.monotonic() + _EVERY_S
            report(f"{title}: {megabytes(done, total)}")

    return on_bytes
