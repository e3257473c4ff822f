"""One stream of bytes to the process of the controller on a host, however the host is reached: many programs share it.

``flagperf_driver/node/host_process.py`` is the other end and describes the frames. A ``Carrier`` carries the bytes:
a channel of SSH, or a command such as ``srun`` or ``kubectl exec`` (carriers.py). Two threads serve the streams of all
hosts: one reads them and finds those that are silent, one sends signs of life.
"""

from __future__ import annotations

import json
import os
import selectors
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

from flagperf_driver.node import host_process

from . import HostError, HostLost, InvalidReply, Message, silence
from .carriers import is_ready
from .replies import PATH, TEXT, WHOLE, Shape, parse_object

BOOT = 'import sys; stdin=open(0,"rb",closefd=False); exec(stdin.read(int(stdin.readline())))'
"""Python code that runs the text in front of its input: the length of the text, a line feed, the text."""
TEXT_THERE = Path(host_process.__file__).read_bytes()
PYTHON_REQUIRED = (
    "Python >= 3.8 is required on each host: install it, or set its path with python = ... in [cluster] or [slurm]"
)
_PIECE = 1 << 15
_LONGEST_FRAME = 1 << 22
_LONGEST_HEADER = 64
_NOISE_BYTES = 1 << 20  # bytes that a login shell or a prolog may print
_KEPT_ERRORS = 1 << 20  # bytes of a program's stderr, the last ones
_TICK_S = 0.5
_NOTICE_S = 5.0  # until the reading side notices what made a write fail, and has the last words
_GREETING: Shape = {"old?": TEXT, "env?": {}, "address?": TEXT}
_REPLY: Shape = {"error?": TEXT, "pid?": WHOLE, "path?": PATH}


class Carrier(Protocol):
    """Carries bytes to and from a Python that was started on a host."""

    by: str
    """The program that reaches the host: ssh, srun, kubectl, ..."""
    greeting_s: float
    """How long the Python may take to start."""

    def fileno(self) -> int:
        """A descriptor that is readable when bytes have arrived or the command has ended."""

    def read(self) -> bytes | None:
        """Return the bytes that have arrived, without waiting; None if there are none, empty after the end."""

    def write(self, data: bytes) -> None:
        """Write everything; OSError if that cannot be done. Ends soon after another thread has called ``close``."""

    def code(self) -> int | None:
        """Return the exit code of the host's Python; None if it is unknown."""

    def last_words(self) -> str:
        """Return why the connection has ended."""

    def close(self) -> None:
        """End the connection."""


class HostProgram:
    """The input and output of one program on a host, or of one connection to a socket there."""

    def __init__(self, stream: HostStream, channel: int) -> None:
        self.channel = channel
        self.out, self.err = bytearray(), bytearray()
        self.reply: Message | None = None
        self.exit_code: int | None = None
        self.output_ended = False
        self.input_ended = False
        self._stream = stream
        self._changed = threading.Condition()
        self._window = host_process.WINDOW
        self._taken = 0
        self.on_change: Callable[[], None] = lambda: None  # called when there is something new; it must not wait

    @property
    def lost(self) -> bool:
        return bool(self._stream.lost_because) and self.exit_code is None

    def is_over(self) -> bool:
        """Whether the program has ended with all its output, or its host is lost."""
        return (self.exit_code is not None and self.output_ended) or bool(self._stream.lost_because)

    def has_no_more_output(self) -> bool:
        return self.output_ended or self.lost

    def has_room_or_is_over(self) -> bool:
        """Whether input can be sent without waiting, or need not be sent any more."""
        return self._window > 0 or self.is_over()

    def check(self) -> None:
        """Raise HostLost if the stream was lost before the end of the program."""
        if self.lost:
            self._stream.raise_lost()

    def wait(self, timeout_s: float, stops: Callable[[], bool]) -> None:
        """Wait until there is output, or the condition is true."""
        with self._changed:
            self._changed.wait_for(lambda: self.out or stops(), timeout_s)

    def wait_for_reply(self, timeout_s: float) -> bool:
        """Return True if the host says within the time whether it has started; HostLost if it is lost before."""
        with self._changed:
            answered = self._changed.wait_for(lambda: self.reply is not None or self._stream.lost_because, timeout_s)
        if self.reply is None:
            self.check()
        return bool(answered)

    def wait_for_end(self, timeout_s: float) -> bool:
        """Return True if the program ends within the time; its output is discarded."""
        deadline = time.monotonic() + timeout_s
        while self.exit_code is None and not self._stream.lost_because:
            if (left := deadline - time.monotonic()) <= 0:
                return False
            self.wait(left, lambda: self.exit_code is not None or bool(self._stream.lost_because))
            self.take_output()
        return True

    # -- input ---------------------------------------------------------------------------------------------

    def write_some(self, data: memoryview) -> int:
        """Send as much of the data as there is room for, without waiting for room."""
        with self._changed:
            piece = bytes(data[: min(_PIECE, self._window)])
            self._window -= len(piece)
        if piece:
            self._stream.write(self.channel, b"i", piece)
        return len(piece)

    def write(self, data: bytes) -> None:
        """Send everything; OSError if the input is closed, the program has ended or the host is lost."""
        view = memoryview(data)
        while view:
            with self._changed:
                self._changed.wait_for(lambda: self._window > 0 or self._is_closed())
                if self._is_closed():
                    raise OSError("it was closed" if self.input_ended else "it has ended")
            view = view[self.write_some(view) :]

    def _is_closed(self) -> bool:
        return self.input_ended or self.exit_code is not None or bool(self._stream.lost_because)

    def end_input(self) -> None:
        if not self.input_ended:
            self.input_ended = True
            with suppress(OSError):
                self._stream.write(self.channel, b"z")
            with self._changed:
                self._changed.notify_all()

    # -- output --------------------------------------------------------------------------------------------

    def take_output(self) -> bytes:
        """Return the output that has arrived, and let the program write more."""
        with self._changed:
            data = bytes(self.out)
            self.out.clear()
            self._taken += len(data)
            taken = self._taken if self._taken >= host_process.WINDOW // 4 else 0
            self._taken -= taken
        if taken and not self.output_ended:
            with suppress(OSError):
                self._stream.write(self.channel, b"w", b"%d" % taken)
        return data

    def kill(self) -> None:
        """Kill the program and its process group."""
        with suppress(OSError):
            self._stream.write(self.channel, b"k")

    def close(self) -> None:
        """Close all pipes of the program; what ``run`` started is killed."""
        self._stream.forget(self)

    # -- for the stream ------------------------------------------------------------------------------------

    def take(self, kind: bytes, payload: bytes) -> None:
        """Take a frame of the host."""
        with self._changed:
            if kind == b"o":
                self.out += payload
            elif kind == b"e":
                self.err += payload
                del self.err[:-_KEPT_ERRORS]
            elif kind == b"w":
                self._window += int(payload)
            elif kind == b"r":
                self.reply = parse_object(self._stream.name, payload, _REPLY, "the reply")
            elif kind == b"z":
                self.output_ended = True
            elif kind == b"x":
                self.exit_code = int(payload)
            else:
                raise ValueError(f"unknown kind {kind!r}")
        self.wake()

    def wake(self) -> None:
        """Wake up everyone who waits: something is new, or the stream is lost."""
        with self._changed:
            self._changed.notify_all()
        self.on_change()


def preface(request: Message, beat_s: float, text: bytes = TEXT_THERE) -> bytes:
    """Return what ``BOOT`` reads on a host: the text that runs there, and its request."""
    order = json.dumps({**request, "beat_s": beat_s, "silence_s": silence.RELAY_S + beat_s}).encode()
    return b"%d\n%s%d\n%s" % (len(text), text, len(order), order)


class HostStream:
    """The stream to one host; a lost stream is not opened again."""

    def __init__(self, name: str, python: str, carrier: Carrier, first: bytes, beat_s: float) -> None:
        self.name = name
        self.lost_because = ""
        self.beat_at = time.monotonic()
        self.beat_s = beat_s
        self.carrier = carrier
        self._silent_s = 0.0
        self._is_muted = False
        self._programs: dict[int, HostProgram] = {}
        self._next = 1
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._lost = threading.Event()
        self._received = bytearray()
        try:
            with suppress(OSError):  # the command has ended: it sends no greeting, and says why
                carrier.write(first)
            self.greeting = self._greeting(python, time.monotonic() + carrier.greeting_s)
        except BaseException:
            carrier.close()
            raise
        STREAMS.add(self)

    def start(self, request: Message) -> HostProgram:
        """Send a request, and return the program that it starts; its ``reply`` says whether it has started."""
        with self._lock:
            program = HostProgram(self, self._next)
            self._programs[self._next] = program
            self._next += 1
        try:
            self.write(program.channel, b"s", json.dumps(request).encode())
        except OSError:
            self.forget(program)
            self.raise_lost()
        return program

    def forget(self, program: HostProgram) -> None:
        with self._lock:
            known = self._programs.pop(program.channel, None)
        if known is not None:
            with suppress(OSError):
                self.write(program.channel, b"c")

    def write(self, channel: int, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame; OSError if the stream is lost."""
        try:
            self._send(channel, kind, payload)
        except OSError as error:
            if not self._lost.wait(_NOTICE_S):
                self._lose(error.strerror or str(error))
            raise OSError(self.lost_because) from error

    def _send(self, channel: int, kind: bytes, payload: bytes = b"") -> None:
        with self._writing:
            if self.lost_because:
                raise OSError(self.lost_because)
            self.beat_at = time.monotonic()
            if not self._is_muted:
                self.carrier.write(b"%d %s %d\n%s\n" % (channel, kind, len(payload), payload))

    def beat(self) -> None:
        """Send a sign of life if it is due, unless a thread writes already; this must not delay the others."""
        if time.monotonic() - self.beat_at >= self.beat_s and self._writing.acquire(blocking=False):
            self._writing.release()
            with suppress(OSError):
                self._send(0, b"b")

    def mute(self) -> None:
        """From now on no byte goes either way, as if the link were cut; the silence ends the stream."""
        self._is_muted = True

    def raise_lost(self) -> NoReturn:
        raise HostLost(f"{self.name}: the connection is lost: {self.lost_because or 'the other end closed it'}")

    def close(self) -> None:
        self._lose("it was closed")
        self.carrier.close()

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self.lost_because:
                return
            self.lost_because = reason
            self._lost.set()
            programs = list(self._programs.values())
        STREAMS.remove(self)
        for program in programs:
            program.wake()

    def _greeting(self, python: str, deadline: float) -> Message:
        """Read to the end of the greeting; a login shell or a prolog may print text before it."""
        while is_ready(self.carrier.fileno(), max(0.0, deadline - time.monotonic())):
            if (data := self.carrier.read()) is None:
                continue
            if not data:
                raise self._refusal(python)
            self._received += data
            _, marker, after = bytes(self._received).partition(host_process.MARKER)
            line, end, rest = after.partition(b"\n")
            if marker and end:
                self._received[:] = rest
                greeting = parse_object(self.name, line, _GREETING, "the greeting")
                if "old" in greeting:
                    raise HostError(f"{self.name}: {python} is Python {greeting['old']}; {PYTHON_REQUIRED}")
                return greeting
            if len(self._received) > _NOISE_BYTES:
                raise InvalidReply(self.name, f"{_NOISE_BYTES} bytes before the greeting; expected the greeting")
        raise HostLost(f"{self.name}: {python} did not start within {self.carrier.greeting_s:g} s")

    def _refusal(self, python: str) -> HostError:
        code, words = self.carrier.code(), self.carrier.last_words()
        if code is None:
            return HostLost(f"{self.name}: {self.carrier.by}: {words}")
        why = "program not found" if code == 127 else "it cannot be started"
        return HostError(f"{self.name}: {python}: {why} ({words}); {PYTHON_REQUIRED}")

    # -- in the threads of all streams ---------------------------------------------------------------------

    def read(self) -> None:
        """Take the bytes that have arrived."""
        try:
            while (data := self.carrier.read()) is not None:
                if not data:
                    self._drop()
                    return
                if self._is_muted:
                    continue
                self._silent_s = 0.0
                self._received += data
                while (frame := _frame(self._received)) is not None:
                    channel, kind, payload = frame
                    if (program := self._programs.get(channel)) is not None:
                        program.take(kind, payload)
        except (OSError, EOFError) as error:
            self._drop(getattr(error, "strerror", None) or str(error) or "the other end closed it")
        except (ValueError, InvalidReply) as error:
            self._drop(f"invalid reply: {error}")

    def _drop(self, reason: str = "") -> None:
        """Lose the stream, by default for the reason that its carrier gives; this must not delay the others."""

        def work() -> None:
            self._lose(reason or self.carrier.last_words())
            self.carrier.close()

        STREAMS.remove(self)
        threading.Thread(target=work, name=f"close {self.name}", daemon=True).start()

    def count_silence(self, passed_s: float) -> None:
        """Count the seconds without a byte; a longer pause is one of this process."""
        self._silent_s += min(passed_s, 2 * _TICK_S)
        limit = silence.LINK_S + self.beat_s
        if self._silent_s > limit:
            self._drop(f"no sign of life for {limit:g} s")


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


class _Streams:
    """All open streams: one thread reads them, another one sends signs of life. Both end after the last stream."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.open: set[HostStream] = set()
        self._changed = False
        self._wake = -1  # a descriptor that wakes up the thread that reads
        self._ended = threading.Event()

    def add(self, stream: HostStream) -> None:
        with self._lock:
            self.open.add(stream)
            self._changed = True
            if self._wake < 0:
                woken, self._wake = os.pipe()
                self._ended = threading.Event()
                threading.Thread(target=self._read, args=(woken,), name="streams of hosts", daemon=True).start()
                threading.Thread(target=self._beat, args=(self._ended,), name="signs of life", daemon=True).start()
            os.write(self._wake, b"+")

    def remove(self, stream: HostStream) -> None:
        with self._lock:
            if stream in self.open:
                self.open.remove(stream)
                self._changed = True
                os.write(self._wake, b"+")

    def _read(self, woken: int) -> None:
        registered: dict[HostStream, int] = {}
        looked_at = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            while not self._changed or self._follow(selector, registered, woken):
                for key, _ in selector.select(_TICK_S):
                    if key.data is None:
                        os.read(woken, 1 << 16)
                    elif key.data in self.open:
                        key.data.read()
                if (passed_s := time.monotonic() - looked_at) >= _TICK_S:
                    looked_at += passed_s
                    for stream in registered.keys() & self.open:
                        stream.count_silence(passed_s)

    def _follow(self, selector: selectors.BaseSelector, registered: dict[HostStream, int], woken: int) -> bool:
        """Read the new streams too, and the closed ones no more; return False after the last one."""
        with self._lock:
            self._changed, streams = False, set(self.open)
            if not streams:
                self._ended.set()
                os.close(self._wake)
                os.close(woken)
                self._wake = -1
                return False
        for stream in registered.keys() - streams:
            selector.unregister(registered.pop(stream))
        for stream in streams - registered.keys():
            registered[stream] = stream.carrier.fileno()
            selector.register(registered[stream], selectors.EVENT_READ, stream)
        return True

    def _beat(self, ended: threading.Event) -> None:
        """Send signs of life: in a thread of its own, since a host that hangs may block it."""
        while not ended.wait(_TICK_S):
            for stream in list(self.open):
                stream.beat()


STREAMS = _Streams()
