"""The agent's line to its controller: JSON lines, numbered and kept until the controller has confirmed them.

A lost connection can be replaced by another one, on which everything goes on that had not been confirmed.
Nothing here ever blocks, whether the controller reads or not.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping, Sequence

Message = Mapping[str, Any]

_AT_ONCE = 1 << 16
_LONGEST_LINE = 1 << 26  # what is longer is no order of ours
_MOST_KEPT = 1 << 26
_FAREWELL_S = 5.0  # for a controller that reads slowly


class Connection:
    """JSON lines over two descriptors, or over one socket."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.ended = False  # no more will come; who hung up may still listen
        self.heard = time.monotonic()
        self.incoming = incoming
        self.outgoing = outgoing
        self._unread = b""
        self._unsent: deque[bytes | memoryview] = deque()
        self._inbox: deque[Message] = deque()
        self._heard_there = True
        os.set_blocking(outgoing, False)

    @property
    def busy(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def send(self, *lines: bytes) -> None:
        if self._heard_there:
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
        except OSError:  # nobody holds the other end; what it said before is still to be read
            self._heard_there = False
            self._unsent.clear()

    def read(self) -> None:
        """Take in what has arrived."""
        try:
            piece = os.read(self.incoming, _AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self.ended = self.ended or not piece
        self.heard = time.monotonic()
        lines = (self._unread + piece).split(b"\n")
        self._unread = lines.pop()
        if len(self._unread) > _LONGEST_LINE:
            self.ended = True
        self._inbox.extend(_message(line) for line in lines if line.strip())

    def messages(self) -> Sequence[Message]:
        taken = list(self._inbox)
        self._inbox.clear()
        return taken

    def close(self) -> None:
        self.ended, self._heard_there = True, False
        self._unsent.clear()
        for handle in {self.incoming, self.outgoing}:
            with suppress(OSError):
                os.close(handle)


def dial(path: str) -> Connection:
    """A connection to a socket; OSError where nobody listens yet."""
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        caller.connect(path)
    except OSError:
        caller.close()
        raise
    handle = caller.detach()
    return Connection(handle, handle)


class Listener:
    """A socket of this name in the current folder, for this user alone: the path to it may be too long for one."""

    ended = busy = False

    def __init__(self, name: str) -> None:
        self.arrived: list[Connection] = []
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
                self.arrived.append(Connection(handle, handle))

    def flush(self) -> None:
        """Nothing is said here."""

    def close(self) -> None:
        self._socket.close()


class ControllerLink:
    """The controller, over whichever connection it has now."""

    def __init__(self, connection: Connection | None = None) -> None:
        self.told_to_end = False
        self.silence_s: float | None = None  # after so long without a word the controller is taken for gone
        self.others: list[Connection | Listener] = []  # waited for, too; their words are somebody else's
        self._connection = connection
        self._born = time.monotonic()
        self._callers: list[Connection] = []
        self._door: Listener | None = None
        self._orders: deque[Message] = deque()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._said = 0
        self._wake = self._wake_on_signals()

    def listen(self, name: str) -> None:
        """Let a controller attach, now or later."""
        self._door = Listener(name)

    # -- hearing -------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Until something happens, a word, a signal, the end of a child, or for so long."""
        sources = {each.incoming: each for each in self._all() if not each.ended}
        wanted = dict.fromkeys([self._wake, *sources], select.POLLIN)
        for each in self._all():
            if each.busy:
                wanted[each.outgoing] = wanted.get(each.outgoing, 0) | select.POLLOUT
        poll = select.poll()
        for handle, what in wanted.items():
            poll.register(handle, what)
        for handle, happened in poll.poll(seconds * 1000):
            if handle == self._wake:
                _drain(handle)
            elif handle in sources and happened & ~select.POLLOUT:
                sources[handle].read()
        self._settle()

    def messages(self) -> Sequence[Message]:
        """The controller's orders that have come."""
        taken = list(self._orders)
        self._orders.clear()
        return taken

    def gone_s(self) -> float | None:
        """For how long the controller has been gone; None while it is there."""
        if self._connection is None:
            return time.monotonic() - self._born
        silent_s = time.monotonic() - self._connection.heard
        if self._connection.ended:
            return silent_s
        return silent_s - self.silence_s if self.silence_s is not None and silent_s > self.silence_s else None

    def _all(self) -> Sequence[Connection | Listener]:
        mine = [each for each in (self._connection, self._door) if each is not None]
        return [*mine, *self._callers, *self.others]

    def _settle(self) -> None:
        for each in self._all():
            each.flush()
        if self._connection is not None:
            self._orders.extend(self._connection.messages())
        if self._door is not None:
            self._callers += self._door.arrived
            self._door.arrived.clear()
        for caller in list(self._callers):
            self._hear(caller)

    def _hear(self, caller: Connection) -> None:
        """A caller that wants to attach takes the place of the connection before; another is sent away."""
        words = caller.messages()
        if not words and not caller.ended:
            return
        self._callers.remove(caller)
        after = words[0].get("after", 0) if words and words[0].get("op") == "attach" else None
        if not isinstance(after, int):
            caller.send(_line(error("the first line here must be {'op': 'attach', 'after': the last seq that came}")))
            caller.close()
            return
        self._hang_up()
        self._connection = caller
        self._orders.extend(words[1:])
        self.forget(after)
        caller.send(_line({"type": "attached", "pid": os.getpid()}), *(line for _, line in self._kept))

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- saying --------------------------------------------------------------------------------------------

    def tell(self, message: Message, expendable: bool = False) -> None:
        """Say it, number it and keep it; what is expendable is dropped when too much is kept: the logs have it."""
        if expendable and self._kept_bytes > _MOST_KEPT:
            return
        self._said += 1
        line = _line({**message, "seq": self._said})
        self._kept.append((self._said, line))
        self._kept_bytes += len(line)
        if self._connection is not None:
            self._connection.send(line)

    def answer(self, message: Message) -> None:
        """Say it to the one who asked; it is not kept."""
        if self._connection is not None:
            self._connection.send(_line(message))

    def forget(self, seq: int) -> None:
        """What the controller has need not be kept."""
        while self._kept and self._kept[0][0] <= seq:
            self._kept_bytes -= len(self._kept.popleft()[1])

    def close(self) -> None:
        """Send what is left, as long as somebody reads it."""
        deadline = time.monotonic() + _FAREWELL_S
        while self._connection is not None and self._connection.busy and time.monotonic() < deadline:
            self.wait(0.1)
        self._hang_up()
        if self._door is not None:
            self._door.close()

    def _wake_on_signals(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, lambda *_: setattr(self, "told_to_end", True))
        # Ctrl-C and a closed terminal or connection are the controller's to judge.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGHUP, lambda *_: None)
        return reader


def error(sentence: str) -> Message:
    """The answer to an order that cannot be followed."""
    return {"type": "error", "sentence": sentence}


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _message(line: bytes) -> Message:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        body = None
    return body if isinstance(body, dict) else {"op": None, "line": line[:200].decode("utf-8", "replace")}


def _drain(handle: int) -> None:
    with suppress(BlockingIOError):
        while os.read(handle, 4096):
            pass
