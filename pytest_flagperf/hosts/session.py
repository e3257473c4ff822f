"""One start of the shim over a connection: the request, and the replies of the shim and of its program."""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import paramiko

from . import HostError, InvalidReply, Message
from .link import Link
from .replies import COUNT, TEXT, WHOLE, Shape, check, parse_object

_SHIM = Path(__file__).with_name("ssh_shim.py").read_bytes()
_MARK = b"\0\1flagperf\1\0"  # shim.MARK
TICK_S = 0.5
_FEED_S = 0.005  # how soon it is seen that the far side takes more
_CHUNK = 1 << 15
END_S = 5.0
_KEPT_BYTES = 1 << 20  # of what a program prints on stderr, the last
_MOST_OUTPUT = 1 << 28  # bytes that a program may print
_NOISE_BYTES = 1 << 20  # at most, that a login shell prints
_PIECES = 64  # that are read before somebody looks at the time
# The first word of the shim for each operation, and its last word: ssh_shim.py.
_FIRST_WORDS: Mapping[str, Mapping[str, Shape]] = {
    "start": {"pid": COUNT},
    "get": {"size": COUNT, "mode": COUNT, "mtime_ns": WHOLE},
}
_LAST_WORD: Mapping[str, Shape] = {"old?": TEXT, "error?": TEXT}


class Session:
    """One start of the shim: what it is fed, and what it and its program say on both lines."""

    def __init__(self, name: str, python: str, link: Link, command: str, request: Message, deadline: float) -> None:
        self._name = name
        self._python = python
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
            raise HostError(f"{name}: sshd cannot start a command: {error}") from error
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
        deadline = time.monotonic() + END_S
        while self.listen(min(TICK_S, max(0.0, deadline - time.monotonic()))) and time.monotonic() < deadline:
            self.out.clear()

    def answer(self, deadline: float, what: str) -> Message:
        """The shim's first word; HostError if it is that nothing will come of it."""
        while self.first is None and self.listen(TICK_S):
            if time.monotonic() > deadline:
                raise HostError(f"{self._name}: {what}: {self._python} did not answer in time")
        if self.first is None:
            self.last_word(what)
            raise HostError(f"{self._name}: {what}")
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
            if not self.listen(_FEED_S if data else min(TICK_S, max(0.0, deadline() - time.monotonic()))):
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
            word = parse_object(self._name, line, _LAST_WORD, "the last word of the session")
            if "old" in word:
                raise HostError(f"{self._name}: {self._python} is Python {word['old']}; {_WANTED}")
            if "error" in word:
                raise HostError(f"{self._name}: {what}: {word['error']}")
            check(self._name, word, {"code": WHOLE}, "the last word of the session")
            return word
        if self.channel.exit_status < 0:
            self._link.check()
            raise HostError(f"{self._name}: {what}: killed by a signal")
        said = self.complaint().splitlines()[-1:] or ["no output"]
        if self.first is None:
            why = "program not found" if self.channel.exit_status == 127 else "it cannot be started"
            raise HostError(f"{self._name}: {self._python}: {why} ({said[0]}); {_WANTED}")
        raise HostError(f"{self._name}: {what}: exit code {self.channel.exit_status}: {said[0]}")

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
            self.first = parse_object(self._name, line, shape, "the first word of the session")
            self.out.clear()
            self._keep(behind)
        elif len(self.out) > _NOISE_BYTES:
            raise InvalidReply(self._name, f"{_NOISE_BYTES} bytes before the first word; expected that word")

    def _keep(self, data: bytes) -> None:
        if self.into is not None:
            size = int((self.first or {}).get("size", 0))
            if self.into.tell() + len(data) > size:
                raise InvalidReply(self._name, f"more than the {size} bytes of the file; expected no more")
            self.into.write(data)
        else:
            self.out += data
            if len(self.out) > _MOST_OUTPUT:
                raise InvalidReply(
                    self._name, f"more than {_MOST_OUTPUT >> 20} MiB of output; expected no more than that"
                )


_WANTED = "Python >= 3.8 is required on each host: install it, or set its path with python = ... in [cluster]"
