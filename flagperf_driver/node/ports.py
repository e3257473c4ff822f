"""Where the ranks of a round meet: any port that is free on the first host."""

from __future__ import annotations

import os
import socket
from typing import Iterator

# Below the range from which Linux serves outgoing connections: none of those takes the port meanwhile.
PORTS = range(20000, 32000)
_TRIES = 100


def candidates() -> Iterator[int]:
    """Some of the ports, by chance."""
    for _ in range(_TRIES):
        yield PORTS[int.from_bytes(os.urandom(4), "big") % len(PORTS)]


def free_port() -> int:
    """A port that nobody listens on now; who comes first to it later is told so by its own framework."""
    for port in candidates():
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port among {_TRIES} tried in {PORTS[0]}-{PORTS[-1]}")
