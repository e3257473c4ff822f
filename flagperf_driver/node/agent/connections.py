"""Connections between the agent and its controller: JSON lines, and the file of those that count.

After a connection is lost the controller can attach again, and reads on in the file, also in that of a killed agent.
Nothing here blocks, even if the controller does not read.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Callable, Mapping, Sequence

from flagperf_driver.node.folder import EVENTS

Message = Mapping[str, Any]

_READ_BYTES = 1 << 16
_LONGEST_LINE = 1 << 26  # no order is longer
_PIECE = 1 << 20
_CLOSE_S = 5.0  # maximum wait for a slow controller to read the last messages


class MessageConnection:
    """JSON lines over two file descriptors, or over one socket."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.ended = False  # no more input; the other end may still read
        self.last_read = time.monotonic()
        self.incoming = incoming
        self.outgoing = outgoing
        self._unread = b""
        self._unsent: deque[bytes | memoryview] = deque()
        self._inbox: deque[Message] = deque()
        self._writable = True
        os.set_blocking(outgoing, False)

    @property
    def busy(self) -> bool:
        """Whether lines are waiting to be sent."""
        return bool(self._unsent)

    def send(self, *lines: bytes) -> None:
        if self._writable:
            self._unsent.extend(lines)
            self.flush()

    def flush(self) -> None:
        try:
            while self._unsent:
                line = self._unsent[0]
                written = os.write(self.outgoing, line)
                if written < len(line):
                    self._unsent[0] = memoryview(line)[written:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the other end is closed; lines that it sent before can still be read
            self._writable = False
            self._unsent.clear()

    def read(self) -> None:
        """Read the lines that have arrived."""
        try:
            data = os.read(self.incoming, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.ended = self.ended or not data
        self.last_read = time.monotonic()
        lines = (self._unread + data).split(b"\n")
        self._unread = lines.pop()
        if len(self._unread) > _LONGEST_LINE:
            self.ended = True
        self._inbox.extend(_message(line) for line in lines if line.strip())

    def messages(self) -> Sequence[Message]:
        taken = list(self._inbox)
        self._inbox.clear()
        return taken

    def close(self) -> None:
        self.ended, self._writable = True, False
        self._unsent.clear()
        for handle in {self.incoming, self.outgoing}:
            with suppress(OSError):
                os.close(handle)


class SocketListener:
    """A Unix socket in the current folder that only this user can connect to.

    Its name is relative because an absolute path may be too long for a socket.
    """

    ended = busy = False

    def __init__(self, name: str) -> None:
        self.accepted: list[MessageConnection] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self.incoming = self.outgoing = self._socket.fileno()
        with suppress(FileNotFoundError):
            Path(name).unlink()
        before = os.umask(0o177)
        try:
            self._socket.bind(name)
        finally:
            os.umask(before)
        self._socket.listen(8)

    def read(self) -> None:
        with suppress(OSError):
            while True:
                handle = self._socket.accept()[0].detach()
                self.accepted.append(MessageConnection(handle, handle))

    def flush(self) -> None:
        """Do nothing: a listener sends no lines."""

    def close(self) -> None:
        self._socket.close()


class ControllerLink:
    """The connection to the controller, which the controller may replace by a new one."""

    def __init__(self, connection: MessageConnection | None = None) -> None:
        self.got_signal = False  # SIGTERM or SIGQUIT
        self._has_started: Callable[[], bool] = lambda: False  # whether the order to start the ranks has come
        self._connection = connection
        self._created = time.monotonic()
        self._callers: list[MessageConnection] = []
        self._listener: SocketListener | None = None
        self._orders: deque[Message] = deque()
        self._last_seq = 0
        self._events: BinaryIO | None = None
        self._unsent: BinaryIO | None = None  # the same file, read to what was sent
        wake = self._wake_on_signals()
        self._watched: dict[int, Callable[[], None]] = {wake: lambda: _empty(wake)}

    def listen(self, name: str, has_started: Callable[[], bool]) -> None:
        """Let a controller attach, now or later, and keep what it must not miss."""
        self._listener, self._has_started = SocketListener(name), has_started
        self._events, self._unsent = open(EVENTS, "wb", buffering=0), open(EVENTS, "rb")  # noqa: SIM115, PTH123

    # -- receiving -----------------------------------------------------------------------------------------

    def watch(self, handle: int, read: Callable[[], None]) -> None:
        """Let input of a further descriptor end a wait; ``read`` reads it."""
        self._watched[handle] = read

    def wait(self, seconds: float) -> None:
        """Wait for a line, a signal, the end of a child or watched input, at most for the given time."""
        sources = {source.incoming: source for source in self._all() if not source.ended}
        events = dict.fromkeys([*self._watched, *sources], select.POLLIN)
        for source in self._all():
            if source.busy:
                events[source.outgoing] = events.get(source.outgoing, 0) | select.POLLOUT
        poll = select.poll()
        for handle, mask in events.items():
            poll.register(handle, mask)
        for handle, happened in poll.poll(seconds * 1000):
            if handle in self._watched:
                self._watched[handle]()
            elif handle in sources and happened & ~select.POLLOUT:
                sources[handle].read()
        self._process_input()

    def messages(self) -> Sequence[Message]:
        """Return the orders that have arrived from the controller."""
        taken = list(self._orders)
        self._orders.clear()
        return taken

    def gone_s(self) -> float | None:
        """Return for how long the controller has been unreachable, or None while it is connected."""
        if self._connection is not None and not self._connection.ended:
            return None
        return time.monotonic() - (self._created if self._connection is None else self._connection.last_read)

    def _all(self) -> Sequence[MessageConnection | SocketListener]:
        own = [source for source in (self._connection, self._listener) if source is not None]
        return [*own, *self._callers]

    def _process_input(self) -> None:
        for source in self._all():
            source.flush()
        self._send_kept()
        if self._connection is not None:
            self._orders.extend(self._connection.messages())
        if self._listener is not None:
            self._callers += self._listener.accepted
            self._listener.accepted.clear()
        for caller in list(self._callers):
            self._answer_caller(caller)

    def _answer_caller(self, caller: MessageConnection) -> None:
        """Replace the connection by that of a caller whose first message is 'attach'; refuse other callers."""
        messages = caller.messages()
        if not messages and not caller.ended:
            return
        self._callers.remove(caller)
        after = messages[0].get("after", 0) if messages and messages[0].get("op") == "attach" else None
        if not isinstance(after, int):
            problem = "the first line must be {'op': 'attach', 'after': the last seq that was received}"
            caller.send(_line(error_message(problem)))
            caller.close()
            return
        self._disconnect()
        self._connection = caller
        self._orders.extend(messages[1:])
        caller.send(_line({"type": "attached", "pid": os.getpid(), "started": self._has_started()}))
        if self._unsent is not None:
            self._unsent.seek(0)
            for _ in zip(range(after), self._unsent):
                pass
        self._send_kept()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- sending -------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Number, keep and send a message."""
        assert self._events is not None, "a round has begun to listen"
        end = self._events.tell()
        line = _line({**message, "seq": self._last_seq + 1})
        try:
            if self._events.write(line) < len(line):
                raise OSError(errno.ENOSPC, "the disk is full")
        except OSError:  # it is sent, but not kept
            self._events.truncate(end)
            self._events.seek(end)
            self.reply(message)
            return
        self._last_seq += 1
        self._send_kept()

    @property
    def _behind(self) -> int:
        """The number of bytes in the file that are not sent yet."""
        return 0 if self._events is None or self._unsent is None else self._events.tell() - self._unsent.tell()

    def _send_kept(self) -> None:
        """Send on in the file, as long as the controller reads."""
        while self._connection is not None and self._unsent is not None and self._behind and not self._connection.busy:
            self._connection.send(*self._unsent.readlines(_PIECE))

    def reply(self, message: Message) -> None:
        """Send a reply to an order, or what soon loses its value; it is not kept."""
        if self._connection is not None:
            self._connection.send(_line(message))

    def close(self) -> None:
        """Send the remaining messages, as long as the controller reads them, and close the connection."""
        deadline = time.monotonic() + _CLOSE_S
        while self._connection is not None and (self._connection.busy or self._behind) and time.monotonic() < deadline:
            self.wait(0.1)
        self._disconnect()
        for each in (self._listener, self._events, self._unsent):
            if each is not None:
                each.close()

    def _wake_on_signals(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, lambda *_: setattr(self, "got_signal", True))
        # The controller decides what Ctrl-C and a closed terminal or connection mean.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGHUP, lambda *_: None)
        return reader


def error_message(sentence: str) -> Message:
    """Return the reply to an order that cannot be followed."""
    return {"type": "error", "sentence": sentence}


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _message(line: bytes) -> Message:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        body = None
    return body if isinstance(body, dict) else {"op": None, "line": line[:200].decode("utf-8", "replace")}


def _empty(handle: int) -> None:
    with suppress(BlockingIOError):
        while os.read(handle, 4096):
            pass
