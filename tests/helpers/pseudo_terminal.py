"""Programs in a terminal of a given size: what they print, and what the screen shows."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyte


def _take_control() -> None:
    """Let the terminal control the new session, whose signals act as in a user's shell."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    """A program whose session a terminal controls."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        columns: int = 120,
        rows: int = 36,
        cwd: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.columns, self.rows = columns, rows
        self._output = b""
        self._handle, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(env or {})}
        for name in ("COLUMNS", "LINES"):  # the size is the terminal's; workers of pytest-xdist set LINES
            environment.pop(name, None)
        self.process = subprocess.Popen(
            argv, cwd=cwd, env=environment, stdin=other, stdout=other, stderr=other,
            start_new_session=True, preexec_fn=_take_control,
        )  # fmt: skip
        os.close(other)

    def type(self, keys: str) -> None:
        os.write(self._handle, keys.encode())

    @property
    def printed(self) -> str:
        return self._output.decode("utf-8", "surrogateescape")

    def hang_up(self) -> None:
        """Close the terminal while the program runs, as with a window or an SSH session."""
        os.close(self._handle)
        self._handle = -1

    def read(self, seconds: float) -> bool:
        """Read the output for some seconds; return False if the program has closed its terminal."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._handle], [], [], left)[0]:
                continue
            try:
                data = os.read(self._handle, 1 << 16)
            except OSError:  # Linux reports the closed terminal so
                return False
            if not data:
                return False
            self._output += data
        return True

    def wait_for(self, shows: Callable[[str], bool], timeout_s: float = 60.0) -> str:
        """Return the screen when it shows something; TimeoutError with the last screen otherwise."""
        end = time.monotonic() + timeout_s
        while not shows(text := self.text()):
            if not self.read(0.2) or time.monotonic() > end:
                if shows(text := self.text()):
                    break
                raise TimeoutError(f"the screen is:\n{text}")
        return text

    def end(self, timeout_s: float = 60.0) -> int:
        """Read until the program ends; return its exit code, or raise TimeoutError with the last screen."""
        deadline = time.monotonic() + timeout_s
        while self.read(0.2) and time.monotonic() < deadline:
            pass
        try:
            return self.process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the program goes on; the screen is:\n{self.text()}") from None

    def close(self) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._handle >= 0:
            os.close(self._handle)

    def text(self) -> str:
        """Return the text on the screen."""
        screen = pyte.Screen(self.columns, self.rows)
        # pyte has no second screen: clear the only one where a program changes it.
        pyte.ByteStream(screen).feed(re.sub(rb"\x1b\[\?1049[hl]", b"\x1b[2J\x1b[H", self._output))
        return "\n".join(line.rstrip() for line in screen.display)
