"""A round's log folder on its host: whose it is, what its agent writes there, how it is given up.

Whoever has the lock on ``agent.lock`` is the round's agent; where nobody has, what is left of the round is a leftover.
Files named ``agent.*`` and sockets are the agent's own; everything else is the round's.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Iterator

LOCK, SOCKET, STATE = "agent.lock", "agent.sock", "agent.json"
INNER_SOCKET = "inner.sock"
_TRIES = 4


class FolderError(RuntimeError):
    """The folder cannot be a round's; the text says why."""


def scratch(base: str = "") -> Path:
    """The folder of this user for rounds, in ``base``, else in TMPDIR."""
    return Path(base or os.environ.get("TMPDIR") or "/tmp", f"pytest-flagperf-{os.getuid()}")  # noqa: S108 - see below


def cache_root() -> Path:
    """$FLAGPERF_CACHE, else pytest-flagperf in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("FLAGPERF_CACHE")
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "pytest-flagperf"


def own_scratch(own: Path) -> None:
    """Create the folder of this user for this user alone; FolderError where another user has it."""
    with suppress(FileExistsError):
        own.mkdir(mode=0o700, parents=True)
    found = own.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise FolderError(f"{own} is not a folder of user {os.getuid()}: it must be removed before a round logs there")


def default_folder(name: str) -> Path:
    """Where a round of this name logs if nobody says where, for this user alone."""
    if not name or "/" in name or name.startswith("."):
        raise FolderError(f"a round's name must be one that a folder can have, and is {name!r}")
    own = scratch()
    own_scratch(own)
    return own / "rounds" / name


class LogFolder:
    """The folder of this agent's round, which is also its current one."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.log: str | None = None  # where the agent notes what it does, once a round has said so
        self.trouble: str | None = None  # why the agent could not write there, if it could not
        self._facts: dict[str, Any] = {"pid": os.getpid(), "log_dir": str(self.path), "state": "waiting"}

    def take(self) -> int:
        """Make it, lock it and go there; the descriptor of the lock."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            os.chdir(self.path)
            handle = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise FolderError(f"{self.path} cannot be the log folder: {error.strerror}") from error
        try:
            _lock(handle)
        except BlockingIOError as error:
            os.close(handle)
            raise FolderError(f"{self.path}: another agent logs there (it holds {LOCK}): {_said(Path())}") from error
        except OSError as error:  # a file system of many hosts may have no locks
            os.close(handle)
            raise FolderError(f"{self.path}: {LOCK} cannot be locked: {error.strerror}") from error
        return handle

    def note(self, text: str) -> None:
        """A line in the agent's own log."""
        if self.log is not None:
            path, line = self.path / self.log, "{} {}\n".format(time.strftime("%Y-%m-%d %H:%M:%S"), text)
            self._write(lambda: _append(path, line))

    def write(self, name: str, text: str) -> None:
        """A file, whole or not at all."""
        self._write(lambda: _replace(self.path / name, text))

    def state(self, **facts: Any) -> None:
        """What is known of the round, for those who find the folder."""
        self._facts.update(facts)
        self.write(STATE, json.dumps(self._facts) + "\n")

    def free_bytes(self) -> int:
        try:
            found = os.statvfs(self.path)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize

    def tidy(self) -> None:
        """Remove what was the agent's own."""
        for name in (SOCKET, INNER_SOCKET, STATE, LOCK):
            with suppress(OSError):
                (self.path / name).unlink()

    def is_bare(self) -> bool:
        """Whether nothing is in it but what was the agent's own."""
        return all(is_agents_own(name) for name in os.listdir(str(self.path)))  # noqa: PTH208

    def remove(self) -> None:
        import shutil  # not a thing that every agent needs before its first word

        os.chdir("/")
        shutil.rmtree(str(self.path), ignore_errors=True)

    def give_to_its_owner(self) -> None:
        """What root wrote in a container belongs to the folder's owner, who is to read and remove it."""
        owner = self.path.stat()
        if os.getuid() != 0 or owner.st_uid == 0:
            return
        for entry in walk(self.path):
            with suppress(OSError):
                os.chown(entry.path, owner.st_uid, owner.st_gid, follow_symlinks=False)

    def _write(self, how: Callable[[], None]) -> None:
        # Without its notes a round can still be brought to an end; that they could not be written is told once.
        try:
            how()
        except OSError as error:
            if self.trouble is None:
                self.trouble = f"the log folder {self.path} cannot be written: {error.strerror}"


def _lock(handle: int) -> None:
    """Somebody who only looks whether an agent is there has the lock for a moment."""
    for _ in range(_TRIES - 1):
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.05)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _said(folder: Path) -> str:
    """What the folder's agent left of itself."""
    try:
        return (folder / STATE).read_text().strip()
    except OSError:
        return f"it left no {STATE}"


def _append(path: Path, line: str) -> None:
    with path.open("a") as log:
        log.write(line)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name("." + path.name + ".new")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def is_agents_own(name: str) -> bool:
    """Whether a file of a log folder is no part of the round's logs."""
    return name.startswith("agent.") or name == INNER_SOCKET


def walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything in it, folders before what is in them; links are not followed."""
    with os.scandir(folder) as found:
        for entry in sorted(found, key=lambda entry: entry.name):
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from walk(Path(entry.path))


# -- from outside ------------------------------------------------------------------------------------------


def is_orphaned(folder: Path, if_gone: bool = False) -> bool:
    """Whether there was an agent, and nobody is any more: neither it nor who cleans up after it.

    Where the folder or its lock is gone, ``if_gone`` is the answer.
    """
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return if_gone
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
