"""Choose a free port on the first host for the rendezvous of a round's ranks."""

from __future__ import annotations

import os
import socket
from typing import Iterator

# Below Linux's range for outgoing connections, so that none of them can take the port.
PORTS = range(20000, 32000)
_TRIES = 100


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
