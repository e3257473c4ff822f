"""Measure the load of the host's cores: how long ranks wait for a core, and how much other processes use."""

from __future__ import annotations

import os
import time
from typing import Any, Iterable, Mapping, NamedTuple

from flagperf_driver.node.processes import ProcessStat, log_dir_of, process_stat, rank_of, read_bytes
from flagperf_driver.node.sampling.foreign_processes import ForeignProcesses
from flagperf_driver.node.sampling.host_counters import PROC, File, names, read_text
from flagperf_driver.node.sampling.schedule import LOAD_S, PROCESSES_S

MEANS = "/proc/<pid>/schedstat of each rank's main thread; /proc/stat without the round's own processes"
COLUMNS = ("time [s]", "waited [s]", "others [s]", "stolen [s]")
"""The columns of the series: the time and ``Counters``."""
NO_SCHEDSTAT = "waited: the kernel does not count how long a process waits for a core (/proc/<pid>/schedstat)"
NO_RANK = "waited: no process of a rank was found"
_WAITING_SHARE = 0.03
"""If a rank waits for a larger share of an interval, the other processes are examined."""
_PAUSE_S = 10.0
_SURVEY_S = (0.1, 0.25)
"""When a survey reads the load after its start: the second time only if the first shows other work."""
_IDLE_SHARE = 0.05
"""The largest share of the cores with which other work is not read again."""
_MOST_LISTED = 3
_FEWEST_CORES = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


class Counters(NamedTuple):
    """Seconds since the first reading; None for an unknown value."""

    waited: float | None
    """Time that the rank with the longest waits waited for a core."""
    others: float | None
    """CPU time of processes outside the round, summed over all cores."""
    stolen: float
    """Time in which a core had work but the hypervisor ran something else, summed over all cores."""


class Cores:
    """CPU time of all cores together, from the first line of /proc/stat."""

    def __init__(self, proc: str = PROC) -> None:
        self._stat = File(proc + "/stat", 512)

    def busy_and_stolen(self) -> tuple[float, float]:
        """Return the seconds since the host's start that processes used (without interrupts), and that were stolen."""
        user, nice, system, _, _, _, _, stolen = self._stat.read().split(b"\n", 1)[0].split()[1:9]
        return (int(user) + int(nice) + int(system)) / _TICKS, int(stolen) / _TICKS


def waited_s(pid: int, proc: str = PROC) -> float | None:
    """Return how long the main thread has waited for a core; None if the kernel does not count that."""
    words = read_bytes(f"{proc}/{pid}/schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else None


def all_pids(proc: str = PROC) -> list[int]:
    return sorted([int(name) for name in names(proc) if name.isdigit()])


def with_ancestors(pid: int, proc: str = PROC) -> set[int]:
    """Return the pids of the process, its parent, and so on."""
    pids: set[int] = set()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        usage = process_stat(pid, proc)
        pid = usage.parent if usage is not None else 0
    return pids


class BusiestProcesses:
    """Find the processes that used the most cores between two calls of ``compare``."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._before: dict[int, ProcessStat] = {}
        self._last_compared = 0.0
        self._most: dict[tuple[int, str], float] = {}

    def compare(self, pids: Iterable[int]) -> None:
        now = time.monotonic()
        usages = {pid: usage for pid in pids if (usage := process_stat(pid, self._proc)) is not None}
        for pid, usage in usages.items():
            before = self._before.get(pid)
            if before is not None and before.name == usage.name:
                cores = (usage.seconds - before.seconds) / (now - self._last_compared)
                self._most[pid, usage.name] = max(self._most.get((pid, usage.name), 0.0), cores)
        self._before, self._last_compared = usages, now

    def busiest(self) -> list[dict[str, Any]]:
        """Return the busiest processes, each with its largest use of cores between two calls of ``compare``."""
        ranked = sorted(self._most.items(), key=lambda item: -item[1])[:_MOST_LISTED]
        return [
            {"pid": pid, "name": name, "cores": round(cores, 2)}
            for (pid, name), cores in ranked
            if cores >= _FEWEST_CORES
        ]


class Load:
    """Count the load from the first reading. Each process is classified once as the round's or another."""

    def __init__(self, folder: str, agent: int, container: str = "", proc: str = PROC) -> None:
        self._folder = folder
        self._proc = proc
        self._container = container
        self._foreign = ForeignProcesses(folder, agent, container, proc)
        # On the controller's own machine the agent descends from the controller.
        self._ancestors = with_ancestors(agent, proc) - {agent}
        self._is_own_by_pid = dict.fromkeys(self._ancestors | {agent}, True)
        self._cores = Cores(proc)
        self._first: tuple[float, float] | None = None
        self._own_s = self._others_s = 0.0
        self._own_usage: dict[int, ProcessStat] = {}
        self._rank_numbers: dict[int, str] = {}
        self._ranks: list[int] = []
        self._classify_at = 0.0
        self._waits: dict[int, float] = {}
        self._waited_s = 0.0
        self._read = 0.0
        self._busiest = BusiestProcesses(proc)
        self._is_second_look, self._compare_at = False, 0.0
        self.missing = NO_RANK
        """Why the ranks' waiting is unknown; empty if it is known."""

    def read(self, everything: bool = False) -> Counters:
        """Return the counters. Call this every LOAD_S; most calls leave out ``others``, which is expensive."""
        now = time.monotonic()
        others = None
        if everything or now >= self._classify_at:
            self._classify_at = now + PROCESSES_S - LOAD_S / 2
            self._classify()
            others = self._count_others()
        self._count_waiting(now)
        busy, stolen = self._cores.busy_and_stolen()
        self._first = self._first or (busy, stolen)
        return Counters(None if self.missing else self._waited_s, others, stolen - self._first[1])

    def _classify(self) -> None:
        """Find the round's processes, and its ranks among them."""
        pids = all_pids(self._proc)
        # Ended processes are dropped, because their pids may be reused.
        before, self._is_own_by_pid = self._is_own_by_pid, {}
        for pid in pids:
            self._is_own_by_pid[pid] = before[pid] if pid in before else self._is_own(pid)
        self._count_own([pid for pid in pids if self._is_own_by_pid[pid]])
        self._ranks = self._find_ranks()

    def _count_others(self) -> float:
        busy, _ = self._cores.busy_and_stolen()
        before = self._first[0] if self._first else busy
        # max(): the difference may decrease, because the kernel counts processes exactly but all cores in ticks.
        self._others_s = max(self._others_s, busy - before - self._own_s)
        return self._others_s

    def busiest(self) -> list[dict[str, Any]]:
        """Return the busiest other processes while a rank waited."""
        return self._busiest.busiest()

    def _is_own(self, pid: int) -> bool:
        """Classify a new process: without a container as its parent, which has the lower pid in most cases."""
        known = None
        if not self._container:
            usage = process_stat(pid, self._proc)
            # The agent's ancestors have other children, too.
            if usage is not None and usage.parent not in self._ancestors:
                known = self._is_own_by_pid.get(usage.parent)
        return self._foreign.is_own(pid) is True if known is None else known

    def _count_own(self, pids: Iterable[int]) -> None:
        """Add the CPU time of the round's processes since the first reading; of later processes all CPU time."""
        usages = {}
        for pid in pids:
            usage = process_stat(pid, self._proc)
            if usage is not None:
                before = self._own_usage.get(pid, usage._replace(seconds=0.0) if self._first else usage)
                self._own_s += usage.seconds - before.seconds
                usages[pid] = usage
        self._own_usage = usages

    def _count_waiting(self, now: float) -> None:
        waits = {pid: waited_s(pid, self._proc) for pid in self._ranks}
        known = {pid: seconds for pid, seconds in waits.items() if seconds is not None}
        if known:
            self.missing = ""
        elif waits and self.missing:
            self.missing = NO_SCHEDSTAT
        most = max((seconds - self._waits.get(pid, seconds) for pid, seconds in known.items()), default=0.0)
        self._waited_s += most
        if most > _WAITING_SHARE * (now - self._read):
            self._compare_others(now)
        self._waits, self._read = known, now

    def _find_ranks(self) -> list[int]:
        """Return the main process of each rank: its data loaders inherit the rank's number from it."""
        self._rank_numbers = {pid: number for pid in self._own_usage if (number := self._rank_number(pid)) is not None}
        numbers = self._rank_numbers
        return [pid for pid, number in numbers.items() if numbers.get(self._own_usage[pid].parent) != number]

    def _rank_number(self, pid: int) -> str | None:
        if pid in self._ancestors:
            return None
        return self._rank_numbers.get(pid) or rank_of(pid, self._folder, self._proc)

    def _compare_others(self, now: float) -> None:
        """Compare the other processes in two successive calls; the next pair comes after a pause."""
        if now >= self._compare_at:
            self._busiest.compare(pid for pid in all_pids(self._proc) if not self._is_own_by_pid.get(pid))
            self._is_second_look = not self._is_second_look
            self._compare_at = now if self._is_second_look else now + _PAUSE_S


class Survey:
    """Measure the load of a host before a run, between two readings, without the processes of rounds.

    ``controller`` is the process that starts this run's processes on the host, also during the survey.
    """

    def __init__(self, proc: str = PROC, controller: int | None = None) -> None:
        self._proc = proc
        self._controller = os.getppid() if controller is None else controller
        self._cores = Cores(proc)
        self._busiest = BusiestProcesses(proc)
        self._begin = time.monotonic()
        self._busy, self._stolen = self._cores.busy_and_stolen()
        self._own_s_before = self._own_processes()
        self._busiest.compare(pid for pid in all_pids(proc) if pid not in self._own_s_before)

    def result(self) -> dict[str, Any]:
        """Return the load since the start, after the first reading or the second."""
        first, second = _SURVEY_S
        load, own = self._after(first)
        is_idle = load["others"] <= _IDLE_SHARE * load["cores"] and not load["stolen"]
        if not is_idle and time.monotonic() < self._begin + second:
            load, own = self._after(second)
        # Once, because a process has many cores between two readings that are a tick apart.
        self._busiest.compare(pid for pid in all_pids(self._proc) if pid not in own)
        return {**load, "busiest": self._busiest.busiest()}

    def _after(self, seconds: float) -> tuple[dict[str, Any], Mapping[int, float]]:
        """Return the load since the start, at the earliest after some seconds, and the run's own processes."""
        time.sleep(max(0.0, self._begin + seconds - time.monotonic()))
        own_s_after = self._own_processes()
        busy, stolen = self._cores.busy_and_stolen()
        passed_s = time.monotonic() - self._begin
        own = sum(seconds - self._own_s_before.get(pid, 0.0) for pid, seconds in own_s_after.items())
        load = {
            "cores": os.cpu_count() or 1,
            "others": round(max(0.0, busy - self._busy - own) / passed_s, 2),
            "stolen": round((stolen - self._stolen) / max(busy - self._busy + stolen - self._stolen, passed_s), 3),
            "load1": read_text(self._proc + "/loadavg").partition(" ")[0],
        }
        return load, own_s_after

    def _own_processes(self) -> dict[int, float]:
        """Return the CPU time of the controller's processes and of running rounds, which leases keep apart."""
        usages = {pid: usage for pid in all_pids(self._proc) if (usage := process_stat(pid, self._proc)) is not None}
        own = {*with_ancestors(os.getpid(), self._proc), *_descendants(self._controller, usages)}
        return {
            # The controller waits for processes that have ended meanwhile.
            pid: usage.seconds + (usage.children_s if pid == self._controller else 0.0)
            for pid, usage in usages.items()
            if pid in own or log_dir_of(pid, self._proc) is not None
        }


def _descendants(pid: int, usages: Mapping[int, ProcessStat]) -> set[int]:
    """Return the children of a process, their children, and so on."""
    found: set[int] = set()
    generation = {pid}
    while generation:
        generation = {child for child, usage in usages.items() if usage.parent in generation} - found
        found |= generation
    return found
