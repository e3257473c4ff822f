"""The overhead of a round: on this machine, on hosts over SSH, in containers on these hosts, and on several hosts.

A training of one second without a framework runs on hosts of the tests' lab. Its time is from the first rank's start to
the last rank's end, recorded by the hosts' agents; everything else is overhead. Two times are measured. *A round*:
start of agents, comparison of code, leases, container, monitors, collection and the stored outcome; the first round
does not count. *All of pytest*: the whole command, with connections, preflight and reports. The hosts share the cores
of this machine, so several hosts are slower here than separate machines; the CPU time of this process would not change.
*By hand*: ssh and docker run start one process on each host that sleeps for a second.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
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
from tests.lab.engine import WITH_PYTHON
from tests.lab.lab import PYTHON, Lab, LabHost
from tests.plugin.conftest import Toy

from .section import PYTEST, Goal, Section, Took, table, timed

STEP_S = 1 / 16  # the training has 16 steps
ROUNDS = 5
HOSTS = (1, 2, 4, 8)
TITLES = {"here": "this machine", "ssh": "ssh, the host's Python", "docker": "ssh, docker"}
BY_HAND = "by hand: ssh, docker run"


@dataclass(frozen=True)
class Cost:
    """Overhead of each round and of each run of pytest in seconds; ``own`` is the harness's CPU seconds of a round."""

    rounds: list[float]
    own: list[float]
    whole: list[float]


class Bench:
    """A toy tree and a lab for it."""

    def __init__(self, root: Path, lab: Lab) -> None:
        self.root = root
        self.lab = lab
        self.hosts = lab.hosts(HOSTS[-1])
        made: Any = SimpleNamespace(path=root)  # the only attribute that the toy needs from pytest's fixture
        Toy(made).suite("alpha")
        (root / "pytest.ini").write_text("[pytest]\n")
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._engine, self.hosts))

    def _engine(self, host: LabHost) -> None:
        host.docker()
        self.lab.image(host, PYTHON.parent)

    def write_settings(self, place: str, count: int) -> None:
        """Write the settings for ``count`` hosts."""
        options: dict[str, Any] = {"nodes": f"{count}x1", "runtime": "docker" if place == "docker" else "host"}
        if place == "docker":
            container_options = " ".join(self.lab.container_options(PYTHON))
            options |= {"image": WITH_PYTHON, "container-opt": [container_options]}
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
        cluster = "" if place == "here" else self.lab.ssh_settings(self.hosts[:count]).toml()
        (self.root / "flagperf.toml").write_text(f'set = ["step_s={STEP_S}"]\n{lines}{cluster}')

    def cost(self, place: str, count: int) -> Cost:
        """Measure warm rounds and whole runs of pytest."""
        self.write_settings(place, count)
        rounds, own = self._rounds(self.root / "reports" / f"rounds-{place}-{count}")
        return Cost(rounds, own, [self._whole() for _ in range(ROUNDS)])

    def _rounds(self, directory: Path) -> tuple[list[float], list[float]]:
        run = Run.open(self.root, self.root, {"repeat": ROUNDS + 1}, directory)
        assert run is not None
        (case,) = run.selection.cases
        run.prepare([case])
        overheads, own = [], []
        for number in range(1, ROUNDS + 2):
            began, own_before = time.perf_counter(), time.process_time()
            outcome = run.rounds.outcome(case, number)
            wall = time.perf_counter() - began
            assert outcome.ok, outcome.failures
            own.append(time.process_time() - own_before)
            overheads.append(wall - trained_s(run.rounds.folder(case, number)))
        run.engine.close()
        return overheads[1:], own[1:]

    def _whole(self) -> float:
        took = timed([*PYTEST, "suites", "-k", "converges"], self.root)
        (round_,) = max(self.root.glob("reports/run*"), key=os.path.getmtime).glob("*/round1")
        return took.wall_s - trained_s(round_)

    def by_hand(self, count: int) -> list[float]:
        """Return the overhead of containers that are started by hand on ``count`` hosts at once, in seconds."""
        options = self.lab.container_options(PYTHON)
        program = "'__import__(\"time\").sleep(1)'"
        argv = ["docker", "run", "--rm", "--network=host", *options, WITH_PYTHON, "python3", "-c", program]
        return [_seconds_of_all([host.ssh(*argv) for host in self.hosts[:count]]) - 1 for _ in range(ROUNDS)]

    def empty_test(self) -> Took:
        """Run pytest with one empty test, without this plugin."""
        folder = self.root / "empty"
        folder.mkdir(exist_ok=True)
        (folder / "test_empty.py").write_text("def test_empty(): pass\n")
        return timed([*PYTEST, "-p", "no:flagperf", "-c", os.devnull, "--rootdir=."], folder)


def _seconds_of_all(commands: Sequence[Sequence[str]]) -> float:
    """Return how long commands take that start at once."""
    began = time.perf_counter()
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    codes = [process.wait() for process in started]
    took = time.perf_counter() - began
    assert not any(codes), codes
    return took


def trained_s(round_: Path) -> float:
    """Return the seconds from the first rank's start to the last rank's end."""
    exits = [json.loads(path.read_text()) for path in round_.glob("*/rank*.exit.json")]
    return float(max(rank["ended_ms"] for rank in exits) - min(rank["started_ms"] for rank in exits)) / 1000


@contextmanager
def bench() -> Iterator[Bench]:
    """Create a bench with all hosts and a Docker engine on each host."""
    with tempfile.TemporaryDirectory() as root, Lab() as lab:
        os.environ["FLAGPERF_LEASES"] = f"{root}/leases"
        # The ranks' python3. A version manager's is a script, which starts 40 processes to find an interpreter.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        yield Bench(Path(root), lab)


def measure() -> Section:
    """Measure every place with every number of hosts."""
    with bench() as made:
        empty_s = statistics.median(made.empty_test().wall_s for _ in range(ROUNDS))
        costs = {
            (place, count): made.cost(place, count)
            for place in TITLES
            for count in (HOSTS if place != "here" else HOSTS[:1])
        }
        by_hand = {count: made.by_hand(count) for count in (HOSTS[0], HOSTS[-1])}
    rows = []
    for (place, count), cost in costs.items():
        own = f"{statistics.median(cost.own) * 1000:.0f} ms"
        rows.append((TITLES[place], str(count), spread(cost.rounds), own, spread(cost.whole)))
    rows += [(BY_HAND, str(count), spread(seconds), "", "") for count, seconds in by_hand.items()]
    head = ("where", "hosts", "a round", "of it the harness's CPU", "all of pytest")
    beside = f"A run of pytest with one empty test, without this plugin, took {empty_s:.2f} s."
    return Section([table(head, rows), beside], list(goals(costs, by_hand, empty_s)))


def goals(
    costs: Mapping[tuple[str, int], Cost], by_hand: Mapping[int, Sequence[float]], empty_s: float
) -> Iterator[Goal]:
    """Yield the goals for one host and for each further host; of containers, beyond what Docker itself takes."""
    most = HOSTS[-1]
    docker = {count: statistics.median(seconds) for count, seconds in by_hand.items()}
    yield Goal("ssh and docker, one host: a round", 2, statistics.median(costs["docker", 1].rounds), "s", noise=0.3)
    for place, beyond, without_s in (("here", "", 0.0), ("docker", " and docker run", docker[1])):
        more = statistics.median(costs[place, 1].whole) - empty_s - without_s
        yield Goal(f"{TITLES[place]}: all of pytest beyond an empty test{beyond}", 0.5, more, "s", noise=0.3)
    for place, beyond, without_s in (("ssh", "", 0.0), ("docker", " beyond docker run", docker[most] - docker[1])):
        few, many = costs[place, 1], costs[place, most]
        further = (statistics.median(many.rounds) - statistics.median(few.rounds) - without_s) / (most - 1)
        own = (statistics.median(many.own) - statistics.median(few.own)) / (most - 1)
        yield Goal(f"{TITLES[place]}: a round, each further host up to {most}{beyond}", 0.1, further, "s", noise=0.3)
        yield Goal(f"{TITLES[place]}: the harness's CPU, each further host", 20, own * 1000, "ms", noise=0.2)


def spread(costs: Sequence[float]) -> str:
    """Return the median, with the lowest and the highest value in brackets."""
    return f"{statistics.median(costs):.2f} s ({min(costs):.2f}-{max(costs):.2f})"
