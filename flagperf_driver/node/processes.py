"""The processes of a host: each rank leads a session of its own, which is ended to the last process."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Where memory runs out the kernel takes a rank, whose end is told with its cause, and not the one who tells.
_FIRST_TO_GO = "500"
_LOG_DIR, _RANK = b"FLAGPERF_LOG_DIR=", b"RANK="
_libc = ctypes.CDLL(None, use_errno=True)


def spawn(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, log: Path, cpus: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A rank, its output straight in its log; the kernel kills it when this process's calling thread dies."""
    parent = os.getpid()

    def settle() -> None:
        die_with(parent)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
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


def die_with(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, whose child it is, dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


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


def kill_children(besides: int, patience_s: float = 5.0) -> None:
    """End whatever else this process has come to be the parent of; what is stuck in the kernel is not waited for."""
    deadline = time.monotonic() + patience_s
    while True:
        orphans = [pid for pid, parent, _, _ in _processes() if parent == os.getpid() and pid != besides]
        if not orphans or time.monotonic() > deadline:
            return
        for pid in orphans:
            _kill(pid, signal.SIGKILL)
        time.sleep(0.002)
        for pid in orphans:
            _reap(pid, os.WNOHANG)


def log_dir_of(pid: int, proc: str = "/proc") -> str | None:
    """The folder of the round that the process belongs to; None if to no round, or if it is not ours to see."""
    return _variable(_LOG_DIR, pid, proc)


def rank_of(pid: int, folder: str, proc: str = "/proc") -> str | None:
    """The number of the rank in a process's environment, which its children have too; None of any other process."""
    return _variable(_RANK, pid, proc) if log_dir_of(pid, proc) == folder else None


def _variable(start: bytes, pid: int, proc: str) -> str | None:
    try:
        variables = Path(proc, str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((os.fsdecode(text[len(start) :]) for text in variables if text.startswith(start)), None)


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


def _reap(pid: int, how: int = 0) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, how)


class BackgroundTask:
    """A call that may take long, made by a child, so that this process goes on meanwhile.

    The child is a copy of this process, which must have one thread. The answer must be JSON of at most 64 KiB.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        parent = os.getpid()
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run_task(call, writer, parent)
        os.close(writer)

    def ended(self) -> bool:
        return has_ended(self.pid)

    def answer(self) -> Any:
        """What the call returned; RuntimeError with what it raised. To be asked once, after the end."""
        with os.fdopen(self._reader, "rb") as told:
            os.waitpid(self.pid, 0)
            answer = json.loads(told.read() or b'{"error": "it was killed"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]


def _run_task(call: Callable[[], Any], writer: int, parent: int) -> None:
    try:
        die_with(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            answer = {"value": call()}
        except Exception as error:  # told to the parent, as a call's would be
            answer = {"error": str(error) or type(error).__name__}
        os.write(writer, json.dumps(answer).encode())
    finally:
        os._exit(0)


class Reaper:
    """A child that does one thing: when this process dies without a word, it kills the sessions told to it.

    The kernel's parent-death signal reaches a rank only, not the rank's own children. Until it is done it holds
    the locks that this process had when it was born, and nothing else.
    """

    def __init__(self, locks: Sequence[int] = ()) -> None:
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _wait_and_clean(reader, locks)
        os.close(reader)

    def watch(self, session: int) -> None:
        self._tell(f"+{session}\n")

    def forget(self, session: int) -> None:
        self._tell(f"-{session}\n")

    def watch_container(self, socket: str, container: str) -> None:
        """It is removed then."""
        self._tell("!" + json.dumps([socket, container]) + "\n")

    def watch_folder(self, folder: Path) -> None:
        """Remove the folder, too, when this process dies without a word."""
        self._tell("/" + json.dumps(str(folder)) + "\n")

    def dismiss(self) -> None:
        """All is in order: nothing is to be killed."""
        self._tell(".\n")
        os.close(self._writer)
        _reap(self.pid)

    def _tell(self, word: str) -> None:
        with suppress(BrokenPipeError):
            os.write(self._writer, word.encode())


def _wait_and_clean(reader: int, locks: Sequence[int]) -> None:
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        _let_go(keep={reader, *locks})
        with os.fdopen(reader, "rb") as words:
            sessions, containers, folders = _follow(words)
        for session in sessions:
            kill_session(session)
        for socket, container in containers:
            _remove(socket, container)
        for folder in folders:
            _remove_folder(folder)
    finally:
        os._exit(0)


def _let_go(keep: set[int]) -> None:
    """Close whatever else was inherited: a held pipe would hide our parent's death from the controller."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        if int(name) > 2 and int(name) not in keep:
            with suppress(OSError):
                os.close(int(name))


def _follow(words: Iterator[bytes]) -> tuple[set[int], list[list[str]], list[str]]:
    """Which sessions and containers are to be ended when the words have ended, and which folders to be removed."""
    sessions: set[int] = set()
    containers: list[list[str]] = []
    folders: list[str] = []
    for word in words:
        kind, rest = word[:1], word[1:]
        if kind == b"+":
            sessions.add(int(rest))
        elif kind == b"-":
            sessions.discard(int(rest))
        elif kind == b"!":
            containers.append(json.loads(rest))
        elif kind == b"/":
            folders.append(json.loads(rest))
        else:
            return set(), [], []
    return sessions, containers, folders


def _remove(socket: str, container: str) -> None:
    from flagperf_driver.node.docker_engine import DockerEngine, EngineError

    with suppress(EngineError):
        DockerEngine(socket).remove(container, force=True)


def _remove_folder(folder: str) -> None:
    from flagperf_driver.node.temporary import remove_tree

    remove_tree(Path(folder))
