"""Programs in a terminal of a given size: what they print, what the screen shows, and recordings of it."""

from __future__ import annotations

import codecs
import fcntl
import html
import json
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
from typing import Any

import pyte

_COLOURS = {
    "default": "#d0d0d0", "black": "#444444", "red": "#ff6b6b", "green": "#6bd968", "brown": "#e5c07b",
    "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#ffffff",
}  # fmt: skip
_CHAR, _LINE = 8.4, 17


def _take_control() -> None:
    """Let the terminal control the new session, whose signals act as in a user's shell."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    """A program whose session a terminal controls; ``output`` has what it printed with the seconds since its start."""

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
        self.output: list[tuple[float, bytes]] = []
        self._began = time.monotonic()
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
        """What the program has printed and was read."""
        return b"".join(data for _, data in self.output).decode("utf-8", "surrogateescape")

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
            self.output.append((time.monotonic() - self._began, data))
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
        """Read until the program ends; return its exit code."""
        deadline = time.monotonic() + timeout_s
        while self.read(0.2) and time.monotonic() < deadline:
            pass
        return self.process.wait(max(1.0, deadline - time.monotonic()))

    def close(self) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._handle >= 0:
            os.close(self._handle)

    def screen(self, until_s: float = float("inf")) -> Any:
        """Return the screen at some second."""
        screen = pyte.Screen(self.columns, self.rows)
        data = b"".join(data for at, data in self.output if at <= until_s)
        # pyte has no second screen: clear the only one where a program changes it.
        pyte.ByteStream(screen).feed(re.sub(rb"\x1b\[\?1049[hl]", b"\x1b[2J\x1b[H", data))
        return screen

    def text(self, until_s: float = float("inf")) -> str:
        return "\n".join(line.rstrip() for line in self.screen(until_s).display)

    def cast(self, title: str) -> str:
        """Return the recording in asciinema's format, version 2."""
        head = {"version": 2, "width": self.columns, "height": self.rows, "title": title}
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        events = [[round(at, 2), "o", decode(data)] for at, data in self.output]
        return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in (head, *events))


def animation(screens: Sequence[Any], seconds: float) -> str:
    """Return an SVG picture that shows each screen for some seconds, again and again."""
    columns, rows = screens[0].columns, screens[0].lines
    width, height = columns * _CHAR + 20, rows * _LINE + 20
    share = 100 / len(screens)
    style = (
        "text{white-space:pre;font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:14px}"
        f".f{{visibility:hidden;animation:show {seconds * len(screens):g}s steps(1) infinite}}"
        f"@keyframes show{{0%{{visibility:visible}}{share:g}%{{visibility:hidden}}}}"
    )
    frames = "".join(
        f'<g class="f" style="animation-delay:{number * seconds:g}s">{_frame(screen)}</g>'
        for number, screen in enumerate(screens)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img" '
        f'aria-label="flagperf watch while three cases run"><style>{style}</style>'
        f'<rect width="100%" height="100%" rx="6" fill="#16181d"/>{frames}</svg>\n'
    )


def _frame(screen: Any) -> str:
    lines = [(row, run) for row in range(screen.lines) for run in _runs(screen.buffer[row], screen.columns)]
    return "".join(_part(row, *run) for row, run in lines)


def _part(row: int, column: int, text: str, colour: str, is_bold: bool) -> str:
    weight = ' font-weight="bold"' if is_bold else ""
    place = f'x="{10 + column * _CHAR:g}" y="{24 + row * _LINE}" textLength="{len(text) * _CHAR:g}"'
    return f'<text {place} fill="{colour}"{weight}>{html.escape(text)}</text>'


def _runs(line: Any, columns: int) -> list[tuple[int, str, str, bool]]:
    """Return the parts of a line that look alike: column, text, colour and weight; without blank ones."""
    runs: list[tuple[int, str, str, bool]] = []
    for column in range(columns):
        char = line[column]
        look = _COLOURS.get(char.fg, f"#{char.fg}" if len(char.fg) == 6 else _COLOURS["default"]), bool(char.bold)
        if runs and (runs[-1][2:] == look or char.data == " "):
            start, text, *_ = runs[-1]
            runs[-1] = (start, text + char.data, *runs[-1][2:])
        else:
            runs.append((column, char.data, *look))
    stripped = [(start + len(text) - len(text.lstrip()), text.strip(), *look) for start, text, *look in runs]
    return [run for run in stripped if run[1]]  # type: ignore[misc]
