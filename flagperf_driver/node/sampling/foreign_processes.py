"""Who else computes on a round's devices: of the processes that a device tells, those that are not the round's own."""

from __future__ import annotations

import os
import pwd
from typing import NamedTuple

from flagperf_driver.node.processes import log_dir_of
from flagperf_driver.node.sampling.host import content

PROC = "/proc"
_FIRST_NAMESPACE = 0xEFFFFFFC  # the inode of the host's own numbering of processes, in every kernel
_DEEPEST = 64
_SHARING_SERVER = "cuda-mps"
"""The end of its name, as far as the kernel keeps it: it serves other processes, which a device tells one by one."""


def serves_others(name: str) -> bool:
    return name.endswith(_SHARING_SERVER)


def is_elsewhere(pid: int, proc: str = PROC) -> bool:
    """In a container of our own a driver's number may be the host's, of a process that is not to be seen from here."""
    return _namespace(proc) != _FIRST_NAMESPACE and not os.path.exists(f"{proc}/{pid}")  # noqa: PTH110


class ForeignProcess(NamedTuple):
    pid: int
    name: str
    user: str


class ForeignProcesses:
    """Tells the round's own processes by the folder in their environment, their parents and their container."""

    def __init__(self, folder: str, agent: int, container: str | None = None, proc: str = PROC) -> None:
        self._folder = folder
        self._agent = agent
        self._container = container
        self._proc = proc
        # In a container of our own a driver's numbers may be the host's, which mean other processes here.
        self.numbers_are_ours = _namespace(proc) == _FIRST_NAMESPACE
        self._known: dict[tuple[int, str], bool] = {}

    def among(self, pids: set[int]) -> list[ForeignProcess]:
        """Those that run and are not the round's; none where the numbers may mean other processes."""
        own = {pid: self.is_own(pid) for pid in sorted(pids)}
        self.numbers_are_ours = self.numbers_are_ours or True in own.values()
        return [self._seen(pid) for pid, is_own in own.items() if is_own is False and self.numbers_are_ours]

    def is_own(self, pid: int) -> bool | None:
        """None for what has ended, or is not to be seen."""
        stat = self._stat(pid)
        if stat is None or stat.state in "ZX" or serves_others(stat.name):
            return None
        who = pid, stat.started
        if who not in self._known:
            self._known[who] = (
                log_dir_of(pid, self._proc) == self._folder or self._descends(stat) or self._is_contained(pid)
            )
        return self._known[who]

    def _descends(self, stat: _Stat) -> bool:
        """From the agent, which also adopts what its children leave behind."""
        for _ in range(_DEEPEST):
            if stat.parent == self._agent:
                return True
            above = self._stat(stat.parent)
            if above is None:
                return False
            stat = above
        return False

    def _is_contained(self, pid: int) -> bool:
        """In the container of the round, whose processes' environment may be hidden from us."""
        return bool(self._container) and str(self._container) in content(f"{self._proc}/{pid}/cgroup")

    def _stat(self, pid: int) -> _Stat | None:
        head, _, rest = content(f"{self._proc}/{pid}/stat").rpartition(")")
        words = rest.split()
        return _Stat(head.partition("(")[2], words[0], int(words[1]), words[19]) if len(words) > 19 else None

    def _seen(self, pid: int) -> ForeignProcess:
        stat = self._stat(pid)
        return ForeignProcess(pid, stat.name if stat else "a process", _owner(f"{self._proc}/{pid}"))


class _Stat(NamedTuple):
    name: str
    state: str
    parent: int
    started: str


def _namespace(proc: str) -> int:
    try:
        return os.stat(proc + "/self/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return 0


def _owner(path: str) -> str:
    try:
        uid = os.stat(path).st_uid  # noqa: PTH116
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
    except OSError:
        return "somebody"
