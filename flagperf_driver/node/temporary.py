"""The temporary folder of a round's ranks: their TMPDIR, for one round alone, which goes with the round.

It does not lie in the log folder: the path of a socket has at most 107 bytes, and logs are collected from there.
The agent holds a lock on its folder, so that a folder without a lock is what a dead agent left.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Mapping

from flagperf_driver.node.folder import FolderError, own_scratch, scratch

SHORT = "/tmp"  # noqa: S108 - the folder in there is private
_LONGEST_SOCKET = 107
_SOCKET_NAME = 36  # what libraries add to it: /pymp-xxxxxxxx/listener-xxxxxxxx, /torch-shm-dir-xxxxxx/manager.sock
_FOLDER = "tmp"
_COMPILED = "compiled"


class Temporary:
    """One round's folder, from its creation to its removal."""

    def __init__(self) -> None:
        self._scratch = _short_scratch()
        try:
            own_scratch(self._scratch)
            self.path, self._lock = _make(self._scratch / _FOLDER)
        except OSError as error:
            raise FolderError(
                f"the ranks' temporary folder cannot be created in {self._scratch}: {error.strerror}; free space "
                "there, or set TMPDIR in the host's environment to another folder"
            ) from error

    @property
    def env(self) -> Mapping[str, str]:
        """What ranks get to know: their own folder, and the one where compiled code is kept for later rounds."""
        return {"TMPDIR": str(self.path), "FLAGPERF_COMPILED": str(self._scratch / _COMPILED)}

    def remove(self) -> bool:
        """Remove the folder with all that is in it; whether it is gone."""
        remove_tree(self.path)
        os.close(self._lock)
        return not self.path.exists()


def remove_leftovers() -> Iterator[str]:
    """Remove the folders that dead agents of this user left; a sentence for each."""
    for folder in sorted(_short_scratch().glob(f"{_FOLDER}/*")):
        if _remove_if_free(folder):
            yield f"temporary files in {folder}"


def remove_tree(folder: Path) -> None:
    """Remove a folder, even one with folders in it that forbid their owner to write."""
    import shutil  # not a thing that every agent needs before its first word

    with suppress(OSError):
        for parent, names, _ in os.walk(str(folder)):
            for name in names:
                path = Path(parent, name)
                if stat.S_ISDIR(path.lstat().st_mode):
                    path.chmod(0o700)
    shutil.rmtree(str(folder), ignore_errors=True)


def _short_scratch() -> Path:
    """The user's folder in TMPDIR, or in /tmp where a rank could open no socket, as each data loader does."""
    own = scratch()
    longest = os.fsencode(str(own / _FOLDER / "r12345678"))
    return own if len(longest) + _SOCKET_NAME <= _LONGEST_SOCKET else scratch(SHORT)


def _make(parent: Path) -> tuple[Path, int]:
    """A new folder with a lock on it; another try where a cleaner removed the folder before it was locked."""
    while True:
        parent.mkdir(mode=0o700, exist_ok=True)
        path = parent / f"r{os.urandom(4).hex()}"
        path.mkdir(mode=0o700)
        handle = os.open(str(path), os.O_RDONLY | os.O_CLOEXEC)
        with suppress(BlockingIOError):
            _try_lock(handle)
            if path.exists():
                return path, handle
        os.close(handle)


def _try_lock(handle: int) -> None:
    """BlockingIOError where another process has the lock; a file system without locks does without."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _remove_if_free(folder: Path) -> bool:
    try:
        handle = os.open(str(folder), os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(folder)
    except OSError:
        return False
    finally:
        os.close(handle)
    return not folder.exists()
