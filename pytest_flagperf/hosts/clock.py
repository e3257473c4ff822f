"""The clock of a host, measured by messages to a program there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

_PINGS = 3
_GOOD_S = 0.02  # what a window of samples may be off; with many hosts, further pings are no better


def clock_offset(ask: Callable[[Mapping[str, Any], str], Mapping[str, Any]]) -> tuple[float, float]:
    """Return the host's clock minus ours and the uncertainty, in seconds, from the fastest of up to three pings.

    ``ask`` sends a message and returns the answer of the given type.
    """
    measured: list[tuple[float, float]] = []
    while len(measured) < _PINGS and not (measured and min(measured)[0] <= _GOOD_S):
        before = time.time()
        remote = float(ask({"op": "ping", "t": before}, "pong")["clock_ms"]) / 1000
        after = time.time()
        measured.append(((after - before) / 2, remote - (before + after) / 2))
    uncertainty, offset = min(measured)
    return offset, uncertainty
