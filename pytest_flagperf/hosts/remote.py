"""A host at the other end of a connection that runs many programs at once.

The command line of a session is constant: it starts the host's Python with the text of shim.py, which reads the
request from the session's input. So arguments and environment need no quoting, a program's end by a signal differs
from the loss of the connection, and the shim ends a program whose controller disconnects.
"""

from __future__ import annotations

import json
import logging
import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress

from . import Completed, HostError, Message
from .replies import LineChannel, check_length
from .session import BOOT, END_S, TICK_S, Connection, Session, Stream
from .tunnel import Tunnel

_log = logging.getLogger("flagperf.hosts")
_START_S = 60.0
_LOOK_S = 2.0  # seconds between two looks at a channel from which nothing arrives: another thread may close it
_STDERR_BYTES = 8192


class RemoteHost(ABC):
    """A machine at the other end of a permanent connection, which is opened when it is first needed."""

    is_local = False

    def __init__(self, name: str, address: str, python: str) -> None:
        self.name = name
        self.address = address
        self.python = python
        self._command = f"exec {shlex.quote(python)} -I -S -c {shlex.quote(BOOT)} pytest-flagperf"
        self._lock = threading.RLock()
        self._link: Connection | None = None
        self._closed = False
        self._tunnels: dict[str, Tunnel] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @abstractmethod
    def _open_link(self) -> Connection:
        """Return a new connection to the host; HostLost with the reason if that fails."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        deadline = time.monotonic() + timeout_s
        request = {"op": "run", "argv": list(argv), "env": dict(env or {}), "stdin": len(stdin)}
        with closing(self._session(request, deadline)) as session:
            if not session.finish(stdin, deadline):
                session.abandon()
                raise HostError(f"{self.name}: {argv[0]} did not end within {timeout_s:g} s")
            last = session.last_reply(f"cannot start {argv[0]}")
        return Completed(tuple(argv), int(last["code"]), bytes(session.out), session.error_output())

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> RemoteChannel:
        deadline = time.monotonic() + _START_S
        request = {"op": "start", "python": self.python, "argv": list(argv), "env": dict(env or {})}
        session = self._session(request, deadline)
        try:
            answer = session.answer(deadline, f"cannot start {argv[0]}")
        except BaseException:
            session.close()
            raise
        return RemoteChannel(self, session, answer["pid"])

    def forward(self, path: str) -> str:
        with self._lock:
            if path not in self._tunnels:
                self._tunnels[path] = Tunnel(lambda: self._bridge(path), f"{self.name}:{path}")
            return self._tunnels[path].path

    def reconnect(self) -> None:
        with self._lock:
            self._drop()
            self._connect()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            tunnels, self._tunnels = self._tunnels, {}
        for tunnel in tunnels.values():
            tunnel.close()
        with self._lock:
            self._drop()

    def kill(self, pid: int) -> None:
        """End a program that this host started, and its process group."""
        self.run(["sh", "-c", "kill -9 -$0", str(pid)], timeout_s=_START_S)

    def _bridge(self, path: str) -> tuple[Stream, Callable[[], None]]:
        """Return a channel to a Unix socket on the host, and the function that closes it."""
        deadline = time.monotonic() + _START_S
        session = self._session({"op": "bridge", "path": path}, deadline)
        try:
            session.answer(deadline, f"cannot reach the socket {path}")
        except BaseException:
            session.close()
            raise
        return session.channel, session.close

    def _session(self, request: Message, deadline: float) -> Session:
        with self._lock:
            link = self._connect()
        what = request.get("path") or request["argv"][0]
        _log.debug("%s: %s %s", self.name, request["op"], what)
        return Session(self.name, self.python, link, self._command, request, deadline)

    def _connect(self) -> Connection:
        if self._closed:
            raise HostError(f"{self.name}: the connection was closed")
        if self._link is None:
            self._link = self._open_link()
            _log.info("%s: connected to %s", self.name, self.address)
        return self._link

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class RemoteChannel(LineChannel):
    """A connection over a session."""

    def __init__(self, host: RemoteHost, session: Session, pid: int) -> None:
        super().__init__(host.name)
        self.pid = pid
        self._host = host
        self._session = session
        self._writing = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._ended = False
        self._closed = False

    def send(self, message: Message) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._writing:
                while data:
                    sent = self._session.channel.send(data)
                    if not sent:  # paramiko's sendall() would try again, without a pause, until the program ends
                        raise EOFError("it was closed")
                    data = data[sent:]
        except self._session.errors as error:
            if not self._closed:
                self._session.check()
            raise HostError(f"{self._host.name}: the program no longer reads its input: {error}") from error

    def fileno(self) -> int:
        return self._session.channel.fileno()

    @property
    def needs_looks(self) -> bool:
        return self._session.channel.eof_received or self._session.channel.closed

    def close(self, timeout_s: float = 5.0) -> int | None:
        self._closed = True
        with suppress(OSError, EOFError):
            self._session.channel.shutdown_write()
        with suppress(HostError):
            with self._reading:
                ended = self._wait(timeout_s)
            if not ended:
                self._host.kill(self.pid)
                with self._reading:
                    self._wait(END_S)
        code = self._session.channel.exit_status
        self._session.close()
        return code if code >= 0 else None

    def error_output(self) -> str:
        return self._session.error_output()[-_STDERR_BYTES:].strip()

    def _wait(self, timeout_s: float) -> bool:
        """Return True if the program ends within the time; its output is discarded."""
        deadline = time.monotonic() + timeout_s
        while not (self._ended or self._session.channel.status_event.is_set()):
            if time.monotonic() >= deadline:
                return False
            self._read(min(TICK_S, max(0.01, deadline - time.monotonic())))
        self._read(0)  # the program's last output arrived before its exit code, and may not be read yet
        return True

    def _line(self, deadline: float) -> bytes | None:
        while not self._lines:
            if self._ended or self._closed:
                self._session.check()
                return None
            left = deadline - time.monotonic()
            # The first lines may have arrived with the reply of the shim.
            self._read(0.0 if self._session.out else max(0.0, min(_LOOK_S, left)))
            if left <= 0 and not (self._lines or self._ended):
                raise TimeoutError(f"{self._host.name}: no message in time")
        return self._lines.popleft()

    def _read(self, timeout_s: float) -> None:
        session = self._session
        self._ended = not session.listen(timeout_s)
        del session.err[:-_STDERR_BYTES]
        if session.out:
            *lines, rest = (bytes(self._rest + session.out) if b"\n" in session.out else b"").split(b"\n")
            if lines:
                self._lines.extend(lines)
                self._rest[:] = rest
            else:
                self._rest += session.out
            session.out.clear()
            check_length(self._host.name, len(self._rest))
