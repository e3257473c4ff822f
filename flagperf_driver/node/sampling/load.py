"""Who has the host's cores while a round runs: how long its ranks wait for one, and what other processes use."""

from __future__ import annotations

import os
import time
from typing import Any, Iterable, NamedTuple

from flagperf_driver.node.processes import log_dir_of, rank_of
from flagperf_driver.node.sampling.foreign_processes import ForeignProcesses
from flagperf_driver.node.sampling.host import PROC, File, content, names

MEANS = "/proc/<pid>/schedstat of each rank's main thread; /proc/stat without the round's own processes"
COLUMNS = ("time [s]", "waited [s]", "others [s]", "stolen [s]")
"""Of the series: ``Counters``."""
EVERY_S = 0.5
NO_SCHEDSTAT = "waited: the kernel does not count how long a process waits for a core (/proc/<pid>/schedstat)"
NO_RANK = "waited: no process of a rank was seen"
_NOTICED = 0.03
"""From this share of an interval on, a rank's waiting is a reason to look at who has the cores."""
_SORT_S = 2.0
"""So often all processes are looked for; more often only what ranks waited."""
_REST_S = 10.0
_SURVEY_S = 0.25
_NAMED = 3
_LEAST_CORES = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """A process, and the CPU time in seconds that it has used."""

    name: str
    parent: int
    seconds: float


class Counters(NamedTuple):
    """Seconds since the first reading; None where it is not known."""

    waited: float | None
    """In which the rank that waited most waited for a core."""
    others: float | None
    """CPU time of processes that are not the round's, of all cores together."""
    stolen: float
    """In which a core had work and the hypervisor ran something else, of all cores together."""


class Cores:
    """All cores together, from the first line of /proc/stat."""

    def __init__(self, proc: str = PROC) -> None:
        self._stat = File(proc + "/stat", 512)

    def busy_and_stolen(self) -> tuple[float, float]:
        """Seconds since the host's start: of processes, without interrupts; and of the hypervisor."""
        user, nice, system, _, _, _, _, stolen = self._stat.read().split(b"\n", 1)[0].split()[1:9]
        return (int(user) + int(nice) + int(system)) / _TICKS, int(stolen) / _TICKS


def used(pid: int, proc: str = PROC) -> Used | None:
    """None of a process that has ended."""
    head, _, rest = _read(f"{proc}/{pid}/stat").rpartition(b")")
    words = rest.split()
    if len(words) < 13:
        return None
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return Used(name, int(words[1]), (int(words[11]) + int(words[12])) / _TICKS)


def waited_s(pid: int, proc: str = PROC) -> float | None:
    """How long the main thread could have run and had no core; None where the kernel does not count it."""
    words = _read(f"{proc}/{pid}/schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else None


def _read(path: str) -> bytes:
    """Several are read each second, so without a file object; empty where a file is missing, or is not for us."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(handle, 4096)
        finally:
            os.close(handle)
    except OSError:
        return b""


def all_pids(proc: str = PROC) -> list[int]:
    return [int(name) for name in names(proc) if name.isdigit()]


def and_above(pid: int, proc: str = PROC) -> set[int]:
    """The process, its parent, and so on."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        this = used(pid, proc)
        pid = this.parent if this is not None else 0
    return found


class Looks:
    """What each of some processes used between two looks at them."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._before: dict[int, Used] = {}
        self._when = 0.0
        self._most: dict[tuple[int, str], float] = {}

    def look(self, pids: Iterable[int]) -> None:
        now = time.monotonic()
        found = {pid: this for pid in pids if (this := used(pid, self._proc)) is not None}
        for pid, this in found.items():
            before = self._before.get(pid)
            if before is not None and before.name == this.name:
                cores = (this.seconds - before.seconds) / (now - self._when)
                self._most[pid, this.name] = max(self._most.get((pid, this.name), 0.0), cores)
        self._before, self._when = found, now

    def busiest(self) -> list[dict[str, Any]]:
        """Those that used most, each with the most cores that it used between two looks."""
        ranked = sorted(self._most.items(), key=lambda item: -item[1])[:_NAMED]
        return [
            {"pid": pid, "name": name, "cores": round(cores, 2)}
            for (pid, name), cores in ranked
            if cores >= _LEAST_CORES
        ]


class Load:
    """Counts from its first reading on; of each process it is found out once whether it is the round's."""

    def __init__(self, folder: str, agent: int, container: str = "", proc: str = PROC) -> None:
        self._folder = folder
        self._proc = proc
        self._container = container
        self._strangers = ForeignProcesses(folder, agent, container, proc)
        # On the harness's own machine the harness is above the agent.
        self._above = and_above(agent, proc) - {agent}
        self._known = dict.fromkeys(self._above | {agent}, True)
        self._cores = Cores(proc)
        self._first: tuple[float, float] | None = None
        self._own_s = self._others_s = 0.0
        self._used: dict[int, Used] = {}
        self._numbers: dict[int, str] = {}
        self._ranks: list[int] = []
        self._sort_at = 0.0
        self._waits: dict[int, float] = {}
        self._waited_s = 0.0
        self._read = 0.0
        self._looks = Looks(proc)
        self._looked, self._look_from = False, 0.0
        self.missing = NO_RANK
        """Why no waiting is known; empty where it is."""

    def read(self, everything: bool = False) -> Counters:
        """To be called every EVERY_S; what costs more than a few reads is left out of most calls."""
        now = time.monotonic()
        others = None
        if everything or now >= self._sort_at:
            self._sort_at = now + _SORT_S - EVERY_S / 2
            self._sort()
            others = self._count_others()
        self._count_waiting(now)
        busy, stolen = self._cores.busy_and_stolen()
        self._first = self._first or (busy, stolen)
        return Counters(None if self.missing else self._waited_s, others, stolen - self._first[1])

    def _sort(self) -> None:
        """Find out which processes are the round's, and which of these are its ranks."""
        pids = all_pids(self._proc)
        self._known = {pid: self._is_own(pid) for pid in pids}  # without those that ended: numbers are used again
        self._count_own([pid for pid in pids if self._known[pid]])
        self._ranks = self._find_ranks()

    def _count_others(self) -> float:
        busy, _ = self._cores.busy_and_stolen()
        before = self._first[0] if self._first else busy
        # The kernel counts processes exactly and all cores by ticks, so that the difference may fall by one.
        self._others_s = max(self._others_s, busy - before - self._own_s)
        return self._others_s

    def busiest(self) -> list[dict[str, Any]]:
        """The other processes that used most while a rank waited."""
        return self._looks.busiest()

    def _is_own(self, pid: int) -> bool:
        """Without a container all of the round's processes are below the agent: what a parent is, its child is too."""
        known = self._known.get(pid)
        if known is None and not self._container:
            this = used(pid, self._proc)
            # Who is above the agent has other children too.
            known = self._known.get(this.parent) if this is not None and this.parent not in self._above else None
        return self._strangers.is_own(pid) is True if known is None else known

    def _count_own(self, pids: Iterable[int]) -> None:
        """What a process used before the first reading does not count; of a later one everything does."""
        found = {}
        for pid in pids:
            this = used(pid, self._proc)
            if this is not None:
                before = self._used.get(pid, this._replace(seconds=0.0) if self._first else this)
                self._own_s += this.seconds - before.seconds
                found[pid] = this
        self._used = found

    def _count_waiting(self, now: float) -> None:
        waits = {pid: waited_s(pid, self._proc) for pid in self._ranks}
        known = {pid: seconds for pid, seconds in waits.items() if seconds is not None}
        if known:
            self.missing = ""
        elif waits and self.missing:
            self.missing = NO_SCHEDSTAT
        most = max((seconds - self._waits.get(pid, seconds) for pid, seconds in known.items()), default=0.0)
        self._waited_s += most
        if most > _NOTICED * (now - self._read):
            self._look_at_others(now)
        self._waits, self._read = known, now

    def _find_ranks(self) -> list[int]:
        """The process that computes for a rank is the first with its number: its data loaders have it from it."""
        self._numbers = {pid: number for pid in self._used if (number := self._number(pid)) is not None}
        return [pid for pid, number in self._numbers.items() if self._numbers.get(self._used[pid].parent) != number]

    def _number(self, pid: int) -> str | None:
        if pid in self._above:
            return None
        return self._numbers.get(pid) or rank_of(pid, self._folder, self._proc)

    def _look_at_others(self, now: float) -> None:
        """Two looks, one after the other, show who has the cores; the next pair comes later."""
        if now >= self._look_from:
            self._looks.look(pid for pid in all_pids(self._proc) if not self._known.get(pid))
            self._looked = not self._looked
            self._look_from = now if self._looked else now + _REST_S


class Survey:
    """What a host's cores do before a round, between two readings: the rounds' own processes are not in it."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._cores = Cores(proc)
        self._looks = Looks(proc)
        self._begin = time.monotonic()
        self._busy, self._stolen = self._cores.busy_and_stolen()
        self._own = self._rounds()
        self._looks.look(pid for pid in all_pids(proc) if pid not in self._own)

    def result(self) -> dict[str, Any]:
        """Waits until there was enough time between the readings."""
        time.sleep(max(0.0, self._begin + _SURVEY_S - time.monotonic()))
        self._looks.look(pid for pid in all_pids(self._proc) if pid not in self._own)
        busy, stolen = self._cores.busy_and_stolen()
        passed = time.monotonic() - self._begin
        own = sum(this.seconds - before for pid, before in self._own.items() if (this := used(pid, self._proc)))
        return {
            "cores": os.cpu_count(),
            "others": round(max(0.0, busy - self._busy - own) / passed, 2),
            "stolen": round((stolen - self._stolen) / max(busy - self._busy + stolen - self._stolen, passed), 3),
            "load1": content(self._proc + "/loadavg").partition(" ")[0],
            "busiest": self._looks.busiest(),
        }

    def _rounds(self) -> dict[int, float]:
        """What the harness's processes have used, and those of rounds that run: a lease keeps these apart."""
        own = and_above(os.getpid(), self._proc)
        found = {pid: used(pid, self._proc) for pid in all_pids(self._proc)}
        return {
            pid: this.seconds
            for pid, this in found.items()
            if this is not None and (pid in own or log_dir_of(pid, self._proc) is not None)
        }
