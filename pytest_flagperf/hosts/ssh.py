"""A host over SSH.

No word that is run there ever stands in a shell's command line: the command is one constant, which starts the
host's Python on the text of shim.py; what is wanted comes to it over the session's own input. So a program gets its
arguments and environment whatever they hold, its end by a signal is told apart from the loss of the connection,
and one whose controller hangs up is ended by the shim that watches it.
"""

from __future__ import annotations

import io
import json
import os
import select
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

import paramiko

from . import Completed, HostError, InvalidReply, Message
from .conf import Address, ClusterConf, parse_host
from .lines import Listening
from .link import Gateway, Link, connection
from .local import readable, whole_file
from .replies import COUNT, TEXT, WHOLE, Shape, check, check_length, parse_object
from .tunnel import Tunnel

_SHIM = Path(__file__).with_name("shim.py").read_bytes()
_BOOT = 'import sys; stdin=open(0,"rb",closefd=False); exec(stdin.read(int(stdin.readline())))'
_MARK = b"\0\1flagperf\1\0"  # shim.MARK
_TICK_S = 0.5
_FEED_S = 0.005  # how soon it is seen that the far side takes more
_CHUNK = 1 << 15
_START_S = 60.0
_END_S = 5.0
_COMPLAINT_BYTES = 8192
_KEPT_BYTES = 1 << 20  # of what a program prints on stderr, the last
_MOST_OUTPUT = 1 << 28  # bytes that a program may print
_NOISE_BYTES = 1 << 20  # at most, that a login shell prints
_PIECES = 64  # that are read before somebody looks at the time
_COPY_IDLE_S = 60.0
# The first word of the shim for each operation, and its last word: shim.py.
_FIRST_WORDS: Mapping[str, Mapping[str, Shape]] = {
    "start": {"pid": COUNT},
    "get": {"size": COUNT, "mode": COUNT, "mtime_ns": WHOLE},
}
_LAST_WORD: Mapping[str, Shape] = {"old?": TEXT, "error?": TEXT}


def ssh_hosts(conf: ClusterConf) -> tuple[SSHHost, ...]:
    """The hosts of a cluster, not connected yet; they share what leads to them."""
    gateway = None
    if conf.gateway is not None and (address := parse_host(conf.gateway)) is not None:
        gateway = Gateway(address, conf)
    return tuple(SSHHost(address, conf, gateway) for address in conf.addresses())


class SSHHost:
    """A machine at the other end of one kept connection, which is made when it is first needed."""

    here = False

    def __init__(self, address: Address, conf: ClusterConf, gateway: Gateway | None = None) -> None:
        self.name = address.name
        self.python = conf.python
        self._address = address
        self._conf = conf
        self._gateway = gateway
        self._command = f"exec {shlex.quote(conf.python)} -I -S -c {shlex.quote(_BOOT)} pytest-flagperf"
        self._lock = threading.RLock()
        self._link: Link | None = None
        self._closed = False
        self._tunnels: dict[str, Tunnel] = {}
        self.address: str = connection(address, conf).host

    def __repr__(self) -> str:
        return f"SSHHost({self.name!r})"

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
            if not session.finish(io.BytesIO(stdin), lambda: deadline):
                session.abandon()
                raise HostError(f"{self.name}: {argv[0]} did not end within {timeout_s:g} s")
            last = session.last_word(f"cannot start {argv[0]}")
        return Completed(tuple(argv), int(last["code"]), bytes(session.out), session.complaint())

    def put(self, source: Path, target: str) -> None:
        with readable(source, self.name) as file:
            stat = os.fstat(file.fileno())
            request = {"op": "put", "path": target, "stdin": stat.st_size, "mode": stat.st_mode & 0o777}
            self._copy({**request, "mtime_ns": stat.st_mtime_ns}, file, f"cannot write {target}")

    def get(self, source: str, target: Path) -> None:
        with whole_file(target, self.name) as file:
            what = f"cannot read {source}"
            answer = self._copy({"op": "get", "path": source}, io.BytesIO(), what, file)
            if file.tell() != answer["size"]:
                raise HostError(f"{self.name}: {what}: {file.tell()} of {answer['size']} bytes came")
            os.fchmod(file.fileno(), answer["mode"] & 0o777)
            file.flush()
            os.utime(file.fileno(), ns=(answer["mtime_ns"], answer["mtime_ns"]))

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> SSHChannel:
        deadline = time.monotonic() + _START_S
        request = {"op": "start", "python": self.python, "argv": list(argv), "env": dict(env or {})}
        session = self._session(request, deadline)
        try:
            answer = session.answer(deadline, f"cannot start {argv[0]}")
        except BaseException:
            session.close()
            raise
        return SSHChannel(self, session, answer["pid"])

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
            if self._gateway is not None:
                self._gateway.leave(self)

    def kill(self, pid: int) -> None:
        """End a program that was started here, and its group."""
        deadline = time.monotonic() + _START_S
        with closing(self._session({"op": "kill", "pid": pid}, deadline)) as session:
            session.finish(io.BytesIO(), lambda: deadline)
            session.last_word(f"cannot end process {pid}")

    def _copy(self, request: dict[str, Any], feed: IO[bytes], what: str, into: IO[bytes] | None = None) -> Message:
        """Copy for as long as bytes move; gives the answer that came first."""
        with closing(self._session(request, time.monotonic() + _START_S)) as session:
            session.into = into
            if not session.finish(feed, lambda: session.moved + _COPY_IDLE_S):
                raise HostError(f"{self.name}: {what}: nothing moved for {_COPY_IDLE_S:g} s")
            session.last_word(what)
            return session.first or {}

    def _bridge(self, path: str) -> tuple[paramiko.Channel, Callable[[], None]]:
        """A channel to a Unix socket there, and how it is given back."""
        deadline = time.monotonic() + _START_S
        session = self._session({"op": "bridge", "path": path}, deadline)
        try:
            session.answer(deadline, f"cannot reach the socket {path}")
        except BaseException:
            session.close()
            raise
        return session.channel, session.close

    def _session(self, request: Message, deadline: float) -> _Session:
        with self._lock:
            link = self._connect()
        return _Session(self, link, self._command, request, deadline)

    def _connect(self) -> Link:
        if self._closed:
            raise HostError(f"{self.name}: the connection was closed")
        if self._link is None:
            by = self._gateway.enter(self) if self._gateway is not None else None
            self._link = Link(self._address, self._conf, by)
        return self._link

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class _Session:
    """One start of the shim: what it is fed, and what it and its program say on both lines."""

    def __init__(self, host: SSHHost, link: Link, command: str, request: Message, deadline: float) -> None:
        self.host = host
        self.first: Message | None = None
        self.out = bytearray()
        self.err = bytearray()
        self.into: IO[bytes] | None = None
        self.moved = time.monotonic()
        self._link = link
        self._command = command
        self._op = str(request["op"])
        self._closed = False
        self._closing = threading.Lock()
        text = json.dumps(request).encode()
        frame = b"%d\n%s%d\n%s" % (len(_SHIM), _SHIM, len(text), text)
        self.channel = link.session(deadline)
        try:
            self._poll = select.poll()
            self._poll.register(self.channel.fileno(), select.POLLIN)
            self.channel.exec_command(command)
        except (OSError, EOFError, paramiko.SSHException) as error:
            self.close()
            link.check()
            raise HostError(f"{host.name}: sshd does not start a command: {error}") from error
        try:
            self.channel.sendall(frame)
        except (OSError, EOFError):
            # What does not listen has ended, as where there is no such program: its last word says why.
            self._give_up_if_lost()

    def close(self) -> None:
        with self._closing:
            if not self._closed:
                self._closed = True
                self._link.release(self.channel)

    def _give_up_if_lost(self) -> None:
        try:
            self._link.check()
        except HostError:
            self.close()
            raise

    def abandon(self) -> None:
        """Hang up, and wait a little for the word that the program is dead."""
        with suppress(OSError, EOFError):
            self.channel.shutdown_write()
        deadline = time.monotonic() + _END_S
        while self.listen(min(_TICK_S, max(0.0, deadline - time.monotonic()))) and time.monotonic() < deadline:
            self.out.clear()

    def answer(self, deadline: float, what: str) -> Message:
        """The shim's first word; HostError if it is that nothing will come of it."""
        while self.first is None and self.listen(_TICK_S):
            if time.monotonic() > deadline:
                raise HostError(f"{self.host.name}: {what}: {self.host.python} did not answer in time")
        if self.first is None:
            self.last_word(what)
            raise HostError(f"{self.host.name}: {what}")
        return self.first

    def finish(self, feed: IO[bytes], deadline: Callable[[], float]) -> bool:
        """Feed the program and hear it out; false if that is not done in time."""
        data = feed.read(_CHUNK)
        while True:
            try:
                while data and self.channel.send_ready():
                    data = data[self.channel.send(data) :] or feed.read(_CHUNK)
                    self.moved = time.monotonic()
                    if self.channel.recv_ready():
                        break
            except (OSError, EOFError):
                data = b""  # it ended without reading all, or is lost: what it says next tells
            if not self.listen(_FEED_S if data else min(_TICK_S, max(0.0, deadline() - time.monotonic()))):
                return True
            if time.monotonic() >= deadline():
                return False

    def listen(self, timeout_s: float) -> bool:
        """Take in what comes within that time; false at the end."""
        self._poll.poll(timeout_s * 1000)
        over = self.channel.eof_received or self.channel.closed  # asked before what may have come until then is taken
        heard = False
        for _ in range(_PIECES):
            if self.channel.recv_ready():
                self._take(self.channel.recv(1 << 18))
            elif self.channel.recv_stderr_ready():
                self.err += self.channel.recv_stderr(1 << 18)
                del self.err[:-_KEPT_BYTES]
            else:
                break
            heard = True
        if heard:
            self.moved = time.monotonic()
            return True
        if not over:
            return True
        # After its end the line is always ready to be read: the exit status is what is left to wait for.
        return not self.channel.status_event.wait(timeout_s)

    def last_word(self, what: str) -> Message:
        """How the shim says that it ended; HostError where something could not be done, HostLost where no word came."""
        before, mark, after = bytes(self.err).rpartition(_MARK)
        if mark:
            line, _, behind = after.partition(b"\n")
            self.err[:] = before + behind
            word = parse_object(self.host.name, line, _LAST_WORD, "the last word of the session")
            if "old" in word:
                raise HostError(f"{self.host.name}: {self.host.python} there is Python {word['old']}; {_WANTED}")
            if "error" in word:
                raise HostError(f"{self.host.name}: {what}: {word['error']}")
            check(self.host.name, word, {"code": WHOLE}, "the last word of the session")
            return word
        if self.channel.exit_status < 0:
            self._link.check()
            raise HostError(f"{self.host.name}: {what}: it was killed there by a signal")
        said = self.complaint().splitlines()[-1:] or ["it said nothing"]
        if self.first is None:
            why = "there is no such program" if self.channel.exit_status == 127 else "it did not start"
            raise HostError(f"{self.host.name}: {self.host.python}: {why} ({said[0]}); {_WANTED}")
        raise HostError(f"{self.host.name}: {what}: it ended with {self.channel.exit_status}: {said[0]}")

    def check(self) -> None:
        """HostLost if the line's end was not the program's."""
        if self.channel.exit_status < 0:
            self._link.check()

    def complaint(self) -> str:
        return bytes(self.err).decode("utf-8", "replace")

    def _take(self, data: bytes) -> None:
        if self.first is not None:
            self._keep(data)
            return
        # A login shell may have said something before.
        self.out += data
        _, mark, after = bytes(self.out).partition(_MARK)
        line, end, behind = after.partition(b"\n")
        if mark and end:
            shape = _FIRST_WORDS.get(self._op, {})
            self.first = parse_object(self.host.name, line, shape, "the first word of the session")
            self.out.clear()
            self._keep(behind)
        elif len(self.out) > _NOISE_BYTES:
            raise InvalidReply(self.host.name, f"{_NOISE_BYTES} bytes before the first word; expected that word")

    def _keep(self, data: bytes) -> None:
        if self.into is not None:
            size = int((self.first or {}).get("size", 0))
            if self.into.tell() + len(data) > size:
                raise InvalidReply(self.host.name, f"more than the {size} bytes of the file; expected no more")
            self.into.write(data)
        else:
            self.out += data
            if len(self.out) > _MOST_OUTPUT:
                raise InvalidReply(
                    self.host.name, f"more than {_MOST_OUTPUT >> 20} MiB of output; expected no more than that"
                )


_WANTED = "a Python >= 3.8 is wanted on each host: install one, or name it as `python` in [cluster]"


class SSHChannel(Listening):
    """A conversation over a session."""

    def __init__(self, host: SSHHost, session: _Session, pid: int) -> None:
        super().__init__(host.name)
        self.pid = pid
        self._host = host
        self._session = session
        self._writing = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._ended = False
        self._hung_up = False

    def send(self, message: Message) -> None:
        try:
            with self._writing:
                self._session.channel.sendall(json.dumps(message).encode() + b"\n")
        except (OSError, EOFError, paramiko.SSHException) as error:
            self._session.check()
            raise HostError(f"{self._host.name}: the program there does not listen any more: {error}") from error

    def close(self, timeout_s: float = 5.0) -> int | None:
        self._hung_up = True
        with suppress(OSError, EOFError):
            self._session.channel.shutdown_write()
        with suppress(HostError):
            with self._reading:
                ended = self._wait(timeout_s)
            if not ended:
                self._host.kill(self.pid)
                with self._reading:
                    self._wait(_END_S)
        code = self._session.channel.exit_status
        self._session.close()
        return code if code >= 0 else None

    def complaint(self) -> str:
        return self._session.complaint()[-_COMPLAINT_BYTES:].strip()

    def _wait(self, timeout_s: float) -> bool:
        """Whether the program ends within that time; what it says meanwhile nobody wants."""
        deadline = time.monotonic() + timeout_s
        while not (self._ended or self._session.channel.status_event.is_set()):
            if time.monotonic() >= deadline:
                return False
            self._hear(min(_TICK_S, max(0.01, deadline - time.monotonic())))
        return True

    def _line(self, deadline: float) -> bytes | None:
        while not self._lines:
            if self._ended or self._hung_up:
                self._session.check()
                return None
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self._host.name}: no message in time")
            self._hear(min(_TICK_S, left))
        return self._lines.popleft()

    def _hear(self, timeout_s: float) -> None:
        session = self._session
        self._ended = not session.listen(timeout_s)
        del session.err[:-_COMPLAINT_BYTES]
        if session.out:
            *lines, rest = (bytes(self._rest + session.out) if b"\n" in session.out else b"").split(b"\n")
            if lines:
                self._lines.extend(lines)
                self._rest[:] = rest
            else:
                self._rest += session.out
            session.out.clear()
            check_length(self._host.name, len(self._rest))
