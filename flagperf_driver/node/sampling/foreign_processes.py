"""Find foreign processes: processes on a round's devices that do not belong to the round."""

from __future__ import annotations

import os
from typing import NamedTuple

from flagperf_driver.node.processes import ProcessStat, log_dir_of, process_stat
from flagperf_driver.node.sampling.host_counters import read_text
from flagperf_driver.node.users import user_name

PROC = "/proc"
_HOST_NAMESPACE = 0xEFFFFFFC  # the inode of the host's PID namespace, in every kernel
_MAX_DEPTH = 64
_SHARING_SERVER = "cuda-mps"
"""The end of the name of a server that shares a device among processes; the driver reports these processes, too."""


def serves_others(name: str) -> bool:
    return name.endswith(_SHARING_SERVER)


def is_elsewhere(pid: int, proc: str = PROC) -> bool:
    """Return True inside a container if the pid, which the driver reports, is not visible in the container."""
    return _namespace(proc) != _HOST_NAMESPACE and not os.path.exists(f"{proc}/{pid}")  # noqa: PTH110


class ForeignProcess(NamedTuple):
    pid: int
    name: str
    user: str


class ForeignProcesses:
    """Recognize the round's own processes by the log folder in their environment, their parents and their container."""

    def __init__(self, folder: str, agent: int, container: str | None = None, proc: str = PROC) -> None:
        self._folder = folder
        self._agent = agent
        self._container = container
        self._proc = proc
        # Inside a container, the driver's pids may be the host's, which are other processes here.
        self.pids_are_valid = _namespace(proc) == _HOST_NAMESPACE
        self._known: dict[tuple[int, str], bool] = {}

    def among(self, pids: set[int]) -> list[ForeignProcess]:
        """Return the running processes outside the round; an empty list if the pids may be of another namespace."""
        own = {pid: self.is_own(pid) for pid in sorted(pids)}
        self.pids_are_valid = self.pids_are_valid or True in own.values()
        return [self._describe(pid) for pid, is_own in own.items() if is_own is False and self.pids_are_valid]

    def is_own(self, pid: int) -> bool | None:
        """Return True if the process is the round's; None if it has ended or is not visible."""
        stat = process_stat(pid, self._proc)
        if stat is None or stat.state in "ZX" or serves_others(stat.name):
            return None
        key = pid, stat.started
        if key not in self._known:
            self._known[key] = (
                log_dir_of(pid, self._proc) == self._folder or self._is_descendant(stat) or self._is_contained(pid)
            )
        return self._known[key]

    def _is_descendant(self, stat: ProcessStat) -> bool:
        """Return True if the process descends from the agent, which adopts orphans of its children."""
        for _ in range(_MAX_DEPTH):
            if stat.parent == self._agent:
                return True
            parent = process_stat(stat.parent, self._proc)
            if parent is None:
                return False
            stat = parent
        return False

    def _is_contained(self, pid: int) -> bool:
        """Return True if the process is in the round's container, where its environment may not be readable."""
        return bool(self._container) and str(self._container) in read_text(f"{self._proc}/{pid}/cgroup")

    def _describe(self, pid: int) -> ForeignProcess:
        stat = process_stat(pid, self._proc)
        return ForeignProcess(pid, stat.name if stat else "unknown process", _owner(f"{self._proc}/{pid}"))


def _namespace(proc: str) -> int:
    try:
        return os.stat(proc + "/self/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return 0


def _owner(path: str) -> str:
    try:
        return user_name(os.stat(path).st_uid)  # noqa: PTH116
    except OSError:
        return "unknown user"
