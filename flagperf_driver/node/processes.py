"""Start, signal and kill processes. Each rank leads its own session, which is killed to the last process."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

from flagperf_driver.node.namespaces import detach

if TYPE_CHECKING:
    from flagperf_driver.node.confinement import ConfinedThread

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# If memory runs out, the kernel must kill a rank and not the agent, which reports the cause.
_OOM_SCORE = "500"
_MOST_FILES = 1 << 16
_LOG_DIR, _RANK = b"FLAGPERF_LOG_DIR=", b"RANK="
_libc = ctypes.CDLL(None, use_errno=True)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    log: Path,
    cpus: Sequence[int] = (),
    confined: ConfinedThread | None = None,
) -> subprocess.Popen[bytes]:
    """Start a rank with its output in its log; the kernel kills the rank when the thread that started it ends."""
    parent, namespaces = os.getpid(), confined and confined.namespaces

    def set_up() -> None:
        if namespaces:
            namespaces.enter(cwd)
        os.setsid()
        die_with(parent)
        if cpus:
            with suppress(OSError):  # run anyway if a core is not available any more
                os.sched_setaffinity(0, cpus)

    with log.open("ab", buffering=0) as out:

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=set_up,  # safe: no other thread of this process runs
            )

        started = partial(namespaces.follow, start) if namespaces else start
        child: subprocess.Popen[bytes] = started() if confined is None else confined.call(started)
    with suppress(OSError):
        Path(f"/proc/{child.pid}/oom_score_adj").write_text(_OOM_SCORE)
    return child


def spawn_problem(error: Exception, program: str) -> str:
    """Return why a program was not started, and the file that the error is about."""
    reason = getattr(error, "strerror", None) or str(error)
    return "{}: {}".format(getattr(error, "filename", None) or program, reason)


def allow_descriptors(needed: int = _MOST_FILES) -> int:
    """Let this process and its children open so many files; return how many of them they may open.

    Rank 0 has a connection to each rank of the round, which may be thousands.
    """
    import resource  # Windows lacks it, where the controller imports this module, too

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        return allowed
    return soft


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent, ``parent``, dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() not in (parent, 0):  # the parent died before the call; 0: it is in another namespace
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants, so that none can escape by a double fork."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def has_ended(pid: int) -> bool:
    """Return True if the child has ended. It is not reaped, so that the number of its session is not used again."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def signal_session(session: int, number: int, only_catchers: bool = False) -> int:
    """Send the signal to each living process of the session, or only to those that have a handler for it."""
    members = [pid for pid in session_members(session) if not only_catchers or _catches(pid, number)]
    for pid in members:
        _kill(pid, number)
    return len(members)


def kill_session(session: int) -> None:
    """Kill all processes of the session; repeat this for processes that fork meanwhile."""
    for _ in range(20):
        if not signal_session(session, signal.SIGKILL):
            return


def kill_children(except_pid: int = 0, timeout_s: float = 5.0, *, of_it: bool = False) -> None:
    """Kill all other children, including adopted ones; do not wait longer for those that are stuck in the kernel.

    ``of_it`` also kills the children of the process that stays.
    """
    deadline = time.monotonic() + timeout_s
    parents = (os.getpid(), except_pid) if of_it else (os.getpid(),)
    while True:
        orphans = [
            pid
            for pid, stat in _processes()
            if stat.parent in parents and pid != except_pid and (stat.parent == os.getpid() or stat.state not in "ZX")
        ]
        if not orphans or time.monotonic() > deadline:
            return
        for pid in orphans:
            _kill(pid, signal.SIGKILL)
        time.sleep(0.002)
        for pid in orphans:
            _reap(pid, os.WNOHANG)


def log_dir_of(pid: int, proc: str = "/proc") -> str | None:
    """Return the log folder of the process's round; None without a round, or if its environment is not readable."""
    return _variable(_LOG_DIR, pid, proc)


def rank_of(pid: int, folder: str, proc: str = "/proc") -> str | None:
    """Return the rank from the environment of a process of the round, or of a child of one; else None."""
    return _variable(_RANK, pid, proc) if log_dir_of(pid, proc) == folder else None


def _variable(start: bytes, pid: int, proc: str) -> str | None:
    try:
        variables = Path(proc, str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((os.fsdecode(text[len(start) :]) for text in variables if text.startswith(start)), None)


def session_members(session: int) -> list[int]:
    return [pid for pid, stat in _processes() if stat.session == session and stat.state not in "ZX"]


def _processes() -> Iterator[tuple[int, ProcessStat]]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - a Path each is slow with thousands of them
        if name.isdigit() and (stat := process_stat(int(name))) is not None:
            yield int(name), stat


class ProcessStat(NamedTuple):
    """What the kernel says of a process."""

    name: str
    state: str
    parent: int
    session: int
    started: str
    seconds: float
    """CPU time."""
    children_s: float
    """CPU time of its ended children, for which it has waited."""


def process_stat(pid: int, proc: str = "/proc") -> ProcessStat | None:
    """Return what the kernel says of a process; None if it has ended."""
    head, _, rest = read_bytes(f"{proc}/{pid}/stat").rpartition(b")")
    words = rest.decode().split()
    if len(words) < 20:
        return None
    own, children = ((int(words[at]) + int(words[at + 1])) / os.sysconf("SC_CLK_TCK") for at in (11, 13))
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return ProcessStat(name, words[0], int(words[1]), int(words[3]), words[19], own, children)


def read_bytes(path: str) -> bytes:
    """Read a file without a file object, which is faster; return b"" if the file is missing or not readable."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(handle, 4096)
        finally:
            os.close(handle)
    except OSError:
        return b""


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
    """A long call that runs in a child process, so that this process can continue meanwhile.

    The child is a fork of this process, which must have a single thread. The result must be JSON of at most 64 KiB.
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

    def result(self) -> Any:
        """Return the call's value; raise its error as RuntimeError. Call this once, after the end."""
        with os.fdopen(self._reader, "rb") as pipe:
            os.waitpid(self.pid, 0)
            result = json.loads(pipe.read() or b'{"error": "the child process was killed"}')
        if "error" in result:
            raise RuntimeError(result["error"])
        return result["value"]


def _run_task(call: Callable[[], Any], writer: int, parent: int) -> None:
    try:
        die_with(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            result = {"value": call()}
        except Exception as error:  # ``result`` raises it in the parent
            result = {"error": str(error) or type(error).__name__}
        os.write(writer, json.dumps(result).encode())
    finally:
        os._exit(0)


class Reaper:
    """A child process that kills the guarded sessions if this process dies before ``dismiss``.

    The kernel's parent-death signal reaches only the ranks, not their children. The reaper holds the locks that this
    process had when it was started, until all is killed, and no other files.
    """

    def __init__(self, locks: Sequence[int] = ()) -> None:
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _wait_and_clean(reader, locks)
        os.close(reader)

    def guard(self, session: int) -> None:
        self._send("session", session)

    def forget(self, session: int) -> None:
        self._send("forget", session)

    def guard_container(self, socket: str, container: str) -> None:
        """Remove the container, too, if this process dies before ``dismiss``."""
        self._send("container", (socket, container))

    def guard_folder(self, folder: Path) -> None:
        """Remove the folder, too, if this process dies before ``dismiss``."""
        self._send("folder", str(folder))

    def guard_shared_memory(self, since_ns: int) -> None:
        """Remove what the sessions left in shared memory since then, too, if this process dies before ``dismiss``."""
        self._send("memory", since_ns)

    def dismiss(self) -> None:
        """End the reaper without killing anything."""
        self._send("dismiss")
        os.close(self._writer)
        _reap(self.pid)

    def _send(self, kind: str, value: object = None) -> None:
        with suppress(BrokenPipeError):
            os.write(self._writer, json.dumps([kind, value]).encode() + b"\n")


def _wait_and_clean(reader: int, locks: Sequence[int]) -> None:
    try:
        detach(keep={reader, *locks})
        with os.fdopen(reader, "rb") as lines:
            guarded = _read_guarded(lines)
        for session in guarded["session"]:
            kill_session(session)
        for socket, container in guarded["container"]:
            remove_container(socket, container)
        from flagperf_driver.node.confinement import shared_memory
        from flagperf_driver.node.temporary import remove_tree

        for folder in guarded["folder"]:
            remove_tree(Path(folder))
        for since_ns in guarded["memory"]:
            shared_memory.remove(since_ns)
    finally:
        os._exit(0)


def _read_guarded(lines: Iterable[bytes]) -> Mapping[str, list[Any]]:
    """Read what is guarded, by its kind, until the pipe is closed; nothing is after a dismissal."""
    guarded: defaultdict[str, list[Any]] = defaultdict(list)
    for kind, value in map(json.loads, lines):
        if kind == "dismiss":
            guarded.clear()
        elif kind == "forget":
            guarded["session"].remove(value)
        else:
            guarded[kind].append(value)
    return guarded


def remove_container(socket: str, container: str) -> None:
    """Try to remove a container of a Docker engine."""
    from flagperf_driver.node.docker_engine import DockerEngine, EngineError

    with suppress(EngineError):
        DockerEngine(socket).remove(container, force=True)
