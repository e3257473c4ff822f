"""Devices for one holder at a time among all users of a machine: locks that the kernel frees with the holder.

A case that takes the whole machine locks the host exclusively; one that takes devices shares the host and
locks each device. Nobody waits while holding devices, so nobody waits for ever on another who waits; and
those who wait stand in line, so a case that wants the whole machine is not passed by small ones for ever.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

Owner = Mapping[str, Any]
OnWait = Callable[[str], None]

_POLL_S = 0.1
_REPORT_EVERY_S = 10.0


class LeaseError(RuntimeError):
    """Devices were not to be had; the text names who holds them."""


@dataclass(frozen=True)
class Lease:
    """Devices held; they stay so as long as any process has ``fds`` open."""

    devices: tuple[int, ...]
    fds: tuple[int, ...]


def owner(**more: Any) -> dict[str, Any]:
    """Who asks, for those who will have to wait: ``more`` names the run and the case."""
    return {"pid": os.getpid(), "user": _user(), "since": time.strftime("%H:%M:%S"), **more}


@contextmanager
def lease(
    wanted: int,
    *,
    candidates: Sequence[int],
    whole_host: bool,
    owner: Owner,
    on_wait: OnWait = lambda _: None,
    timeout_s: float = 24 * 3600.0,
    directory: Path | None = None,
) -> Iterator[Lease]:
    """``wanted`` of the ``candidates``, all or none, for as long as the body runs and its agent lives."""
    if wanted > len(candidates):
        raise LeaseError(f"{wanted} devices are wanted and there are {len(candidates)}: {list(candidates)}")
    folder = _folder(directory or default_directory())
    wait = partial(_wait, folder=folder, deadline=time.monotonic() + timeout_s, on_wait=on_wait)
    line = wait(lambda: _lock(folder / "line.lock", fcntl.LOCK_EX))
    try:
        held = wait(lambda: _take(folder, wanted, candidates, whole_host, owner))
    finally:
        os.close(line)
    try:
        yield held
    finally:
        # Not unlocked: where an agent still ends its ranks, the devices are free when it is done.
        for fd in held.fds:
            os.close(fd)


def default_directory() -> Path:
    """One folder for all users of the machine: not in TMPDIR, which each may set differently."""
    return Path(os.environ.get("FLAGPERF_LEASES") or "/tmp/pytest-flagperf-leases")  # noqa: S108 - see _folder


def holders(folder: Path) -> list[str]:
    """Who holds something now, a sentence each."""
    devices = [path for path in sorted(folder.glob("device*.lock")) if _is_held(path)]
    host = [path for path in [folder / "host.lock"] if not devices and _is_held(path)]
    return [f"{path.stem} is held by {_describe(_read(path))}" for path in devices + host]


def _wait(attempt: Callable[[], T | None], *, folder: Path, deadline: float, on_wait: OnWait) -> T:
    report_at = time.monotonic()
    while (got := attempt()) is None:
        now = time.monotonic()
        if now >= deadline:
            raise LeaseError("no devices in time: " + _sentence(folder))
        if now >= report_at:
            on_wait(_sentence(folder))
            report_at = now + _REPORT_EVERY_S
        time.sleep(min(_POLL_S, max(0.0, deadline - now)))
    return got


def _sentence(folder: Path) -> str:
    return "; ".join(holders(folder)) or "others stand in line before us"


def _take(folder: Path, wanted: int, candidates: Sequence[int], whole_host: bool, owner: Owner) -> Lease | None:
    """One attempt, which gives back what it got unless it got all."""
    with ExitStack() as given_back:

        def lock(name: str, how: int) -> int | None:
            fd = _lock(folder / f"{name}.lock", how)
            if fd is not None:
                given_back.callback(os.close, fd)
            return fd

        host = lock("host", fcntl.LOCK_EX if whole_host else fcntl.LOCK_SH)
        if host is None:
            return None
        if whole_host:
            fds = dict.fromkeys(candidates[:wanted], host)
        else:
            fds = {}
            for device in candidates:
                if len(fds) < wanted and (fd := lock(f"device{device}", fcntl.LOCK_EX)) is not None:
                    fds[device] = fd
        if len(fds) < wanted:
            return None
        for fd in set(fds.values()):
            _write(fd, owner)
        given_back.pop_all()
        return Lease(tuple(fds), tuple(sorted({host, *fds.values()})))


def _lock(path: Path, how: int) -> int | None:
    """The open file, locked; None if another holds it."""
    fd = _open(path)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd


def _is_held(path: Path) -> bool:
    try:
        fd = _lock(path, fcntl.LOCK_SH)
    except OSError:
        return False
    if fd is not None:
        os.close(fd)
    return fd is None


def _folder(path: Path) -> Path:
    """The folder of the locks, anyone's to write in and nobody's to put a link in the place of."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        path.chmod(0o1777)
    except FileExistsError:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise LeaseError(
                f"{path} must be a folder, for the locks of leased devices, and is not; remove it, "
                "or set FLAGPERF_LEASES to the folder that all users of the machine shall use"
            ) from None
    return path


def _open(path: Path) -> int:
    # Without O_CREAT first: in a sticky folder Linux refuses that flag for a file of another user.
    # O_NONBLOCK, so that a pipe somebody put there cannot hold us.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            fd = os.open(path, flags)
            break
        except FileNotFoundError:
            with suppress(FileExistsError):
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(fd, 0o666)  # whatever the umask
                break
        except OSError as error:
            raise LeaseError(f"{path}: cannot be used as a lock: {error.strerror}") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise LeaseError(f"{path}: cannot be used as a lock: not a plain file of one name")
    return fd


def _write(fd: int, owner: Owner) -> None:
    record = json.dumps(owner).encode()
    os.pwrite(fd, record, 0)
    os.ftruncate(fd, len(record))


def _read(path: Path) -> Owner:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _describe(owner: Owner) -> str:
    if not owner:
        return "somebody who left no word"
    words = [f"{key} {value}" for key, value in owner.items()]
    pid = owner.get("pid")
    if isinstance(pid, int) and not Path(f"/proc/{pid}").exists():
        words.append("a process that has ended while its ranks have not yet")
    return ", ".join(words)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())
