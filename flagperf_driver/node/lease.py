"""Devices for one holder at a time among all users of a machine: locks that the kernel frees with the holder.

A case that takes the whole machine locks the host exclusively; one that takes devices shares the host and
locks each device. An attempt takes all or nothing and never waits, so nobody waits while holding devices.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import stat
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

Owner = Mapping[str, Any]


class LeaseError(RuntimeError):
    """Devices were not to be had; the text says why, or who holds them."""


class Lease(NamedTuple):
    """Devices held; they stay so as long as any process has ``fds`` open."""

    devices: tuple[int, ...]
    fds: tuple[int, ...]

    def release(self) -> None:
        # Not unlocked: where somebody still ends the ranks, the devices are free when that is done.
        for fd in self.fds:
            os.close(fd)


def owner(**more: Any) -> dict[str, Any]:
    """Who asks, for those who will have to wait: ``more`` names the run and the case."""
    return {"pid": os.getpid(), "user": _user(), "since": time.strftime("%H:%M:%S"), **more}


def take(
    wanted: int,
    *,
    candidates: Sequence[int],
    whole_host: bool,
    owner: Owner,
    directory: Path | None = None,
) -> Lease | None:
    """One attempt at ``wanted`` of the ``candidates``; it gives back what it got unless it got all."""
    if wanted > len(candidates):
        raise LeaseError(f"{wanted} devices are wanted and there are {len(candidates)}: {list(candidates)}")
    folder = _folder(directory or default_directory())
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
                fd = lock(f"device{device}", fcntl.LOCK_EX) if len(fds) < wanted else None
                if fd is not None:
                    fds[device] = fd
        if len(fds) < wanted:
            return None
        for fd in set(fds.values()):
            _write(fd, {**owner, "agent": os.getpid()})
        for fd in {host, *fds.values()}:
            os.utime(fd)  # who tidies the folder up takes a lock of long ago for one that nobody holds
        given_back.pop_all()
        return Lease(tuple(fds), tuple(sorted({host, *fds.values()})))


def default_directory() -> Path:
    """One folder for all users of the machine: not in TMPDIR, which each may set differently."""
    return Path(os.environ.get("FLAGPERF_LEASES") or "/tmp/pytest-flagperf-leases")  # noqa: S108 - see _folder


def holders(folder: Path) -> list[str]:
    """Who holds something now, a sentence each."""
    devices = [path for path in sorted(folder.glob("device*.lock")) if _is_held(path)]
    host = [path for path in [folder / "host.lock"] if not devices and _is_held(path)]
    return [f"{path.stem} is held by {_describe(_read(path))}" for path in devices + host]


def open_lock(folder: Path, name: str) -> int:
    """The file of a lock in the folder, open and not locked."""
    return _open(_folder(folder) / f"{name}.lock")


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
    except (OSError, LeaseError):
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
    agent = owner.get("agent")
    if isinstance(agent, int) and not Path(f"/proc/{agent}").exists():
        words.append("whose agent has ended while its ranks have not yet")
    return ", ".join(words)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
