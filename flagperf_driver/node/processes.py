"""The processes of a host: each rank leads a session of its own, which is ended to the last process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def spawn(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, log: Path, cpus: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A rank, its output straight in its log; the kernel kills it when this process's calling thread dies."""
    parent = os.getpid()

    def settle() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)
        if cpus:
            with suppress(OSError):  # a core that was taken away meanwhile is no reason not to run
                os.sched_setaffinity(0, cpus)

    with log.open("ab", buffering=0) as out:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=settle,  # safe: this process has one thread
        )


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, so that none can slip away by a double fork."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def has_ended(pid: int) -> bool:
    """Whether the child has ended; it is left unreaped, so that its session keeps its number."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def signal_session(session: int, number: int, only_catchers: bool = False) -> int:
    """Send the signal to each living process of the session, or to those only that handle it."""
    members = [pid for pid in session_members(session) if not only_catchers or _catches(pid, number)]
    for pid in members:
        _kill(pid, number)
    return len(members)


def kill_session(session: int) -> None:
    """Leave nothing of the session; processes that fork while they are being killed are found again."""
    for _ in range(20):
        if not signal_session(session, signal.SIGKILL):
            return


def kill_children(besides: int) -> None:
    """End whatever else this process has come to be the parent of."""
    for _ in range(20):
        orphans = [pid for pid, parent, _, _ in _processes() if parent == os.getpid() and pid != besides]
        if not orphans:
            return
        for pid in orphans:
            _kill(pid, signal.SIGKILL)
            _reap(pid)


def session_members(session: int) -> list[int]:
    return [pid for pid, _, member, state in _processes() if member == session and state not in "ZX"]


def _processes() -> Iterator[tuple[int, int, int, str]]:
    """Pid, parent, session and state of everything that runs."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - a Path each is slow with thousands of them
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if len(fields) > 3:
                yield int(name), int(fields[1]), int(fields[3]), fields[0].decode()


def _catches(pid: int, number: int) -> bool:
    try:
        status = Path("/proc", str(pid), "status").read_text()
    except OSError:
        return False
    masks = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


class Janitor:
    """A child that does one thing: when this process dies without a word, it kills the sessions told to it.

    The kernel's parent-death signal reaches a rank only, not the rank's own children.
    """

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            _wait_and_clean(reader)
        os.close(reader)

    def watch(self, session: int) -> None:
        self._tell(f"+{session}\n")

    def forget(self, session: int) -> None:
        self._tell(f"-{session}\n")

    def dismiss(self) -> None:
        os.close(self._writer)
        _reap(self.pid)

    def _tell(self, word: str) -> None:
        with suppress(BrokenPipeError):
            os.write(self._writer, word.encode())


def _wait_and_clean(reader: int) -> None:
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # a held pipe would hide our parent's death from the controller
            os.dup2(null, standard)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with os.fdopen(reader, "rb") as words:
            sessions = _follow(words)
        for session in sessions:
            kill_session(session)
    finally:
        os._exit(0)


def _follow(words: Iterator[bytes]) -> set[int]:
    sessions: set[int] = set()
    for word in words:
        number = int(word[1:])
        sessions.add(number) if word.startswith(b"+") else sessions.discard(number)
    return sessions
