"""The home and the temporary folder (HOME, TMPDIR) of one round's ranks, which are removed after the round.

It is not in the log folder, because the path of a socket has at most 107 bytes and the log folder is collected.
The agent holds a lock on its temporary folder, so that a folder without a lock is a leftover of a dead agent.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from flagperf_driver.node.folder import ROUNDS, FolderError, own_scratch, scratch

SHORT = "/tmp"  # noqa: S108 - a private folder is created in it
_LONGEST_SOCKET = 107
_SOCKET_NAME = 36  # bytes that libraries add: /pymp-xxxxxxxx/listener-xxxxxxxx, /torch-shm-dir-xxxxxx/manager.sock
_FOLDER, _HOME, _CACHE = "tmp", "home", "cache"


class Temporary:
    """One round's temporary folder and, within it, its home, from their creation to their removal.

    Rounds with a vendor's code have their own cache; all others of this user share one, in which such a round can
    change nothing.
    """

    def __init__(self, vendor_code: bool = False) -> None:
        self._scratch = _short_scratch()
        try:
            own_scratch(self._scratch)
            self.path, self._lock = _make(self._scratch / _FOLDER)
            self.home = self.path / _HOME
            self.home.mkdir()
            self.cache = self.home / ".cache" if vendor_code else self._scratch / _CACHE
            self.cache.mkdir(exist_ok=True)
        except OSError as error:
            raise FolderError(
                f"the ranks' temporary folder cannot be created in {self._scratch}: {error.strerror}; free space "
                "there, or set TMPDIR in the host's environment to another folder"
            ) from error

    @property
    def env(self) -> Mapping[str, str]:
        """The ranks' variables: their temporary folder, their home, and the folder of their caches."""
        own = {"TMPDIR": str(self.path), "HOME": str(self.home), "XDG_CACHE_HOME": str(self.cache)}
        return {**own, **user_packages()}

    @property
    def others(self) -> Sequence[Path]:
        """The folders that contain those of other rounds on this host."""
        return [folder / name for folder in {scratch(), self._scratch} for name in (_FOLDER, ROUNDS)]

    def remove(self) -> bool:
        """Remove the folder with its content; return True if that succeeded."""
        remove_tree(self.path)
        os.close(self._lock)
        return not self.path.exists()


def user_packages() -> Mapping[str, str]:
    """Return the variable for Python's packages of the user, who may have installed a framework there."""
    packages = Path(os.environ.get("HOME") or "/", ".local")
    return {"PYTHONUSERBASE": str(packages)} if packages.is_dir() else {}


def remove_leftovers(base: str = "") -> Iterator[str]:
    """Remove the folders that dead agents of this user left, in ``base`` or in TMPDIR; yield a description of each."""
    for folder in sorted((scratch(base) if base else _short_scratch()).glob(f"{_FOLDER}/*")):
        if _remove_if_free(folder):
            yield f"temporary files in {folder}"


def remove_tree(folder: Path) -> None:
    """Remove a folder, even if it contains folders that are not writable for their owner."""
    import shutil  # imported here to start the agent faster

    with suppress(OSError):
        for parent, names, _ in os.walk(str(folder)):
            for name in names:
                path = Path(parent, name)
                if stat.S_ISDIR(path.lstat().st_mode):
                    path.chmod(0o700)
    shutil.rmtree(str(folder), ignore_errors=True)


def _short_scratch() -> Path:
    """Return the user's folder in TMPDIR; if that path is too long for the sockets of data loaders, the one in /tmp."""
    own = scratch()
    longest = os.fsencode(str(own / _FOLDER / "r12345678"))
    return own if len(longest) + _SOCKET_NAME <= _LONGEST_SOCKET else scratch(SHORT)


def _make(parent: Path) -> tuple[Path, int]:
    """Create and lock a new folder; try again if a cleaner removed the folder before it was locked."""
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
    """Lock the file; raise BlockingIOError if another process has the lock. Ignore a file system without locks."""
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
