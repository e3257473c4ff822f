"""A local Unix socket that leads to a socket on a host; each connection has a channel of its own."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from . import HostError
from .stream import HostProgram

_CHUNK = 1 << 16
_WAIT_S = 60.0
_PREFIX = "flagperf-tunnel-"


class Tunnel:
    """A local socket, open as long as its host and only accessible to this user."""

    def __init__(self, connect: Callable[[], HostProgram], name: str) -> None:
        connect().close()  # a missing socket is reported at once
        self._connect = connect
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
        with suppress(HostError, OSError), closing(self._connect()) as there:
            _pass(here, there)
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


def _pass(here: socket.socket, there: HostProgram) -> None:
    """Copy bytes in both directions, each until its end."""
    back = threading.Thread(target=_return, args=(here, there), name="tunnel back", daemon=True)
    back.start()
    with suppress(OSError):
        while data := here.recv(_CHUNK):
            there.write(data)
    there.end_input()
    back.join()


def _return(here: socket.socket, there: HostProgram) -> None:
    with suppress(OSError):
        while True:
            ended = there.has_no_more_output()  # read before the output that arrived until then
            here.sendall(there.take_output())
            if ended:
                here.shutdown(socket.SHUT_RDWR)
                return
            there.wait(_WAIT_S, there.has_no_more_output)
