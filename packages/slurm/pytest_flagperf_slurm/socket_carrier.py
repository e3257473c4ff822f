"""The carrier of a host's stream over a socket: the relay on each node connects to this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from pytest_flagperf.hosts.carriers import write_all

_READ_BYTES = 1 << 18


class SocketCarrier:
    """A socket that a host has connected to this machine."""

    greeting_s = 60.0

    def __init__(self, by: str, connection: socket.socket, last_words: Callable[[], str]) -> None:
        self.by = by
        self._socket = connection
        self._socket.setblocking(False)
        self._last_words = last_words
        self._error = ""
        self._using = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> bytes | None:
        try:
            with self._using:
                return b"" if self._socket.fileno() < 0 else self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            self._error = error.strerror or str(error)
            return b""

    def write(self, data: bytes) -> None:
        write_all(data, self._using, self.fileno, self._socket.send)

    def code(self) -> int | None:
        """Return None: the socket does not tell it."""
        return None

    def last_words(self) -> str:
        return self._error or self._last_words()

    def close(self) -> None:
        with self._using:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
