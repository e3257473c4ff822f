"""The process of a server: started on a free port, awaited until it answers, and ended with its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self

from flagperf_driver import ports

_LAST_LINES, _LONGEST_WORDS = 5, 500
_TRACEBACK = ("Traceback (most recent call last)", 'File "')
_POLL_S, _ANSWER_S, _END_S = 0.1, 5.0, 10.0


class ServerError(RuntimeError):
    """The server did not start, or ended; the message has its last words."""


class ServerProcess:
    """A server that this process started; a context that ends it."""

    def __init__(self, command: Callable[[int], Sequence[str]], log: Path) -> None:
        """Start the program that ``command`` returns for a port; it writes its output to ``log``."""
        self.port, self._log, self._begin = ports.free_port(), log, time.perf_counter()
        argv = [sys.executable, "-m", "common.serving.child", str(os.getpid()), *command(self.port)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, timeout_s: float, beat: Callable[[], None] = lambda: None) -> float:
        """Return the seconds from the start until the server answers; raise ServerError if it does not."""
        while True:
            self.check("before it was ready")
            beat()
            seconds = time.perf_counter() - self._begin
            if self._answers():
                return seconds
            if seconds > timeout_s:
                raise ServerError(f"the server was not ready after {timeout_s:g} s; {self.last_words()}")
            time.sleep(_POLL_S)

    def check(self, when: str) -> None:
        """Raise ServerError if the process has ended."""
        code = self._process.poll()
        if code is not None:
            how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
            raise ServerError(f"the server ended with {how} {when}; {self.last_words()}")

    def last_words(self) -> str:
        """Return the last lines of the server's output, without the places of a traceback."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines() if self._log.exists() else []
        said = [text for line in lines if (text := line.strip()) and not text.startswith(_TRACEBACK)]
        words = " | ".join(said[-_LAST_LINES:])
        return f"its last words: {words[-_LONGEST_WORDS:]}" if words else "it printed nothing"

    def peak_memory(self) -> int:
        """Return the largest memory of the server and its children on the host, in bytes; 0 if unknown."""
        return sum(_peak(pid) for pid in self._processes())

    def stop(self) -> None:
        """End the server, which may end its children and remove what they share, and then what is left of them."""
        processes = [*self._processes()]
        for number, pids in ((signal.SIGTERM, processes[:1]), (signal.SIGKILL, processes)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _processes(self) -> Iterator[int]:
        """Yield the ids of the server and of all processes below it."""
        children: dict[int, list[int]] = {}
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(file.read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(file.parent.name))
        below = [] if self._process.poll() is not None else [self._process.pid]
        while below:
            pid = below.pop()
            yield pid
            below += children.get(pid, [])


class NoServer(ServerProcess):
    """What a rank has instead of a server, if the first rank's server has the devices of all ranks."""

    url = ""

    def __init__(self, command: Callable[[int], Sequence[str]], log: Path) -> None: ...

    def wait_ready(self, timeout_s: float, beat: Callable[[], None] = lambda: None) -> float:  # noqa: ARG002
        return 0.0

    def check(self, when: str) -> None: ...

    def stop(self) -> None: ...


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 0
