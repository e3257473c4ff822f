"""What a host costs the controller: one round over SSH on up to 1,024 hosts of 8 ranks.

The last hosts are real ones of the tests' lab, with one rank each: sshd, the agent and the rank are processes of this
machine. The others are simulated: one process of this machine speaks the hosts' side of the real protocol over real SSH
connections, and the first host is a real one whose messages the others repeat (``benchmarks/simulated_hosts.py``). The
controller is the real one, in a process of its own; only its CPU time, memory, threads and descriptors count. The wall
time includes the hosts, which have the same cores.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.simulated_hosts import SimulatedHosts
from pytest_flagperf.running.run import Run
from tests.helpers.trees import set_options
from tests.lab.lab import Cluster, Lab
from tests.plugin.conftest import Toy

from .section import Goal, Section, children_s, table

COUNTS = (64, 256, 512, 1024)  # the threads for fewer hosts do not share a core
CARDS = 8
REAL = 256
STEP_S = 1.0  # the training has 16 steps
_TICK_S = 0.5


@dataclass(frozen=True)
class Cost:
    """What one run of one round cost the controller."""

    hosts: int
    cards: int
    start_s: float
    """CPU seconds from nothing to the training."""
    running: float
    """CPU seconds of a second of the training."""
    end_s: float
    """CPU seconds from the end of the training to the outcome."""
    beyond_s: float
    """Wall seconds of the run without those of the training."""
    memory_mib: float
    threads: int
    descriptors: int

    @property
    def cpu_s(self) -> float:
        return self.start_s + self.end_s


@dataclass(frozen=True)
class Tick:
    """What the controller used up to a moment."""

    time: float
    cpu_s: float
    threads: int
    descriptors: int

    @classmethod
    def now(cls) -> Tick:
        folder = Path("/proc/self/fd")
        descriptors = folder.stat().st_size or len(list(folder.iterdir()))  # the size is their number since Linux 6.2
        return cls(time.time(), time.process_time() + children_s(), threading.active_count(), descriptors)


def set_up(root: Path, set_variable: Callable[[str, str], object]) -> None:
    """Write the toy's tree, and set the environment of a controller and of the real host."""
    made: Any = SimpleNamespace(path=root)  # the only attribute that the toy needs from pytest's fixture
    Toy(made).suite("alpha")
    set_variable("FLAGPERF_LEASES", f"{root}/leases")
    set_variable("FLAGPERF_CACHE", f"{root}/cache")
    # The ranks' python3. A version manager's is a script, which starts 40 processes to find an interpreter.
    set_variable("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def run_round(root: Path, cluster: str, hosts: int, cards: int) -> Path:
    """Run a round on so many hosts and return its directory."""
    (root / "flagperf.toml").write_text(cluster)
    set_options(root, nodes=f"{hosts}x{cards}", runtime="host", set=[f"step_s={STEP_S}"])
    run = Run.open(root, root, {"repeat": 1}, root / "reports" / f"run{hosts}")
    assert run is not None
    (case,) = run.selection.cases
    gc.freeze()  # as the plugin does
    with closing(run.engine):
        run.prepare([case])
        outcome = run.rounds.outcome(case, 1)
    # One machine with hundreds of hosts reads a record up to half a second late.
    failures = [failure for failure in outcome.failures if failure.kind != "contradiction"]
    assert not failures, failures[:3]
    return run.rounds.folder(case, 1)


def run(root: Path, cluster: str, hosts: int, cards: int) -> Cost:
    """Run a round in this process and return what it cost."""
    ticks, over = [Tick.now()], threading.Event()

    def tick() -> None:
        while not over.wait(_TICK_S):
            ticks.append(Tick.now())

    threading.Thread(target=tick, daemon=True).start()
    round_ = run_round(root, cluster, hosts, cards)
    over.set()
    return cost(hosts, cards, [*ticks, Tick.now()], round_)


def cost(hosts: int, cards: int, ticks: Sequence[Tick], round_: Path) -> Cost:
    """Return the cost of a run, from what the controller used at some moments and the round's files."""
    exits = [json.loads(path.read_text()) for path in round_.glob("*_noderank0/rank*.exit.json")]
    began = max(rank["started_ms"] for rank in exits) / 1000
    ended = min(rank["ended_ms"] for rank in exits) / 1000
    # In the second half of the training all hosts train; before, the last ones may still get their orders.
    middle = [tick for tick in ticks if (began + ended) / 2 <= tick.time <= ended - _TICK_S]
    before = max(tick.cpu_s for tick in ticks if tick.time <= began + _TICK_S)
    after = max(tick.cpu_s for tick in ticks if tick.time <= ended)
    running = (middle[-1].cpu_s - middle[0].cpu_s) / (middle[-1].time - middle[0].time)
    return Cost(
        hosts,
        cards,
        # Orders that are sent while the first hosts train belong to the start.
        before - ticks[0].cpu_s + max(0.0, after - before - running * (ended - began)),
        running,
        ticks[-1].cpu_s - after,
        ticks[-1].time - ticks[0].time - (ended - began),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        max(tick.threads for tick in ticks),
        max(tick.descriptors for tick in ticks),
    )


def costs(root: Path, counts: Sequence[int]) -> Iterator[Cost]:
    """Yield the cost of a run on each number of simulated hosts."""
    for count in counts:
        with SimulatedHosts(root / "hosts", count, CARDS, f"s{count}h") as hosts:
            yield in_own_process(root, hosts.settings, count, CARDS)


@contextmanager
def large_neighbour_table() -> Iterator[None]:
    """Let this machine's kernel know the link addresses of many neighbours."""
    limits = [Path(f"/proc/sys/net/ipv4/neigh/default/gc_thresh{number}") for number in (3, 2, 1)]
    before = [limit.read_text() for limit in limits]
    try:
        for limit in limits:
            limit.write_text("65536")
        yield
    finally:
        for limit, text in zip(reversed(limits), reversed(before), strict=True):
            limit.write_text(text)


def real_cost(root: Path, count: int) -> Cost:
    """Return the cost of a run on so many hosts of the lab."""
    # All hosts' neighbours are in one table of this kernel, whose usual 1,024 places are too few.
    with large_neighbour_table(), Lab() as lab:
        return in_own_process(root, lab.ssh_settings(lab.hosts(count)), count, 1)


def in_own_process(root: Path, cluster: Cluster, hosts: int, cards: int) -> Cost:
    """Return the cost of a run, whose controller has a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as controller:
        return controller.submit(run, root, cluster.toml(), hosts, cards).result()


def fit(values: Mapping[int, float]) -> tuple[float, float, float]:
    """Return a, b and c of the curve a + b N + c N^2 that is nearest to the values, with errors in proportion to N."""
    hosts = np.array(list(values), dtype=float)
    columns = np.stack([np.ones_like(hosts), hosts, hosts**2], axis=1) / hosts[:, None]
    a, b, c = np.linalg.lstsq(columns, np.array(list(values.values())) / hosts, rcond=None)[0]
    return float(a), float(b), float(c)


def square_share(values: Mapping[int, float], hosts: int) -> float:
    """Return the share of the square in the fitted cost of so many hosts."""
    a, b, c = fit(values)
    return max(0.0, c * hosts**2 / (a + b * hosts + c * hosts**2))


def measure() -> Section:
    """Measure with every number of hosts."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        set_up(root, os.environ.__setitem__)
        found = list(costs(root, COUNTS))
        real = real_cost(root, REAL)
    head = (
        "hosts", "ranks", "CPU to start", "CPU to end", "of a core while it runs", "beyond the training", "memory",
        "threads", "descriptors",
    )  # fmt: skip
    rows = [
        (
            f"{one.hosts:,}{', real' * (one is real)}", f"{one.hosts * one.cards:,}",
            f"{one.start_s:.1f} s", f"{one.end_s:.1f} s",
            f"{one.running:.1%}", f"{one.beyond_s:.0f} s", f"{one.memory_mib:,.0f} MiB", f"{one.threads:,}",
            f"{one.descriptors:,}",
        )
        for one in (*found, real)
    ]  # fmt: skip
    return Section([table(head, rows)], list(goals(found)))


def goals(found: Sequence[Cost]) -> Iterator[Goal]:
    """Yield the goals of the largest number of hosts, and the one of the curve's shape."""
    most = found[-1]
    yield Goal(f"{most.hosts:,} hosts: CPU to start and to end", 20, most.cpu_s, "s", noise=0.2)
    yield Goal(f"{most.hosts:,} hosts: CPU while it runs", 10, most.running * 100, "% of a core", noise=0.2)
    yield Goal(f"{most.hosts:,} hosts: memory", 1024, most.memory_mib, "MiB", noise=0.1)
    share = square_share({one.hosts: one.cpu_s for one in found}, most.hosts)
    yield Goal(f"{most.hosts:,} hosts: share of the square in the CPU", 10, share * 100, "%", noise=0.2)
