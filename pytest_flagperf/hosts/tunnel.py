"""A local Unix socket that leads to a socket on a host; each connection has a channel of its own."""

from __future__ import annotations

import os
import select
import shutil
import socket
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from . import HostError

# A channel to the socket on the host, and the function that closes it.
Bridge: TypeAlias = tuple[Any, Callable[[], None]]

_CHUNK = 1 << 16
_PREFIX = "flagperf-tunnel-"


class Tunnel:
    """A local socket, open as long as its host and only accessible to this user."""

    def __init__(self, bridge: Callable[[], Bridge], name: str) -> None:
        # Open the first channel now, so that a missing socket is reported at once.
        self._first: Bridge | None = bridge()
        self._bridge = bridge
        _remove_dead()
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
        # Removes the folder even if the harness ends without closing its hosts.
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = str(Path(folder, "socket"))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._threads = [threading.Thread(target=self._accept, name=f"tunnel to {name}", daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            waiting = [self._listener, *self._open]
        for sock in waiting:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()
        if self._first is not None:
            self._first[1]()
        self._remove()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._closed:
                    here.close()
                    return
                self._open.add(here)
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                thread = threading.Thread(target=self._serve, args=(here,), name="tunnel", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, here: socket.socket) -> None:
        release: Callable[[], None] = lambda: None  # noqa: E731 - until a channel is open
        with suppress(HostError, OSError, EOFError):
            with self._lock:
                first, self._first = self._first, None
            if first is not None and first[0].closed:
                first[1]()
                first = None
            channel, release = first or self._bridge()
            _pass(here, channel)
        release()
        with self._lock:
            self._open.discard(here)
        here.close()


def _remove_dead() -> None:
    """Remove the folders of killed processes of this user; the folder's name has the process id."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        with suppress(OSError, ValueError):
            if folder.stat().st_uid == os.getuid():
                try:
                    os.kill(int(folder.name.split("-")[2]), 0)
                except ProcessLookupError:
                    shutil.rmtree(folder, ignore_errors=True)


def _pass(here: socket.socket, channel: Any) -> None:
    """Copy bytes in both directions, each until its end; a client that disconnects ends both."""
    poll = select.poll()
    poll.register(here, select.POLLIN)
    poll.register(channel.fileno(), select.POLLIN)
    while True:
        for fd, event in poll.poll():
            if fd != here.fileno():
                if not _receive(channel, here):
                    return
            elif data := here.recv(_CHUNK):
                channel.sendall(data)
            elif event & select.POLLHUP:
                return
            else:
                channel.shutdown_write()
                # Only POLLHUP is needed from now on, which poll() always reports.
                poll.modify(here, 0)


def _receive(channel: Any, here: socket.socket) -> bool:
    """Pass on the data that arrived; return False at the end."""
    while channel.recv_ready():
        here.sendall(channel.recv(_CHUNK))
    while channel.recv_stderr_ready():
        channel.recv_stderr(_CHUNK)
    return not (channel.eof_received or channel.closed) or bool(channel.recv_ready())
