"""A round's log folder on its host: its lock, the files that the agent writes there, and its removal.

The round's agent holds the lock on ``agent.lock``. Without a holder, whatever remains of the round is a leftover.
Files named ``agent.*`` belong to the agent; all other files belong to the round's logs.
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Iterator

with suppress(ImportError):  # Windows imports this module for its names, but runs no rounds
    import fcntl

LOCK, SOCKET, STATE = "agent.lock", "agent.sock", "agent.json"
EVENTS = "agent.events.jsonl"  # the agent's messages that count, one on each line
RANKS, SIGNALS = "agent.ranks.json", "agent.signals"  # what the starter in a container starts; a pipe to it
STARTER, STARTER_BEATS = "agent.starter.jsonl", "agent.starter.progress"  # its reports, and its heartbeat
SUMMARY = "summary.json"  # only in the archive that the agent sends: the summary of the logs
ROUNDS = "rounds"  # the folder of log folders in a user's scratch folder
CONTAINER_LOG = "agent.container.log"  # the output of the program of a container
_TRIES = 4


class FolderError(RuntimeError):
    """The folder cannot be used for a round; the text is the reason."""


def has_no_inodes(folder: Path) -> bool:
    """Return whether the disk of a folder is full by its number of files; some file systems have no such limit."""
    try:
        status = os.statvfs(str(folder))
    except (OSError, AttributeError):  # Windows has no statvfs
        return False
    return status.f_files > 0 and status.f_favail == 0


def scratch(base: str = "") -> Path:
    """Return this user's folder for rounds, in ``base``, by default in TMPDIR."""
    return Path(base or os.environ.get("TMPDIR") or "/tmp", f"pytest-flagperf-{os.getuid()}")  # noqa: S108 - see below


def cache_root() -> Path:
    """Return $FLAGPERF_CACHE; by default pytest-flagperf in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("FLAGPERF_CACHE")
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "pytest-flagperf"


def own_scratch(own: Path) -> None:
    """Create this user's private folder; raise FolderError if it belongs to another user."""
    with suppress(FileExistsError):
        own.mkdir(mode=0o700, parents=True)
    status = own.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise FolderError(f"{own} is not a folder of user {os.getuid()}: remove it, or set TMPDIR to another folder")


def default_folder(name: str) -> Path:
    """Return the default log folder of a round with this name; only this user has access."""
    if not name or "/" in name or name.startswith("."):
        raise FolderError(f"invalid round name {name!r}; expected a valid folder name that does not start with a dot")
    own = scratch()
    own_scratch(own)
    return own / ROUNDS / name


class LogFolder:
    """The log folder of this agent's round, which is also the agent's current folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.log: str | None = None  # the name of the agent's own log, once the round has started
        self.write_error: str | None = None  # the first error when the agent wrote to the folder
        self._facts: dict[str, Any] = {"pid": os.getpid(), "log_dir": str(self.path), "state": "waiting"}

    def take(self) -> int:
        """Create the folder, lock it and make it the current folder; return the descriptor of the lock."""
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
            holder = _state_of(Path())
            raise FolderError(f"{self.path}: another agent uses this folder (it holds {LOCK}): {holder}") from error
        except OSError as error:  # some network file systems have no locks
            os.close(handle)
            raise FolderError(f"{self.path}: {LOCK} cannot be locked: {error.strerror}") from error
        return handle

    def note(self, text: str) -> None:
        """Append a line to the agent's own log."""
        if self.log is not None:
            path, line = self.path / self.log, "{} {}\n".format(time.strftime("%Y-%m-%d %H:%M:%S"), text)
            self._write(lambda: _append(path, line))

    def write(self, name: str, text: str) -> None:
        """Write a complete file, or none."""
        self._write(lambda: _replace(self.path / name, text))

    def update_state(self, **facts: Any) -> None:
        """Update the facts about the round in ``agent.json``."""
        self._facts.update(facts)
        self.write(STATE, json.dumps(self._facts) + "\n")

    def free_bytes(self) -> int:
        try:
            status = os.statvfs(self.path)
        except OSError:
            return 0
        return status.f_bavail * status.f_frsize

    def remove_agent_files(self) -> None:
        """Remove the files that belong to the agent."""
        for name in filter(is_agents_own, os.listdir(str(self.path))):  # noqa: PTH208
            with suppress(OSError):
                (self.path / name).unlink()

    def is_bare(self) -> bool:
        """Return True if the folder contains no files but the agent's own."""
        return all(is_agents_own(name) for name in os.listdir(str(self.path)))  # noqa: PTH208

    def remove(self) -> None:
        import shutil  # imported here to start the agent faster

        os.chdir("/")
        shutil.rmtree(str(self.path), ignore_errors=True)

    def _write(self, write: Callable[[], None]) -> None:
        # A round can end in order without these files, so an error does not stop the agent; the first one is reported.
        try:
            write()
        except OSError as error:
            if self.write_error is None:
                self.write_error = f"the log folder {self.path} cannot be written: {error.strerror}"


def _lock(handle: int) -> None:
    """Lock the file; try several times, because ``is_orphaned`` of another process holds the lock for a moment."""
    for _ in range(_TRIES - 1):
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.05)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _state_of(folder: Path) -> str:
    """Return what the folder's agent wrote about itself."""
    try:
        return (folder / STATE).read_text().strip()
    except OSError:
        return f"{STATE} not found"


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
    """Return True if a file of a log folder belongs to the agent, not to the round's logs."""
    return name.startswith("agent.")


def give_to_owner(folder: Path) -> None:
    """Give files that root wrote in a container to the folder's owner, who must be able to remove them."""
    owner = folder.stat()
    if os.getuid() != 0 or owner.st_uid == 0:
        return
    for entry in walk(folder):
        with suppress(OSError):
            os.chown(entry.path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all entries at any depth, folders before their content; links are not followed."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from walk(Path(entry.path))


# -- from other processes ------------------------------------------------------------------------------------------


def is_orphaned(folder: Path, if_gone: bool = False) -> bool:
    """Return True if the round's agent and its reaper have both ended.

    If the folder or its lock does not exist, return ``if_gone``.
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
