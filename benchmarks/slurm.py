"""A round on the nodes of a Slurm job beside the same round over SSH: its overhead, and the controller's CPU per node.

Both run on the same hosts of the tests' lab, one after the other. The CPU time is that of a whole run of three rounds,
with connections and preflight, and includes the processes of srun and scontrol. The hosts share the cores of this
machine, so several hosts are slower here than separate machines; the CPU time would not change.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_flagperf.running.run import Run
from tests.helpers.trees import set_options
from tests.lab.lab import Lab
from tests.lab.slurm import Slurm
from tests.plugin.conftest import Toy

from .rounds import STEP_S, spread, trained_s
from .section import Goal, Section, children_s, table

ROUNDS = 3
NODES = (1, 4, 16, 32, 64)
TRIES = 5
TITLES = {"ssh": "ssh", "slurm": "a job of Slurm"}


class Bench:
    """A toy tree, a lab and its Slurm."""

    def __init__(self, root: Path, lab: Lab, slurm: Slurm) -> None:
        self.root = root
        self.lab = lab
        self.slurm = slurm
        self._runs = 0
        made: Any = SimpleNamespace(path=root)  # the only attribute that the toy needs from pytest's fixture
        Toy(made).suite("alpha")

    def cost(self, place: str, count: int) -> tuple[list[float], float]:
        """Return the overhead of each round but the first, and the CPU seconds of the whole run."""
        self._runs += 1
        cluster = self.lab.ssh_settings(self.slurm.hosts[:count]).toml() if place == "ssh" else ""
        (self.root / "flagperf.toml").write_text(cluster)
        set_options(self.root, nodes=f"{count}x1", runtime="host", set=[f"step_s={STEP_S}"])
        given = {"repeat": ROUNDS, **({"cluster": "slurm"} if place == "slurm" else {})}
        cpu_before, overheads = time.process_time() + children_s(), []
        run = Run.open(self.root, self.root, given, self.root / "reports" / f"run{self._runs}")
        assert run is not None
        (case,) = run.selection.cases
        run.prepare([case])
        for number in range(1, ROUNDS + 1):
            began = time.perf_counter()
            outcome = run.rounds.outcome(case, number)
            # 64 agents on a few cores see a record up to half a second late.
            failures = [failure for failure in outcome.failures if failure.kind != "contradiction"]
            assert not failures, failures
            overheads.append(time.perf_counter() - began - trained_s(run.rounds.folder(case, number)))
        run.engine.close()
        return overheads[1:], time.process_time() + children_s() - cpu_before

    def srun(self, number: str) -> float:
        """Return the seconds of an srun that does nothing."""
        began = time.perf_counter()
        subprocess.run(
            ["srun", "--overlap", f"--jobid={number}", "--ntasks=1", "--nodes=1", "--chdir=/", "true"], check=True
        )
        return time.perf_counter() - began


@contextmanager
def bench() -> Iterator[Bench]:
    """Create a bench; the environment is that of a login node."""
    with (
        tempfile.TemporaryDirectory() as root,
        Lab() as lab,
        _room_for_neighbours(),
        Slurm(lab, lab.hosts(NODES[-1]), node_timeout_s=300) as slurm,
    ):
        os.environ |= {"FLAGPERF_LEASES": f"{root}/leases", "SLURM_CONF": str(slurm.conf)}
        # The ranks' python3. A version manager's is a script, which starts 40 processes to find an interpreter.
        os.environ["PATH"] = f"{Path(sys.executable).resolve().parent}{os.pathsep}{os.environ['PATH']}"
        yield Bench(Path(root), lab, slurm)


@contextmanager
def _room_for_neighbours() -> Iterator[None]:
    """Let the kernel's one table of neighbours hold those of all hosts of the lab: real hosts have a table each."""
    tables = Path("/proc/sys/net/ipv4/neigh/default")
    names = ("gc_thresh3", "gc_thresh2", "gc_thresh1")
    before = {name: (tables / name).read_text() for name in names}
    for name in names:
        (tables / name).write_text(str(NODES[-1] ** 2 * 2))
    try:
        yield
    finally:
        for name in reversed(names):
            (tables / name).write_text(before[name])


def measure() -> Section:
    """Measure both places with every number of hosts."""
    costs: dict[tuple[str, int], tuple[list[float], float]] = {}
    with bench() as made:
        number = made.slurm.allocate(f"--nodes={NODES[0]}")
        srun_s = statistics.median(made.srun(number) for _ in range(TRIES))
        made.slurm.command("scancel", number)
        for count in NODES:
            os.environ["SLURM_JOB_ID"] = made.slurm.allocate(f"--nodes={count}")
            for place in TITLES:
                costs[place, count] = made.cost(place, count)
            made.slurm.command("scancel", os.environ.pop("SLURM_JOB_ID"))
    rows = [
        (TITLES[place], str(count), spread(rounds), f"{cpu_s * 1000:.0f} ms")
        for (place, count), (rounds, cpu_s) in costs.items()
    ]
    head = ("where", "hosts", "a round", f"CPU of a run of {ROUNDS} rounds")
    beside = f"An srun that does nothing took {srun_s:.2f} s."
    return Section([table(head, rows), beside], list(goals(costs, srun_s)))


def goals(costs: dict[tuple[str, int], tuple[list[float], float]], srun_s: float) -> Iterator[Goal]:
    """Yield the goals: the overhead beside SSH, and the CPU of each further node for one round."""
    count = NODES[-1]
    more = statistics.median(costs["slurm", count][0]) - statistics.median(costs["ssh", count][0]) - srun_s
    yield Goal(f"{count} hosts: a round beyond a round over ssh and an srun", 1, more, "s", noise=0.3)
    few, many = costs["slurm", NODES[0]][1], costs["slurm", NODES[-1]][1]
    own = (many - few) / (NODES[-1] - NODES[0]) / ROUNDS
    yield Goal("the controller's CPU, each further node and round", 20, own * 1000, "ms", noise=0.2)
