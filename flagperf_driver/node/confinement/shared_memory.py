"""Remove what a round's ranks left in memory that all processes of a host share: /dev/shm, and System V's segments.

Nothing tells who made it. Everything of this user that was made or changed since the round began is removed, unless a
living process uses it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Callable, Iterator, Mapping

FOLDER = "/dev/shm"  # noqa: S108 - shared by all processes of a host
_REMOVE, _LAST_PID = 0, 11  # IPC_RMID, GETPID
_libc = ctypes.CDLL(None, use_errno=True)


def remove(since_ns: int, folder: str = FOLDER) -> None:
    """Remove all that this user's processes left since this time, by the clock of files."""
    left = [path for path in _entries(folder) if _since(path) >= since_ns]
    if left:
        used = _paths_in_use(folder)
        for path in left:
            if not any(name == path or name.startswith(f"{path}/") for name in used):
                _remove_file(path)
    for kind, remove_object in _SYSTEM_V.items():
        for row in _table(kind):
            if row["uid"] == os.geteuid() and row["ctime"] >= since_ns // 1_000_000_000:
                remove_object(row)


def _entries(folder: str) -> Iterator[str]:
    """Yield the entries of this user."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    yield entry.path


def _since(path: str) -> int:
    """Return when the file, or anything in the folder, was last changed; no process can set that time."""
    times = [os.lstat(path).st_ctime_ns]
    for parent, folders, names in os.walk(path):
        for name in (*folders, *names):
            with suppress(OSError):
                times.append(Path(parent, name).lstat().st_ctime_ns)
    return max(times)


def _remove_file(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108
        return
    shutil.rmtree(path, ignore_errors=True)


def _paths_in_use(folder: str) -> set[str]:
    """Return the files of the folder that any process has open or mapped; only root sees those of other users."""
    used: set[str] = set()
    prefix = f"{folder}/"
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with suppress(OSError):
                lines = Path("/proc", name, "maps").read_text("utf-8", "surrogateescape").splitlines()
                used.update(line[line.index(prefix) :] for line in lines if prefix in line)
                for handle in os.listdir(f"/proc/{name}/fd"):  # noqa: PTH208
                    with suppress(OSError):
                        target = os.readlink(f"/proc/{name}/fd/{handle}")
                        if target.startswith(prefix):
                            used.add(target)
    return used


# -- System V ----------------------------------------------------------------------------------------------------


def _table(kind: str) -> Iterator[Mapping[str, int]]:
    try:
        head, *rows = Path("/proc/sysvipc", kind).read_text().splitlines()
    except (OSError, ValueError):
        return
    for row in rows:
        yield dict(zip(head.split(), map(int, row.split())))


def _remove_segment(row: Mapping[str, int]) -> None:
    if not row["nattch"] and not _lives(row["cpid"]):
        _libc.shmctl(row["shmid"], _REMOVE, None)


def _remove_queue(row: Mapping[str, int]) -> None:
    if not _lives(row["lspid"]) and not _lives(row["lrpid"]):
        _libc.msgctl(row["msqid"], _REMOVE, None)


def _remove_semaphores(row: Mapping[str, int]) -> None:
    if not any(_lives(_libc.semctl(row["semid"], number, _LAST_PID)) for number in range(row["nsems"])):
        _libc.semctl(row["semid"], 0, _REMOVE)


def _lives(pid: int) -> bool:
    return pid > 0 and Path("/proc", str(pid)).exists()


_SYSTEM_V: Mapping[str, Callable[[Mapping[str, int]], None]] = {
    "shm": _remove_segment,
    "msg": _remove_queue,
    "sem": _remove_semaphores,
}
