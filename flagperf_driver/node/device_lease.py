"""Lease devices exclusively among all users of a machine, with file locks that the kernel frees when the holder ends.

A case that uses the whole machine locks the host exclusively. A case that uses some devices locks the host shared and
each device exclusively. An attempt takes all devices or none and never waits, so that no deadlock is possible.
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from flagperf_driver.node.users import user_name

with suppress(ImportError):  # Windows imports this module for its names, but runs no rounds
    import fcntl

Owner = Mapping[str, Any]


class LeaseError(RuntimeError):
    """The devices cannot be leased; the text is the reason."""


class Lease(NamedTuple):
    """Leased devices. The lease lasts as long as any process has ``fds`` open."""

    devices: tuple[int, ...]
    fds: tuple[int, ...]

    def release(self) -> None:
        # Closed but not unlocked: the reaper may still hold the locks while it ends the ranks.
        for fd in self.fds:
            os.close(fd)


def owner(**more: Any) -> dict[str, Any]:
    """Describe the holder to others who wait for the devices; ``more`` names the run and the case."""
    return {"pid": os.getpid(), "user": user_name(os.getuid()), "since": time.strftime("%H:%M:%S"), **more}


def take(
    count: int,
    *,
    candidates: Sequence[int],
    whole_host: bool,
    owner: Owner,
    directory: Path | None = None,
) -> Lease | None:
    """Try once to lease ``count`` of the ``candidates``; return None if not all can be leased now."""
    if count > len(candidates):
        raise LeaseError(f"needs {count} devices, {len(candidates)} available: {list(candidates)}")
    folder = _folder(directory or default_directory())
    with ExitStack() as release_on_failure:

        def lock(name: str, how: int) -> int | None:
            fd = _lock(folder / f"{name}.lock", how)
            if fd is not None:
                release_on_failure.callback(os.close, fd)
            return fd

        host = lock("host", fcntl.LOCK_EX if whole_host else fcntl.LOCK_SH)
        if host is None:
            return None
        if whole_host:
            fds = dict.fromkeys(candidates[:count], host)
        else:
            fds = {}
            for device in candidates:
                fd = lock(f"device{device}", fcntl.LOCK_EX) if len(fds) < count else None
                if fd is not None:
                    fds[device] = fd
        if len(fds) < count:
            return None
        for fd in set(fds.values()):
            _write(fd, {**owner, "agent": os.getpid()})
        for fd in {host, *fds.values()}:
            os.utime(fd)  # a cleaner of /tmp may delete old files
        release_on_failure.pop_all()
        return Lease(tuple(fds), tuple(sorted({host, *fds.values()})))


def default_directory() -> Path:
    """Return the folder for all users of the machine: not in TMPDIR, which users may set differently."""
    return Path(os.environ.get("FLAGPERF_LEASES") or "/tmp/pytest-flagperf-leases")  # noqa: S108 - see _folder


def holders(folder: Path) -> list[str]:
    """Return a sentence for each lock that is held now."""
    devices = [path for path in sorted(folder.glob("device*.lock")) if _is_held(path)]
    host = [path for path in [folder / "host.lock"] if not devices and _is_held(path)]
    return [f"{path.stem} is held by {_describe(_read(path))}" for path in devices + host]


def open_lock(folder: Path, name: str) -> int:
    """Open the file of a lock in the folder without locking it."""
    return _open(_folder(folder) / f"{name}.lock")


def _lock(path: Path, how: int) -> int | None:
    """Open and lock the file; return None if another process holds the lock."""
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
    """Create the folder of the locks: every user may write in it, and it must not be a link."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        path.chmod(0o1777)
    except FileExistsError:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise LeaseError(
                f"{path} must be a folder for the locks of leased devices, but is not a folder; remove it, "
                "or set FLAGPERF_LEASES to another folder, the same for all users of the machine"
            ) from None
    return path


def _open(path: Path) -> int:
    # Try without O_CREAT first: in a sticky folder Linux refuses that flag for a file of another user.
    # O_NONBLOCK: opening a named pipe must not block.
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
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(fd)
        raise LeaseError(f"{path}: cannot be used as a lock: expected a regular file without other hard links")
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
        return "an unknown process"
    facts = [f"{key} {value}" for key, value in owner.items()]
    agent = owner.get("agent")
    if isinstance(agent, int) and not Path(f"/proc/{agent}").exists():
        facts.append("whose agent has ended but whose ranks are still running")
    return ", ".join(facts)
