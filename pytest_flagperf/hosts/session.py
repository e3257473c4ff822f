"""A session that runs shim.py on another host: one request, and the output of the shim and its program."""

from __future__ import annotations

import io
import json
import select
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from . import HostError, InvalidReply, Message
from .replies import COUNT, TEXT, WHOLE, Shape, check, parse_object

_SHIM = Path(__file__).with_name("shim.py").read_bytes()
BOOT = 'import sys; stdin=open(0,"rb",closefd=False); exec(stdin.read(int(stdin.readline())))'
"""Python code that runs the text in front of its input: the length of the text, a line feed, the text."""
MARKER = b"\0\1flagperf\1\0"  # MARKER of shim.py
TICK_S = 0.5
_FEED_S = 0.005  # poll interval while the host accepts no more data
_CHUNK = 1 << 15
END_S = 5.0
_KEPT_BYTES = 1 << 20  # bytes of stderr that are kept, the last ones
_MOST_OUTPUT = 1 << 28  # bytes of a program's output, at most
_NOISE_BYTES = 1 << 20  # bytes of a login shell's output, at most
_PIECES = 64  # pieces that are read before the deadline is checked
# The shim's first reply for each operation, and its last reply.
_FIRST_REPLIES: Mapping[str, Shape] = {
    "start": {"pid": COUNT},
}
_LAST_REPLY: Shape = {"old?": TEXT, "error?": TEXT}
_END: Shape = {"code": WHOLE}


def is_ready(fd: int, timeout_s: float, *, to_write: bool = False) -> bool:
    """Wait until a descriptor can be read or written; False after the time.

    select() fails for descriptors above 1023, whatever the limit.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT if to_write else select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class Stream(Protocol):
    """The input and output of a program at the other end of a connection; has the methods of paramiko's channels."""

    @property
    def closed(self) -> bool: ...

    @property
    def eof_received(self) -> bool: ...

    @property
    def exit_status(self) -> int:
        """The program's exit code; -1 before its end, after the loss of the connection and for a signal."""

    @property
    def status_event(self) -> threading.Event:
        """Set when the program has ended or the connection is lost."""

    def fileno(self) -> int:
        """A descriptor that is readable when output has arrived."""

    def send_ready(self) -> bool: ...

    def send(self, data: bytes, /) -> int: ...

    def sendall(self, data: bytes, /) -> None: ...

    def shutdown_write(self) -> None: ...

    def recv_ready(self) -> bool: ...

    def recv(self, size: int, /) -> bytes: ...

    def recv_stderr_ready(self) -> bool: ...

    def recv_stderr(self, size: int, /) -> bytes: ...


class Connection(Protocol):
    """An open connection to a host, over which several programs can run at once; a lost connection is not reopened."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The errors of its streams, beside OSError and EOFError."""

    def start(self, command: str, deadline: float) -> Stream:
        """Start a command; wait if too many run."""

    def release(self, stream: Stream) -> None:
        """Close a stream."""

    def check(self) -> None:
        """Raise HostLost unless the other end answers."""

    def close(self) -> None: ...


class Session:
    """One run of the shim: the data sent to it, and the output of the shim and its program."""

    def __init__(
        self, name: str, python: str, link: Connection, command: str, request: Message, deadline: float
    ) -> None:
        self._name = name
        self._python = python
        self.first: Message | None = None
        self.out = bytearray()
        self.err = bytearray()
        self.errors: tuple[type[Exception], ...] = (OSError, EOFError, *link.errors)
        self._link = link
        self._op = str(request["op"])
        self._closed = False
        self._closing = threading.Lock()
        text = json.dumps(request).encode()
        frame = b"%d\n%s%d\n%s" % (len(_SHIM), _SHIM, len(text), text)
        self.channel = link.start(command, deadline)
        self._poll = select.poll()
        self._poll.register(self.channel.fileno(), select.POLLIN)
        try:
            self.channel.sendall(frame)
        except (OSError, EOFError):
            # The program has ended, for example because Python is missing; its last reply has the reason.
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
        """Close the input and wait briefly for the reply that the program has ended."""
        with suppress(OSError, EOFError):
            self.channel.shutdown_write()
        deadline = time.monotonic() + END_S
        while self.listen(min(TICK_S, max(0.0, deadline - time.monotonic()))) and time.monotonic() < deadline:
            self.out.clear()

    def answer(self, deadline: float, action: str) -> Message:
        """Return the shim's first reply; HostError if it reports a failure."""
        while self.first is None and self.listen(TICK_S):
            if time.monotonic() > deadline:
                raise HostError(f"{self._name}: {action}: {self._python} did not answer in time")
        if self.first is None:
            self.last_reply(action)
            raise HostError(f"{self._name}: {action}")
        return self.first

    def finish(self, stdin: bytes, deadline: float) -> bool:
        """Send the input and read the output to its end; return False after the deadline."""
        feed = io.BytesIO(stdin)
        data = feed.read(_CHUNK)
        while True:
            try:
                while data and self.channel.send_ready():
                    data = data[self.channel.send(data) :] or feed.read(_CHUNK)
                    if self.channel.recv_ready():
                        break
            except (OSError, EOFError):
                data = b""  # the program has ended or the connection is lost; the next output shows which
            if not self.listen(_FEED_S if data else min(TICK_S, max(0.0, deadline - time.monotonic()))):
                return True
            if time.monotonic() >= deadline:
                return False

    def listen(self, timeout_s: float) -> bool:
        """Read the output that arrives within the time; return False at its end."""
        if timeout_s > 0:
            self._poll.poll(timeout_s * 1000)
        over = self.channel.eof_received or self.channel.closed  # read before the data that arrived until then
        received = False
        for _ in range(_PIECES):
            if self.channel.recv_ready():
                self._take(self.channel.recv(1 << 18))
            elif self.channel.recv_stderr_ready():
                self.err += self.channel.recv_stderr(1 << 18)
                del self.err[:-_KEPT_BYTES]
            else:
                break
            received = True
        if received or not over:
            return True
        # After the end poll() always returns at once: wait for the exit status.
        return not self.channel.status_event.wait(timeout_s)

    def last_reply(self, action: str) -> Message:
        """Return the shim's last reply; HostError if the operation failed, HostLost if no reply came."""
        before, marker, after = bytes(self.err).rpartition(MARKER)
        if marker:
            line, _, behind = after.partition(b"\n")
            self.err[:] = before + behind
            reply = parse_object(self._name, line, _LAST_REPLY, "the last reply of the session")
            if "old" in reply:
                raise HostError(f"{self._name}: {self._python} is Python {reply['old']}; {_PYTHON_REQUIRED}")
            if "error" in reply:
                raise HostError(f"{self._name}: {action}: {reply['error']}")
            check(self._name, reply, _END, "the last reply of the session")
            return reply
        if self.channel.exit_status < 0:
            self._link.check()
            raise HostError(f"{self._name}: {action}: killed by a signal")
        last = self.error_output().splitlines()[-1:] or ["no output"]
        if self.first is None:
            why = "program not found" if self.channel.exit_status == 127 else "it cannot be started"
            raise HostError(f"{self._name}: {self._python}: {why} ({last[0]}); {_PYTHON_REQUIRED}")
        raise HostError(f"{self._name}: {action}: exit code {self.channel.exit_status}: {last[0]}")

    def check(self) -> None:
        """Raise HostLost if the connection ended before the program."""
        if self.channel.exit_status < 0:
            self._link.check()

    def error_output(self) -> str:
        return bytes(self.err).decode("utf-8", "replace")

    def _take(self, data: bytes) -> None:
        if self.first is not None:
            self._keep(data)
            return
        # A login shell may print text before the reply.
        self.out += data
        _, marker, after = bytes(self.out).partition(MARKER)
        line, end, behind = after.partition(b"\n")
        if marker and end:
            shape = _FIRST_REPLIES.get(self._op, {})
            self.first = parse_object(self._name, line, shape, "the first reply of the session")
            self.out.clear()
            self._keep(behind)
        elif len(self.out) > _NOISE_BYTES:
            raise InvalidReply(self._name, f"{_NOISE_BYTES} bytes before the first reply; expected the reply")

    def _keep(self, data: bytes) -> None:
        self.out += data
        if len(self.out) > _MOST_OUTPUT:
            raise InvalidReply(self._name, f"more than {_MOST_OUTPUT >> 20} MiB of output; expected no more than that")


_PYTHON_REQUIRED = (
    "Python >= 3.8 is required on each host: install it, or set its path with python = ... in [cluster] or [slurm]"
)
