"""The machine of the harness, with the same interface as any other host."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from . import Completed, HostError, Message
from .replies import LineChannel, check_length
from .session import is_ready

_log = logging.getLogger("flagperf.hosts")
_STDERR_BYTES = 8192
_POLL_S = 0.2  # a reader sees within this time that the channel was closed


class LocalHost:
    """The machine on which the harness itself runs."""

    address = "127.0.0.1"
    is_local = True

    def __init__(self, name: str = "localhost") -> None:
        self.name = name
        self.python = sys.executable

    def __repr__(self) -> str:
        return f"LocalHost({self.name!r})"

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        with self._start(argv, env, subprocess.PIPE) as process:
            try:
                out, err = process.communicate(stdin, timeout=timeout_s)
            except subprocess.TimeoutExpired as late:
                raise HostError(f"{self.name}: {argv[0]} did not end within {timeout_s:g} s") from late
            finally:
                _kill_session(process)
        return Completed(tuple(argv), process.returncode, out, _text(err))

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> LocalChannel:
        # A file, not a pipe: a full pipe would block the program.
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - the channel closes it
        try:
            return LocalChannel(self.name, self._start(argv, env, stderr), stderr)
        except HostError:
            stderr.close()
            raise

    def forward(self, path: str) -> str:
        return path

    def reconnect(self) -> None:
        """Do nothing: this machine cannot be lost."""

    def close(self) -> None:
        """Do nothing: a local host has no connection."""

    def _start(
        self, argv: Sequence[str], env: Mapping[str, str] | None, err: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        _log.debug("%s: start %s", self.name, argv[0])
        # In a session of its own: Ctrl-C reaches only the harness, which ends its programs in order.
        try:
            return subprocess.Popen(
                list(argv),
                env={**os.environ, **(env or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"{self.name}: cannot start {argv[0]}: {error.strerror or error}") from error


class LocalChannel(LineChannel):
    """A connection over pipes."""

    needs_looks = False

    def __init__(self, host: str, process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
        super().__init__(host)
        self._host = host
        self._process = process
        self._stderr = stderr
        self._buffer = bytearray()
        self._closed = False
        self._errors = ""
        self.pid = process.pid

    def send(self, message: Message) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise HostError(f"{self._host}: the program no longer reads its input: {error}") from error

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def close(self, timeout_s: float = 5.0) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        _kill_session(self._process)
        # Wake a waiting reader: a child of the program may keep its stdout open.
        self._closed = True
        with self._reading:
            self._process.stdout.close()
            self.error_output()
            self._stderr.close()
        return self._process.returncode

    def error_output(self) -> str:
        if not self._stderr.closed:
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - _STDERR_BYTES))
            self._errors = _text(self._stderr.read()).strip()
        return self._errors

    def _line(self, deadline: float) -> bytes | None:
        assert self._process.stdout is not None
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            chunk = self._chunk(deadline)
            if not chunk:
                return None
            self._buffer += chunk
            check_length(self._host, len(self._buffer))
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _chunk(self, deadline: float) -> bytes:
        """Return the next output of the program; empty at its end."""
        assert self._process.stdout is not None
        while not self._process.stdout.closed:
            left = deadline - time.monotonic()
            if is_ready(self._process.stdout.fileno(), max(0.0, min(left, _POLL_S))):
                return os.read(self._process.stdout.fileno(), 1 << 16)
            if self._closed:
                break
            if left <= 0:
                raise TimeoutError(f"{self._host}: no message in time")
        return b""


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the program's session if the program still runs."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
