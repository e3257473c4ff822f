"""A free port on the first host, for the rendezvous of a round's ranks, and connections to ports of other hosts."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Iterator

# Below Linux's range for outgoing connections, so that none of them can take the port.
PORTS = range(20000, 32000)
_TRIES = 100
_AGAIN_S = 0.2


def candidates() -> Iterator[int]:
    """Yield random ports of the range."""
    for _ in range(_TRIES):
        yield PORTS[int.from_bytes(os.urandom(4), "big") % len(PORTS)]


def free_port() -> int:
    """Return a port that no process uses now. If another process takes it later, the framework reports that."""
    for port in candidates():
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port found in {_TRIES} tries in {PORTS[0]}-{PORTS[-1]}")


def reach(address: str, port: int, timeout_s: float) -> socket.socket:
    """Connect; try again while there is no route: where packets are lost, the kernel may not find a neighbour."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection((address, port), max(0.1, deadline - time.monotonic()))
        except OSError as error:
            if error.errno != errno.EHOSTUNREACH or time.monotonic() + _AGAIN_S > deadline:
                raise
        time.sleep(_AGAIN_S)
