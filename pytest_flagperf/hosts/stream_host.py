"""A host at the other end of a stream: it runs many programs at once, each with its input and output.

Arguments and environment need no quoting, a program's end by a signal differs from the loss of the connection, and a
program that ``run`` started ends when the connection is lost.
"""

from __future__ import annotations

import base64
import json
import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress

from . import Completed, HostError, HostLost, InvalidReply, Message, silence
from .replies import check_length, parse_line
from .stream import BOOT, Carrier, HostProgram, HostStream, preface

_log = logging.getLogger("flagperf.hosts")
_START_S = 60.0
_LOOK_S = 2.0  # seconds between two looks at a channel from which nothing arrives: another thread may close it
_END_S = 5.0
_CHUNK = 1 << 16
_STDERR_BYTES = 8192
_MOST_OUTPUT = 1 << 28  # bytes of a program's output, at most


class StreamHost(ABC):
    """A machine at the other end of a permanent connection, which is opened when it is first needed."""

    is_local = False

    def __init__(self, name: str, address: str, python: str, *, beat_s: float = silence.PING_S) -> None:
        self.name = name
        self.address = address
        self.python = python
        self._beat_s = beat_s
        self._command = (python, "-I", "-S", "-c", BOOT, "pytest-flagperf")
        self._lock = threading.RLock()
        self._stream: HostStream | None = None
        self._closed = False
        self._cut_until = 0.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @abstractmethod
    def _open_stream(self) -> HostStream:
        """Start ``_command`` on the host and return the stream to it; HostLost with the reason if that fails."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        deadline = time.monotonic() + timeout_s
        request = {"op": "run", "argv": list(argv), **self._place(env)}
        with closing(self._start(request, deadline, f"cannot start {argv[0]}")) as program:
            out, rest = bytearray(), memoryview(stdin)
            while not program.is_over():
                if time.monotonic() >= deadline:
                    program.kill()
                    program.wait_for_end(_END_S)
                    raise HostError(f"{self.name}: {argv[0]} did not end within {timeout_s:g} s")
                try:
                    rest = rest[program.write_some(rest) :]
                except OSError:  # the connection is lost
                    rest = memoryview(b"")
                if not rest:
                    program.end_input()
                program.wait(deadline - time.monotonic(), program.has_room_or_is_over if rest else program.is_over)
                out += program.take_output()
                if len(out) > _MOST_OUTPUT:
                    raise InvalidReply(self.name, f"more than {_MOST_OUTPUT >> 20} MiB of output; expected less")
            out += program.take_output()
            program.check()
            assert program.exit_code is not None
            return Completed(tuple(argv), program.exit_code, bytes(out), program.err.decode("utf-8", "replace"))

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> ProgramChannel:
        request = {"op": "open", "argv": list(argv), **self._place(env)}
        program = self._start(request, time.monotonic() + _START_S, f"cannot start {argv[0]}")
        return ProgramChannel(self.name, program)

    def put(self, digest: str, archive: Callable[[], bytes]) -> str:
        request = {"op": "put", "digest": digest, **self._place(None)}
        reply = self._ask(request)
        if "path" not in reply:
            reply = self._ask({**request, "archive": base64.b64encode(archive()).decode()})
        return str(reply["path"])

    def _ask(self, request: Message) -> Message:
        with closing(self._start(request, time.monotonic() + _START_S, "cannot store the code")) as program:
            return program.reply or {}

    def connect(self, path: str) -> ProgramChannel:
        return ProgramChannel(self.name, self._connect(path))

    def open_socket(self, path: str) -> socket.socket:
        program = self._connect(path)
        here, there = socket.socketpair()
        for work in (_pass_input, _pass_output):
            threading.Thread(target=work, args=(there, program), name=f"{self.name}:{path}", daemon=True).start()
        return here

    def reconnect(self) -> None:
        with self._lock:
            self._drop()
            self._connected()

    def cut(self, seconds: float) -> None:
        """Let the connection fall silent, and refuse another one for so long, as if the link were cut."""
        with self._lock:
            self._cut_until = time.monotonic() + seconds
            if self._stream is not None:
                self._stream.mute()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    def _connect(self, path: str) -> HostProgram:
        problem = f"cannot reach the socket {path}"
        return self._start({"op": "connect", "path": path}, time.monotonic() + _START_S, problem)

    def _place(self, env: Mapping[str, str] | None) -> dict[str, object]:
        return {"env": dict(env or {})}

    def _start(self, request: Message, deadline: float, problem: str) -> HostProgram:
        with self._lock:
            stream = self._connected()
        _log.debug(
            "%s: %s %s", self.name, request["op"], request.get("path") or request.get("digest") or request["argv"][0]
        )
        program = stream.start(request)
        try:
            if not program.wait_for_reply(deadline - time.monotonic()):
                raise HostError(f"{self.name}: {problem}: no answer in time")
            assert program.reply is not None
            if "error" in program.reply:
                raise HostError(f"{self.name}: {problem}: {program.reply['error']}")
        except BaseException:
            program.close()
            raise
        return program

    def _connected(self) -> HostStream:
        if self._closed:
            raise HostError(f"{self.name}: the connection was closed")
        if self._stream is None:
            if time.monotonic() < self._cut_until:
                raise HostLost(f"{self.name}: the link is cut, as --drill asks")
            self._stream = self._open_stream()
            _log.info("%s: connected to %s", self.name, self.address)
        return self._stream

    def _stream_over(self, carrier: Carrier, **request: object) -> HostStream:
        return HostStream(self.name, self.python, carrier, preface(request, self._beat_s), self._beat_s)

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _pass_input(there: socket.socket, program: HostProgram) -> None:
    with suppress(OSError):
        while data := there.recv(_CHUNK):
            program.write(data)
    program.end_input()


def _pass_output(there: socket.socket, program: HostProgram) -> None:
    with closing(program), there, suppress(OSError):
        while True:
            ended = program.has_no_more_output()  # read before the output that arrived until then
            there.sendall(program.take_output())
            if ended:
                there.shutdown(socket.SHUT_RDWR)  # the other thread still reads from it
                return
            program.wait(_LOOK_S, program.has_no_more_output)


class ProgramChannel:
    """A connection to a program on a host: reads one JSON object from each line, by one reader at a time."""

    def __init__(self, host: str, program: HostProgram) -> None:
        self.pid = int((program.reply or {}).get("pid", 0))
        self._host = host
        self._program = program
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._closed = False

    def send(self, message: Message) -> None:
        try:
            with self._writing:
                self._program.write(json.dumps(message).encode() + b"\n")
        except OSError as error:
            if not self._closed:
                self._program.check()
            words = self.error_output() or str(error)
            raise HostError(f"{self._host}: the program no longer reads its input: {words}") from error

    def receive(self, timeout_s: float) -> Message | None:
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while (line := self._line(deadline)) is not None:
                if (message := parse_line(self._host, line)) is not None:
                    return message
        return None

    def on_arrival(self, call: Callable[[], None]) -> bool:
        self._program.on_change = call
        call()  # a message may have arrived already
        return True

    def close(self, timeout_s: float = 5.0) -> int | None:
        self._closed = True
        self._program.end_input()
        if not self._program.wait_for_end(timeout_s):
            self._program.kill()
            self._program.wait_for_end(_END_S)
        with self._reading:
            self._program.close()
        return self._program.exit_code

    def error_output(self) -> str:
        return self._program.err[-_STDERR_BYTES:].decode("utf-8", "replace").strip()

    def _line(self, deadline: float) -> bytes | None:
        """Return the next line; None at the end, TimeoutError at the deadline."""
        program = self._program
        while not self._lines:
            ended = program.has_no_more_output() or self._closed  # read before the output that arrived until then
            self._split(program.take_output())
            if self._lines:
                break
            if ended:
                if not self._closed:
                    program.check()
                return None
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self._host}: no message in time")
            program.wait(min(_LOOK_S, left), program.has_no_more_output)
        return self._lines.popleft()

    def _split(self, data: bytes) -> None:
        if b"\n" in data:
            *lines, rest = bytes(self._rest + data).split(b"\n")
            self._lines.extend(lines)
            self._rest[:] = rest
        else:
            self._rest += data
        check_length(self._host, len(self._rest))
