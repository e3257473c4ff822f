"""Start a round's ranks on a host or in a container, signal them, and report how each ended.

On a host the agent uses ``Starter``. In a container this module is the program, as
``python -m flagperf_driver.node.agent.starter FOLDER``: it reads what to start from ``agent.ranks.json`` of the round's
log folder, which is mounted, and signals, each with a rank, from the pipe ``agent.signals``; it appends its reports to
``agent.starter.jsonl``. The host's agent does the rest, with and without a container (ranks.py).
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from flagperf_driver import layout
from flagperf_driver.heartbeat import INIT, Heartbeat
from flagperf_driver.node import processes
from flagperf_driver.node.agent import oom
from flagperf_driver.node.agent.timer import now_ms
from flagperf_driver.node.confinement import ConfinedThread, Permissions, shared_memory
from flagperf_driver.node.folder import RANKS, SIGNALS, STARTER, STARTER_BEATS, FolderError, give_to_owner
from flagperf_driver.node.sampling import topology
from flagperf_driver.node.temporary import Temporary
from flagperf_driver.rank_process import RankProcess

Report = Mapping[str, Any]
ALL = -1  # in the place of a rank
_OPEN = "ranks have no namespaces: they may change times and modes of this user's files, and reach the user's processes"
_TICK_S = 0.1


class Starter:
    """Starts the ranks of an order; the kernel kills them when the thread that started them ends with this process."""

    def __init__(self, orders: RankOrders, folder: Path, reaper: processes.Reaper) -> None:
        self._orders = orders
        self._folder = folder
        self._reaper = reaper
        self._temporary: Temporary | None = None
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._reports: list[Report] = []
        self._memory_cause = partial(oom.cause, oom.count(), orders.limits_memory)

    @property
    def over(self) -> bool:
        """Whether no rank runs."""
        return not self._children

    def start(self) -> None:
        """Start all ranks, up to the first that cannot be started."""
        try:
            temporary = self._temporary = Temporary(self._orders.vendor_code)
        except FolderError as error:
            self._report("not_started", rank=self._orders.ranks[0].rank, problem=str(error))
            return
        self._reaper.guard_folder(temporary.path)
        confined = ConfinedThread(self._permissions(temporary))
        self._report("confined", problem=confined.problem)
        if self._orders.vendor_code and confined.shared:
            self._report("warning", sentence=f"{_OPEN}: {confined.shared}")
        for rank in self._orders.ranks:
            try:
                self._start(rank, temporary, confined)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                self._report("not_started", rank=rank.rank, problem=processes.spawn_problem(error, rank.argv[0]))
                return

    def reports(self) -> Sequence[Report]:
        """Return what happened since the last call."""
        for rank in [rank for rank, child in self._children.items() if processes.has_ended(child.pid)]:
            self._reap(rank, self._children.pop(rank))
        reports, self._reports = self._reports, []
        return reports

    def signal(self, number: int, rank: int = ALL) -> None:
        """Signal the processes of ranks: SIGUSR1 only to those with a handler, and SIGKILL until all are dead."""
        for child in [child for one, child in self._children.items() if rank in (one, ALL)]:
            if number == signal.SIGKILL:
                processes.kill_session(child.pid)
                continue
            processes.signal_session(child.pid, number, only_catchers=number == signal.SIGUSR1)
            if number == signal.SIGTERM:  # a stopped process handles it only after SIGCONT
                processes.signal_session(child.pid, signal.SIGCONT)

    def finish(self, within_s: float) -> None:  # noqa: ARG002 - as of a container
        """Forget the ranks that cannot be killed: what starts the ranks here ends with them."""
        self._children.clear()

    def abandon(self) -> None:
        """Kill all processes of all ranks."""
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Remove the ranks' temporary folder, after the end of all processes."""
        temporary = self._temporary
        if temporary is not None and not temporary.remove():
            self._report("warning", sentence=f"the ranks' temporary folder {temporary.path} could not be removed")

    def _start(self, rank: RankProcess, temporary: Temporary, confined: ConfinedThread) -> None:
        log = self._folder / layout.rank_log(rank.rank)
        env, cores = rank.environment(os.environ, temporary.env), self._cores(rank)
        child = processes.spawn(rank.argv, env, rank.cwd, log, cores, confined)
        self._reaper.guard(child.pid)
        self._children[rank.rank] = child
        self._report("started", rank=rank.rank, pid=child.pid, started_ms=now_ms(), argv=list(rank.argv))

    def _cores(self, rank: RankProcess) -> Sequence[int]:
        """Return the ordered cores that this process may use: a container or a scheduler may withhold some."""
        allowed = os.sched_getaffinity(0)
        missing = [cpu for cpu in rank.cpus if cpu not in allowed]
        if missing:
            sentence = (
                f"rank {rank.rank} should be bound to the cores {topology.as_list(rank.cpus)}, "
                f"but this process may not use {topology.as_list(missing)}"
            )
            self._report("warning", sentence=sentence)
        return [cpu for cpu in rank.cpus if cpu in allowed]

    def _permissions(self, temporary: Temporary) -> Permissions:
        for path in self._orders.writable:
            with suppress(OSError):  # the rank reports that it cannot use the folder
                Path(path).mkdir(parents=True, exist_ok=True)
        return Permissions(
            writable=[str(temporary.path), str(temporary.cache), shared_memory.FOLDER, *self._orders.writable],
            without_links=[str(self._folder)],
            hidden=[*map(str, temporary.others), *self._orders.hidden],
            processes="/proc",
        )

    def _reap(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        processes.kill_session(child.pid)
        code = child.wait()
        self._reaper.forget(child.pid)
        self._report("ended", rank=rank, code=code, memory=self._memory_cause() if code == -signal.SIGKILL else None)

    def _report(self, kind: str, **values: object) -> None:
        self._reports.append({"type": kind, **values})


# -- the order -----------------------------------------------------------------------------------------------------


class RankOrders(NamedTuple):
    """The ranks of the start message and the limits for them."""

    ranks: Sequence[RankProcess]
    init_s: float  # the maximum silence of a rank before its first step
    hang_s: float  # and after it
    round_s: float
    grace_s: float
    beat_s: float  # seconds between two reports of the ranks' progress to the controller
    show: bool  # send every line of the ranks' logs to the controller
    writable: Sequence[str]  # folders that ranks may change besides the round's own
    hidden: Sequence[str]  # folders that ranks may not read: earlier rounds and runs
    order_secret: int | None  # of the order of the data, if the first rank is here, and its training is repeated
    vendor_code: bool  # ranks run a vendor's own code, so they share no cache with other rounds
    limits_memory: bool  # a memory limit that the ranks see is their container's, and not the host's


def read_orders(body: Mapping[str, Any], log_dir: Path) -> RankOrders:
    """Check the start message; raise ValueError with the problem."""
    if not body.get("ranks"):
        raise ValueError("'ranks' is {}".format("empty" if "ranks" in body else "missing"))
    try:
        return RankOrders(
            ranks=[RankProcess.from_json(entry, str(log_dir)) for entry in body["ranks"]],
            init_s=_limit(body.get("init_timeout_s")),
            hang_s=_limit(body.get("hang_timeout_s")),
            round_s=_limit(body.get("round_timeout_s")),
            grace_s=float(body.get("grace_s", 3)),
            beat_s=float(body["beat_s"]),
            show=bool(body.get("show")),
            writable=[str(path) for path in body.get("writable") or ()],
            hidden=[str(path) for path in body.get("hidden") or ()],
            order_secret=body.get("order_secret"),
            vendor_code=bool(body.get("vendor_code")),
            limits_memory=bool(body.get("limits_memory")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _limit(seconds: object) -> float:
    """Return the limit in seconds; infinity if it is missing."""
    return math.inf if seconds is None else float(str(seconds))


# -- the program in a container ------------------------------------------------------------------------------------


def append(reports: Sequence[Report], unwritten: bytes = b"") -> bytes:
    """Append reports to the file in the current folder; return what a full disk does not take yet."""
    data = unwritten + b"".join(json.dumps(report).encode() + b"\n" for report in reports)
    with suppress(OSError):
        handle = os.open(STARTER, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            data = data[os.write(handle, data) :]
        finally:
            os.close(handle)
    return data


def main(arguments: Sequence[str]) -> int:
    """Start the ranks of the folder's order, and end with them."""
    folder = Path(arguments[0])
    os.chdir(folder)
    processes.adopt_orphans()
    processes.allow_descriptors()
    # By the clock of files.
    since_ns = Path(RANKS).stat().st_mtime_ns
    orders = read_orders(json.loads(Path(RANKS).read_text("utf-8")), folder)
    Path(RANKS).unlink()  # it has all variables of the ranks
    reaper = processes.Reaper()
    reaper.guard_shared_memory(since_ns)
    starter = Starter(orders, folder, reaper)
    _run(starter, orders.grace_s)
    processes.kill_children(except_pid=reaper.pid)
    shared_memory.remove(since_ns)
    starter.close()
    reaper.dismiss()
    give_to_owner(folder)
    append([*starter.reports(), {"type": "over"}])
    return 0


def _run(starter: Starter, grace_s: float) -> None:
    """Start the ranks, and follow the agent until all have ended; if it is gone, or at SIGTERM, end them."""
    signals = os.open(SIGNALS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    heartbeat = Heartbeat(Path(STARTER_BEATS))
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    starter.start()
    give_to_owner(Path())  # the agent bounds the ranks' logs
    unwritten, kill_at = b"", math.inf
    while True:
        heartbeat.beat(0, INIT)
        unwritten = append(starter.reports(), unwritten)
        if starter.over and not unwritten:
            return
        numbers = _read_signals(signals)
        for number, rank in numbers or ():
            starter.signal(number, rank)
        if (numbers is None or received) and kill_at == math.inf:
            kill_at = time.monotonic() + grace_s
            starter.signal(signal.SIGTERM)
            if numbers is not None:
                unwritten = append([{"type": "container", "sentence": "was ended by SIGTERM"}], unwritten)
        if time.monotonic() > kill_at:
            starter.signal(signal.SIGKILL)
        time.sleep(_TICK_S)


def _read_signals(pipe: int) -> Sequence[tuple[int, int]] | None:
    """Return the signals that have arrived, each with its rank; None if the agent has ended."""
    try:
        data = os.read(pipe, 1 << 12)
    except BlockingIOError:
        return []
    words = [int(word) for word in data.split()]
    return list(zip(words[::2], words[1::2])) if data else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
