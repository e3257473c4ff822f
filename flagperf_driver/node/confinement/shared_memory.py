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
    left = {path: _within(path) for path in _entries(folder)}
    # No process can set the time of a change.
    left = {path: files for path, files in left.items() if any(file.st_ctime_ns >= since_ns for file in files)}
    if left:
        used = _inodes_in_use(folder)
        for path, files in left.items():
            if used.isdisjoint(file.st_ino for file in files):
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


def _within(path: str) -> list[os.stat_result]:
    """Return the status of a file, or of a folder and all in it."""
    inner = (f"{parent}/{name}" for parent, folders, names in os.walk(path) for name in (*folders, *names))
    found = []
    for name in (path, *inner):
        with suppress(OSError):
            found.append(os.lstat(name))
    return found


def _remove_file(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108
        return
    shutil.rmtree(path, ignore_errors=True)


def _inodes_in_use(folder: str) -> set[int]:
    """Return the files of the folder that any process has open or mapped; only root sees those of other users.

    A named semaphore is mapped by a name that it had only while it was made.
    """
    used: set[int] = set()
    prefix = f"{folder}/"
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with suppress(OSError):
                lines = Path("/proc", name, "maps").read_text("utf-8", "surrogateescape").splitlines()
                used.update(int(line.split(maxsplit=5)[4]) for line in lines if prefix in line)
                for handle in os.listdir(f"/proc/{name}/fd"):  # noqa: PTH208
                    with suppress(OSError):
                        if os.readlink(f"/proc/{name}/fd/{handle}").startswith(prefix):
                            used.add(os.stat(f"/proc/{name}/fd/{handle}").st_ino)  # noqa: PTH116
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
