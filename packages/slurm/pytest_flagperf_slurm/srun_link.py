"""A connection to a node of a job: srun with relay.py, which starts many programs and passes their input and output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

from pytest_flagperf.hosts import HostError, HostLost, InvalidReply, silence
from pytest_flagperf.hosts.replies import parse_object
from pytest_flagperf.hosts.session import MARKER, Stream, is_ready

CONNECT_S, RECONNECT_S = 60.0, 10.0  # the first time, Slurm may still prepare the node
_CLOSE_S = 5.0
_WINDOW = 1 << 20  # WINDOW of relay.py
_PIECE = 1 << 15
_READ = 1 << 18
_LONGEST_FRAME = 1 << 22
_LONGEST_HEADER = 64
_NOISE_BYTES = 1 << 20  # bytes of a prolog's output, at most
_STDERR_BYTES = 8192
_HARMLESS = "lacks support for cpu binding"
_RELAY = Path(__file__).with_name("relay.py").read_bytes()


class RelayStream:
    """The input and output of one program on the node."""

    def __init__(self, link: RelayLink, channel: int) -> None:
        self.closed = False
        self.eof_received = False
        self.exit_status = -1
        self.status_event = threading.Event()
        self.channel = channel
        self._link = link
        self._changed = threading.Condition()
        self._output = {b"o": bytearray(), b"e": bytearray()}
        self._window = _WINDOW
        self._unconfirmed = 0
        self._readable, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._readable, False)

    def fileno(self) -> int:
        return self._readable

    # -- input of the program ------------------------------------------------------------------------------

    def send_ready(self) -> bool:
        with self._changed:
            return self._window > 0 and not self.closed

    def send(self, data: bytes, /) -> int:
        """Send as much as the program's window allows; wait until that is at least one byte."""
        with self._changed:
            self._changed.wait_for(lambda: self._window > 0 or self.closed)
            if self.closed:
                raise OSError("the connection is closed")
            piece = data[: min(_PIECE, self._window)]
            self._window -= len(piece)
        self._link.write(self.channel, b"i", piece)
        return len(piece)

    def sendall(self, data: bytes, /) -> None:
        while data:
            data = data[self.send(data) :]

    def shutdown_write(self) -> None:
        if not self.closed:
            self._link.write(self.channel, b"z")

    # -- output of the program -----------------------------------------------------------------------------

    def recv_ready(self) -> bool:
        return bool(self._output[b"o"])

    def recv(self, size: int, /) -> bytes:
        return self._taken(b"o", size)

    def recv_stderr_ready(self) -> bool:
        return bool(self._output[b"e"])

    def recv_stderr(self, size: int, /) -> bytes:
        return self._taken(b"e", size)

    def _taken(self, kind: bytes, size: int) -> bytes:
        with self._changed:
            data = bytes(self._output[kind][:size])
            del self._output[kind][:size]
            self._unconfirmed += len(data)
            confirmed = self._unconfirmed if self._unconfirmed >= _WINDOW // 4 else 0
            self._unconfirmed -= confirmed
            if not any(self._output.values()) and not self.eof_received:
                with suppress(BlockingIOError):
                    os.read(self._readable, 1 << 16)
        if confirmed and not self.closed:
            with suppress(OSError):
                self._link.write(self.channel, b"w", b"%d" % confirmed)
        return data

    # -- for the link --------------------------------------------------------------------------------------

    def take(self, kind: bytes, payload: bytes) -> None:
        """Take a frame of the relay."""
        with self._changed:
            if kind in self._output:
                self._output[kind] += payload
                self._make_readable()
            elif kind == b"w":
                self._window += int(payload)
            elif kind == b"z":
                self.eof_received = True
                self._make_readable()
            elif kind == b"x":
                self.exit_status = max(-1, int(payload))
                self.status_event.set()
            else:
                raise ValueError(f"unknown kind {kind!r}")
            self._changed.notify_all()

    def lose(self) -> None:
        """End the stream after the loss of the connection."""
        with self._changed:
            self.closed = self.eof_received = True
            self.status_event.set()
            self._changed.notify_all()
            self._make_readable()

    def free(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()
            os.close(self._readable)
            os.close(self._wake)
            self._readable = self._wake = -1

    def _make_readable(self) -> None:
        if self._wake >= 0:
            with suppress(BlockingIOError):
                os.write(self._wake, b"+")


class FarEnd(Protocol):
    """Where the frames of a relay go and come from."""

    fileno_to_write: int
    fileno_to_read: int

    def write(self, data: memoryview) -> int:
        """Write what can be written without waiting; BlockingIOError if that is nothing."""

    def read(self) -> bytes:
        """Wait for data; empty at the end."""

    def end_input(self) -> None:
        """Tell the relay that nothing follows."""

    def end(self, timeout_s: float) -> None:
        """End the connection; after this time by force."""

    def last_words(self) -> str:
        """Return why the connection has ended."""

    def close(self) -> None:
        """Close the files, after the thread that reads has ended."""


class Srun:
    """An srun whose program is the relay, with its input and output."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], request: Mapping[str, object]) -> None:
        text = json.dumps({**request, "silence_s": silence.RELAY_S}).encode()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        try:
            # In a session of its own: Ctrl-C in a terminal would cancel the step.
            self.process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._stderr.close()
            raise HostError(f"{name}: cannot start {argv[0]}: {error.strerror or error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.fileno_to_write, self.fileno_to_read = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.fileno_to_write, False)
        deadline = time.monotonic() + CONNECT_S
        rest = memoryview(b"%d\n%s%d\n%s" % (len(_RELAY), _RELAY, len(text), text))
        with suppress(BrokenPipeError):  # srun has ended; the missing greeting is reported with its reason
            while rest and time.monotonic() < deadline:
                try:
                    rest = rest[self.write(rest) :]
                except BlockingIOError:
                    is_ready(self.fileno_to_write, 0.5, to_write=True)

    def write(self, data: memoryview) -> int:
        return os.write(self.fileno_to_write, data)

    def read(self) -> bytes:
        return os.read(self.fileno_to_read, _READ)

    def end_input(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def end(self, timeout_s: float) -> None:
        """Wait for srun's end. A killed srun does not end the step, whose agents have leases."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(_CLOSE_S)

    def last_words(self) -> str:
        """Return the last lines that srun wrote to stderr."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _STDERR_BYTES))
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        words = [line.removeprefix("srun: ").removeprefix("error: ") for line in lines if _HARMLESS not in line]
        code = self.process.poll()
        return "; ".join(words[-2:]) or ("srun ended" if code is None else f"srun ended with exit code {code}")

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.close()


class RelayLink:
    """The relay on a node; a lost connection is not reopened."""

    errors: tuple[type[Exception], ...] = ()

    def __init__(self, name: str, far: FarEnd, timeout_s: float = CONNECT_S) -> None:
        self.facts: Mapping[str, object] = {}
        self._name = name
        self._far = far
        self._lost_because = ""
        self._streams: dict[int, RelayStream] = {}
        self._next = 1
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._pinging = threading.Lock()
        self._pong = threading.Event()
        self._closed = threading.Event()
        self._received_at = time.monotonic()
        try:
            rest = self._greeting(timeout_s)
        except BaseException:
            self._end(0.0)
            far.close()
            raise
        self._threads = [
            threading.Thread(target=self._read, args=(rest,), name=f"srun {name}", daemon=True),
            threading.Thread(target=self._ping, name=f"ping {name}", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- programs ------------------------------------------------------------------------------------------

    def start(self, command: str, deadline: float) -> Stream:
        """Start the relay's command, which is the same for all programs of a host."""
        del command, deadline
        with self._lock:
            if self._lost_because:
                self._raise_lost()
            stream = RelayStream(self, self._next)
            self._streams[self._next] = stream
            self._next += 1
        try:
            self.write(stream.channel, b"s")
        except OSError as error:
            self.release(stream)
            raise HostLost(f"{self._name}: the connection is lost: {error}") from error
        return stream

    def release(self, stream: Stream) -> None:
        assert isinstance(stream, RelayStream)
        with self._lock:
            self._streams.pop(stream.channel, None)
        if not stream.closed:
            with suppress(OSError):
                self.write(stream.channel, b"c")
        stream.free()

    def check(self) -> None:
        """Raise HostLost unless the node answers."""
        if not self._lost_because:
            self._wait_for_answer()
        if self._lost_because:
            self._raise_lost()

    def close(self) -> None:
        self._closed.set()
        self._lose("it was closed")
        self._end(_CLOSE_S)
        for thread in self._threads:
            thread.join(_CLOSE_S)
        self._far.close()

    def write(self, channel: int, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame; OSError if the connection is lost."""
        self._write(b"%d %s %d\n%s\n" % (channel, kind, len(payload), payload))

    # -- the connection ------------------------------------------------------------------------------------

    def _raise_lost(self) -> NoReturn:
        raise HostLost(f"{self._name}: the connection is lost: {self._lost_because}")

    def _write(self, data: bytes) -> None:
        with self._writing:
            view = memoryview(data)
            while view:
                if self._lost_because:
                    raise OSError(self._lost_because)
                try:
                    view = view[self._far.write(view) :]
                except BlockingIOError:
                    is_ready(self._far.fileno_to_write, 0.5, to_write=True)

    def _greeting(self, timeout_s: float) -> bytes:
        """Read to the end of the relay's first line; return what arrived behind it. A prolog may print text before."""
        received, deadline = b"", time.monotonic() + timeout_s
        while True:
            if not is_ready(self._far.fileno_to_read, max(0.0, deadline - time.monotonic())):
                why = self._far.last_words()
                raise HostLost(f"{self._name}: srun started nothing within {timeout_s:g} s: {why}")
            data = self._far.read()
            if not data:
                self._far.end(_CLOSE_S)
                raise HostLost(f"{self._name}: srun: {self._far.last_words()}")
            received += data
            _, marker, after = received.partition(MARKER)
            line, end, rest = after.partition(b"\n")
            if marker and end:
                self.facts = parse_object(self._name, line, {}, "the first reply of the relay")
                return rest
            if len(received) > _NOISE_BYTES:
                raise InvalidReply(self._name, f"{_NOISE_BYTES} bytes before the first reply; expected the reply")

    def _read(self, rest: bytes) -> None:
        """Pass the relay's frames to the streams until the connection ends."""
        received = bytearray(rest)
        try:
            while True:
                while (frame := _frame(received)) is not None:
                    self._take(*frame)
                data = self._far.read()
                if not data:
                    break
                self._received_at = time.monotonic()
                received += data
            reason = ""
        except (OSError, ValueError) as error:
            reason = f"invalid reply: {error}"
        self._far.end(_CLOSE_S)
        self._lose(reason or self._far.last_words())

    def _take(self, channel: int, kind: bytes, payload: bytes) -> None:
        if kind == b"p":
            self._pong.set()
            return
        with self._lock:
            stream = self._streams.get(channel)
        if stream is not None:
            stream.take(kind, payload)

    def _ping(self) -> None:
        while not self._closed.wait(silence.PING_S) and not self._lost_because:
            self._wait_for_answer()

    def _wait_for_answer(self) -> None:
        """Ping the relay; return when it answers or the connection is lost."""
        with self._pinging:
            self._pong.clear()
            pinged_at = time.monotonic()
            # Pings wait behind other data; a full connection is not a lost one as long as data arrives.
            if self._writing.acquire(timeout=silence.LINK_S):
                self._writing.release()
            with suppress(OSError):
                self.write(0, b"p")
            while not self._pong.wait(0.2) and not self._lost_because:
                if time.monotonic() - max(pinged_at, self._received_at) > silence.LINK_S:
                    self._lose(f"no answer for {silence.LINK_S:g} s")

    def _lose(self, reason: str) -> None:
        with self._lock:
            self._lost_because = self._lost_because or reason
            streams = list(self._streams.values())
        for stream in streams:
            stream.lose()
        self._pong.set()

    def _end(self, timeout_s: float) -> None:
        self._far.end_input()
        self._far.end(timeout_s)


def _frame(received: bytearray) -> tuple[int, bytes, bytes] | None:
    """Remove the first frame and return its channel, kind and payload; None if it has not arrived completely."""
    end = received.find(b"\n", 0, _LONGEST_HEADER)
    if end < 0:
        if len(received) > _LONGEST_HEADER:
            raise ValueError(f"{bytes(received[:_LONGEST_HEADER])!r}; expected a frame")
        return None
    channel, kind, length = received[:end].split()
    size = int(length)
    if not 0 <= size <= _LONGEST_FRAME:
        raise ValueError(f"a frame of {size} bytes; expected at most {_LONGEST_FRAME}")
    if len(received) < end + size + 2:
        return None
    payload = bytes(received[end + 1 : end + 1 + size])
    del received[: end + size + 2]
    return int(channel), bytes(kind), payload
