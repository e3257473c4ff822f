"""Hosts: one interface for this machine and for machines over SSH."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from socket import socket
from typing import Any, Protocol

Message = Mapping[str, Any]


class HostError(RuntimeError):
    """An operation on a host failed; the message names the host, the operation and the reason."""


class HostLost(HostError):
    """The connection to a host is lost or cannot be made. ``Host.reconnect`` may restore it."""


class HostGone(HostLost):
    """A lost host does not come back: its scheduler has ended the job that it belonged to."""


class InvalidReply(HostError):
    """A host sent an invalid message; the error names the host, the message and the expected form."""

    def __init__(self, host: str, problem: str) -> None:
        super().__init__(f"{host} sent an invalid reply: {problem}")


@dataclass(frozen=True)
class Completed:
    """The result of a program on a host; the code of a program killed by a signal is the negative signal number."""

    argv: tuple[str, ...]
    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        """The standard output as text."""
        return self.raw.decode("utf-8", "replace")


class Channel(Protocol):
    """A connection to a program on a host: one JSON object a line in both directions; HostLost if it is lost."""

    def send(self, message: Message) -> None: ...

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message; None after the end of the program. TimeoutError after ``timeout_s``."""

    def on_arrival(self, call: Callable[[], None]) -> bool:
        """Call the function when a message may have arrived or the end has come; False if nothing tells when."""

    def close(self, timeout_s: float = 5.0) -> int | None:
        """Close the connection, wait for the program's end, kill it after ``timeout_s``; return its exit code."""

    def error_output(self) -> str:
        """Return the last lines that the program wrote to stderr."""


class Host(Protocol):
    """A machine that ranks run on."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str:
        """The address at which the other hosts' ranks reach this host."""

    @property
    def python(self) -> str:
        """A Python >= 3.8 that exists before any environment is built."""

    @property
    def is_local(self) -> bool:
        """Whether this is the harness's own machine, which already has every file."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a program to its end, whatever its exit code; HostError if it cannot start or takes too long."""

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Channel:
        """Start a program and connect to it; a terminal's Ctrl-C does not reach it."""

    def put(self, digest: str, archive: Callable[[], bytes]) -> str:
        """Return the folder of the code with this digest on the host; send its archive if the host lacks it."""

    def connect(self, path: str) -> Channel:
        """Connect to the host's Unix socket ``path``; HostError if no program listens there."""

    def open_socket(self, path: str) -> socket:
        """Return a socket that is connected to the host's Unix socket ``path``; HostError if no program listens."""

    def reconnect(self) -> None:
        """Replace a lost connection by a new one; HostLost with the reason if that fails."""

    def close(self) -> None: ...
