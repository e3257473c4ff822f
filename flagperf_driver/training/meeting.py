"""All ranks of a training meet at the first rank: they agree on addresses and exchange values.

Frameworks need more than the one address that a round has, and some of them cannot exchange Python values. The
connections carry only small values between steps; gradients go through the framework.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import threading
import time
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Callable, Iterator, Sequence

from flagperf_driver import ports
from flagperf_driver.driver import Rank, World

_RETRY_S = 0.05


class MeetingError(RuntimeError):
    """The ranks cannot meet, or one of them has left."""


@dataclass(frozen=True)
class Meeting:
    """A rank's connections: of the first rank to every other one, of every other one to the first."""

    world: World
    links: Sequence[Connection] = ()
    addresses: Sequence[str] = ("127.0.0.1:0",)
    """For every rank HOST:PORT with a port that was free, for the framework's own connections."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of the ranks; every rank must call it."""
        if self.world.world_size == 1:
            return [value]
        try:
            if self.world.rank:
                self.links[0].send_bytes(pickle.dumps(value))
                values: list[Any] = pickle.loads(self.links[0].recv_bytes())  # noqa: S301 - from a rank with our key
                return values
            values = [value]
            for link in self.links:
                values.append(pickle.loads(link.recv_bytes()))  # noqa: S301 - from a rank with our key
            answer = pickle.dumps(values)
            for link in self.links:
                link.send_bytes(answer)
            return values
        except (EOFError, OSError) as error:
            who = "rank 0" if self.world.rank else "another rank"
            raise MeetingError(f"{who} ended while rank {self.world.rank} waited for it; see its log") from error

    def call_at_end(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` in a thread once the connection to another rank is closed at its end."""
        poll = select.poll()
        for link in self.links:
            poll.register(link.fileno(), select.POLLRDHUP)

        def wait() -> None:
            poll.poll()
            ended()

        threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def meet(rank: Rank) -> Iterator[Meeting]:
    """Connect all ranks at MASTER_ADDR:MASTER_PORT for the duration of the block."""
    world = rank.world
    if world.world_size == 1:
        yield Meeting(world)
        return
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    key = rank.case.token.encode()
    links = [_join(address, key, world, rank.config.init_timeout_s)] if world.rank else _receive(address[1], key, world)
    try:
        own = f"{_own_address(links[0]) if world.rank else address[0]}:{ports.free_port()}"
        yield Meeting(world, links, Meeting(world, links).gather(own))
    finally:
        for link in links:
            link.close()


def _receive(port: int, key: bytes, world: World) -> list[Connection]:
    """Wait for all other ranks and return their connections in the order of the ranks."""
    links: dict[int, Connection] = {}
    with Listener(("", port), backlog=world.world_size, authkey=key) as listener:
        while len(links) < world.world_size - 1:
            try:
                link = listener.accept()
                links[int(link.recv_bytes())] = link
            except (AuthenticationError, EOFError, ConnectionError):
                continue  # not a rank of this round
    return [links[other] for other in sorted(links)]


def _join(address: tuple[str, int], key: bytes, world: World, timeout_s: float) -> Connection:
    """Connect to the first rank, which may start later."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            link = Client(address, authkey=key)
            link.send_bytes(b"%d" % world.rank)
            return link
        except (EOFError, OSError) as error:
            if time.monotonic() > end:
                place = "{}:{}".format(*address)
                raise MeetingError(f"rank 0 did not answer at {place} for {timeout_s:g} s: {error}") from error
            time.sleep(_RETRY_S)


def _own_address(link: Connection) -> str:
    """Return the address of this host on the network of the first rank."""
    import socket

    with socket.socket(fileno=os.dup(link.fileno())) as own:
        return str(own.getsockname()[0])
