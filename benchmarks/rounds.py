"""What a round costs beyond its training: on this machine, on hosts over SSH, in containers there, and on more hosts.

A training of one second without any framework runs on hosts of the tests' lab. Its own time is from the first rank's
start to the last one's end, as the hosts' agents have it; everything else is overhead. Two things are measured. *A
round*: agents and code there, devices leased, container, monitors, collection, its outcome stored; a first round is not
counted. *All of pytest*: from the shell and back, with connections, preflight and reports. The hosts share the cores of
this machine, so more of them are slower here than machines of their own would be; the CPU time of this process would be
the same there.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_flagperf.running.run import Run
from tests.lab.lab import PYTHON, Lab, LabHost
from tests.plugin.conftest import Toy

from .section import PYTEST, Goal, Section, Took, table, timed

STEP_S = 1 / 16  # of a training of 16 steps
ROUNDS = 5
HOSTS = (1, 2, 4, 8)
TITLES = {"here": "this machine", "ssh": "ssh, the host's Python", "docker": "ssh, docker"}


@dataclass(frozen=True)
class Cost:
    """Seconds beyond the training, of each round and of each run of pytest; CPU seconds of the harness for a round."""

    rounds: list[float]
    own: list[float]
    whole: list[float]


class Bench:
    """A toy tree, and a lab for it."""

    def __init__(self, root: Path, lab: Lab) -> None:
        self.root = root
        self.lab = lab
        self.hosts = lab.hosts(HOSTS[-1])
        made: Any = SimpleNamespace(path=root)  # all that a tree needs of pytest's own fixture
        Toy(made).suite("alpha")
        (root / "pytest.ini").write_text("[pytest]\n")
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._engine, self.hosts))

    def _engine(self, host: LabHost) -> None:
        host.docker()
        self.lab.image(host, PYTHON.parent)

    def settle(self, place: str, count: int) -> None:
        """Write the settings for so many hosts."""
        wanted: dict[str, Any] = {"nodes": f"{count}x1", "runtime": "docker" if place == "docker" else "host"}
        if place == "docker":
            options = " ".join(self.lab.container_options(PYTHON))
            wanted |= {"image": "flagperf-lab:python", "container-opt": [options]}
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in wanted.items())
        cluster = "" if place == "here" else self.lab.ssh_settings(self.hosts[:count]).toml()
        (self.root / "flagperf.toml").write_text(f'set = ["step_s={STEP_S}"]\n{lines}{cluster}')

    def cost(self, place: str, count: int) -> Cost:
        """Measure warm rounds and whole runs of pytest."""
        self.settle(place, count)
        rounds, own = self._rounds(self.root / "reports" / f"rounds-{place}-{count}")
        return Cost(rounds, own, [self._whole() for _ in range(ROUNDS)])

    def _rounds(self, directory: Path) -> tuple[list[float], list[float]]:
        run = Run.open(self.root, self.root, {"repeat": ROUNDS + 1}, directory)
        assert run is not None
        (one,) = run.selection.cases
        run.plans.prepare([one])
        found, own = [], []
        for number in range(1, ROUNDS + 2):
            began, own_before = time.perf_counter(), time.process_time()
            outcome = run.rounds.outcome(one, number)
            wall = time.perf_counter() - began
            assert outcome.ok, outcome.failures
            own.append(time.process_time() - own_before)
            found.append(wall - trained_s(run.rounds.folder(one, number)))
        run.engine.close()
        return found[1:], own[1:]

    def _whole(self) -> float:
        took = timed([*PYTEST, "suites", "-k", "converges"], self.root)
        (round_,) = max(self.root.glob("reports/run*"), key=os.path.getmtime).glob("*/round1")
        return took.wall_s - trained_s(round_)

    def empty_test(self) -> Took:
        """A whole run of pytest with one empty test, without our plugin."""
        folder = self.root / "empty"
        folder.mkdir(exist_ok=True)
        (folder / "test_empty.py").write_text("def test_empty(): pass\n")
        return timed([*PYTEST, "-p", "no:flagperf", "-c", os.devnull, "--rootdir=."], folder)


def trained_s(round_: Path) -> float:
    """From the first rank's start to the last one's end."""
    exits = [json.loads(path.read_text()) for path in round_.glob("*/rank*.exit.json")]
    return float(max(each["ended_ms"] for each in exits) - min(each["started_ms"] for each in exits)) / 1000


@contextmanager
def bench() -> Iterator[Bench]:
    """A bench with all hosts, and an engine on each."""
    with tempfile.TemporaryDirectory() as root, Lab() as lab:
        os.environ["FLAGPERF_LEASES"] = f"{root}/leases"
        # The ranks' python3. A version manager's is a script, which starts 40 processes to find an interpreter.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        yield Bench(Path(root), lab)


def measure() -> Section:
    """Measure every place at every number of hosts."""
    with bench() as made:
        empty_s = statistics.median(made.empty_test().wall_s for _ in range(ROUNDS))
        costs = {
            (place, count): made.cost(place, count)
            for place in TITLES
            for count in (HOSTS if place != "here" else HOSTS[:1])
        }
    rows = []
    for (place, count), cost in costs.items():
        own = f"{statistics.median(cost.own) * 1000:.0f} ms"
        rows.append((TITLES[place], str(count), spread(cost.rounds), own, spread(cost.whole)))
    head = ("where", "hosts", "a round", "of it the harness's CPU", "all of pytest")
    beside = f"A run of pytest with one empty test, without this plugin, took {empty_s:.2f} s."
    return Section([table(head, rows), beside], list(goals(costs, empty_s)))


def goals(costs: Mapping[tuple[str, int], Cost], empty_s: float) -> Iterator[Goal]:
    """What one host may cost, and each further one."""
    one = costs["docker", 1]
    yield Goal("ssh and docker, one host: a round", 2, statistics.median(one.rounds), "s", noise=0.3)
    for place in ("here", "docker"):
        more = statistics.median(costs[place, 1].whole) - empty_s
        yield Goal(f"{TITLES[place]}: all of pytest beyond an empty test", 0.5, more, "s", noise=0.3)
    most = HOSTS[-1]
    for place in ("ssh", "docker"):
        few, many = costs[place, 1], costs[place, most]
        further = (statistics.median(many.rounds) - statistics.median(few.rounds)) / (most - 1)
        own = (statistics.median(many.own) - statistics.median(few.own)) / (most - 1)
        yield Goal(f"{TITLES[place]}: a round, each further host up to {most}", 0.1, further, "s", noise=0.3)
        yield Goal(f"{TITLES[place]}: the harness's CPU, each further host", 20, own * 1000, "ms", noise=0.2)


def spread(costs: Sequence[float]) -> str:
    """The median, and in brackets the lowest and the highest."""
    return f"{statistics.median(costs):.2f} s ({min(costs):.2f}-{max(costs):.2f})"
