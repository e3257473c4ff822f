"""Carriers of a host's stream on this machine: a command that starts a Python there."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from . import HostError

_CLOSE_S = 5.0
_LOOK_S = 0.5  # a writer sees within this time that the carrier was closed
_STDERR_BYTES = 8192
_READ_BYTES = 1 << 18


def is_ready(fd: int, timeout_s: float, *, to_write: bool = False) -> bool:
    """Wait until a descriptor can be read or written; False after the time.

    select() fails for descriptors above 1023, whatever the limit.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT if to_write else select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def write_all(
    data: bytes, using: threading.Lock, descriptor: Callable[[], int], write: Callable[[memoryview], int]
) -> None:
    """Write everything; OSError when another thread has closed the descriptor, which is -1 then."""
    view = memoryview(data)
    while view:
        with using, suppress(BlockingIOError):
            if descriptor() < 0:
                raise OSError("it was closed")
            view = view[write(view) :]
            continue
        with suppress(OSError):  # closed meanwhile
            is_ready(descriptor(), _LOOK_S, to_write=True)


class CommandCarrier:
    """A command of this machine that starts a Python on a host and passes its input and output."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        words: Callable[[str], str] = lambda line: line,
        greeting_s: float = 60.0,
    ) -> None:
        self.by = argv[0]
        self.greeting_s = greeting_s
        self._words = words  # leaves out what a line of the command need not say; all of it for an empty text
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._using = threading.Lock()  # no descriptor is closed while another thread uses it
        self._closed = False
        try:
            # In a session of its own: Ctrl-C in a terminal reaches only the harness, which ends its programs in order.
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
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)

    def fileno(self) -> int:
        return self._stdout.fileno()

    def read(self) -> bytes | None:
        with self._using, suppress(BlockingIOError):
            return b"" if self._stdout.closed else os.read(self._stdout.fileno(), _READ_BYTES)
        return None

    def write(self, data: bytes) -> None:
        write_all(data, self._using, self._input, lambda view: os.write(self._input(), view))

    def _input(self) -> int:
        with suppress(ValueError):
            return self._stdin.fileno()
        return -1

    def code(self) -> int | None:
        """Return None: the exit code of the command may be its own or the host's."""
        return None

    def last_words(self) -> str:
        """Return the last lines that the command wrote to stderr."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_CLOSE_S)
        text = ""
        with self._using:
            if not self._stderr.closed:
                size = self._stderr.seek(0, os.SEEK_END)
                self._stderr.seek(max(0, size - _STDERR_BYTES))
                text = self._stderr.read().decode("utf-8", "replace")
        lines = [words for line in text.splitlines() if (words := self._words(line.strip()))]
        code = self.process.poll()
        return "; ".join(lines[-2:]) or (
            f"{self.by} ended" if code is None else f"{self.by} ended with exit code {code}"
        )

    def end_input(self) -> None:
        """Tell the host that nothing follows."""
        with self._using, suppress(OSError):
            self._stdin.close()

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """End the input, and wait for the end of the command; kill it after the time."""
        with self._using:
            if self._closed:
                return
            self._closed = True
        self.end_input()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(_CLOSE_S)
        with self._using:
            self._stdout.close()
            self._stderr.close()
