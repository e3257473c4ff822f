"""What a round costs beyond its training: on this machine, on hosts over SSH, in containers there, and on more hosts.

    python -m benchmarks.round_overhead [--rounds 5] [--hosts 1 2 4 8] [--preflight 32]    # as root

A training of one second without any framework, run on hosts of the lab. Its own time is from the first rank's start to
the last one's end, as the hosts' agents have it; everything else is overhead. Twice it is measured: of a round (agents
and code there, devices leased, container, monitors, collection, its outcome stored), each after a first one that is not
counted; and of all of pytest, from the shell and back, with connections, what is looked at before a run, and reports.
The hosts share this machine's cores, so that more of them are slower here than machines of their own would be: how
much of a round is work of this process, which would be the same there, is told beside it in CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_flagperf.cluster.conf import ClusterConf
from pytest_flagperf.cluster.deploy import pack
from pytest_flagperf.cluster.fleet import each
from pytest_flagperf.cluster.ssh import ssh_hosts
from pytest_flagperf.preflight import Wants, inspect, sentences
from pytest_flagperf.run import Run
from tests.lab.lab import PYTHON, Lab, LabHost
from tests.plugin.conftest import Toy

STEPS, STEP_S = 16, 0.0625
PLACES = ("here", "ssh", "docker")
TITLES = {"here": "this machine", "ssh": "ssh, the host's Python", "docker": "ssh, docker"}
GOAL_S, FURTHER_S, PREFLIGHT_S = 2.0, 0.1, 10.0


class Bench:
    """A toy tree, and a lab for it."""

    def __init__(self, root: Path, lab: Lab, most: int, docker: bool) -> None:
        self.root = root
        self.lab = lab
        self.hosts = lab.hosts(most)
        self.own_s: list[float] = []  # CPU time of this process for each of the last rounds
        made: Any = SimpleNamespace(path=root)  # all that a tree needs of pytest's own fixture
        Toy(made).suite("alpha")
        (root / "pytest.ini").write_text("[pytest]\n")
        if docker:
            with ThreadPoolExecutor() as pool:
                list(pool.map(self._engine, self.hosts))

    def _engine(self, host: LabHost) -> None:
        host.docker()
        self.lab.image(host, PYTHON.parent)

    def settle(self, place: str, count: int) -> dict[str, Any]:
        """Write the settings for so many hosts; the options that go with them."""
        wanted: dict[str, Any] = {"nodes": f"{count}x1", "runtime": "docker" if place == "docker" else "host"}
        if place == "docker":
            options = " ".join(self.lab.container_options(PYTHON))
            wanted |= {"image": "flagperf-lab:python", "container-opt": [options]}
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in wanted.items())
        cluster = "" if place == "here" else self.lab.ssh_settings(self.hosts[:count]).toml()
        (self.root / "flagperf.toml").write_text(f'set = ["step_s={STEP_S}"]\n{lines}{cluster}')
        return wanted

    def rounds(self, place: str, count: int, number: int) -> list[float]:
        """The overhead of each of so many warm rounds."""
        self.settle(place, count)
        directory = self.root / "reports" / f"rounds-{place}-{count}-{time.monotonic_ns()}"
        run = Run.open(self.root, self.root, {"repeat": number + 1}, directory)
        assert run is not None
        (one,) = run.selection.cases
        run.prepare([one])
        found, own = [], []
        for k in range(1, number + 2):
            began, own_before = time.perf_counter(), time.process_time()
            outcome = run.outcome(one, k)
            wall = time.perf_counter() - began
            assert outcome.ok, outcome.failures
            own.append(time.process_time() - own_before)
            found.append(wall - trained_s(run.round_directory(outcome)))
        run.venue.close()
        self.own_s = own[1:]
        return found[1:]

    def whole(self, place: str, count: int, number: int) -> list[float]:
        """The overhead of each of so many runs of pytest."""
        self.settle(place, count)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "suites", "-k", "converges"]
        found = []
        for _ in range(number):
            began = time.perf_counter()
            done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
            wall = time.perf_counter() - began
            assert done.returncode == 0, done.stdout + done.stderr
            (round_,) = max(self.root.glob("reports/run*"), key=os.path.getmtime).glob("*/round1")
            found.append(wall - trained_s(round_))
        return found


def trained_s(round_: Path) -> float:
    """From the first rank's start to the last one's end."""
    exits = [json.loads(path.read_text()) for path in round_.glob("*/rank*.exit.json")]
    return float(max(each["ended_ms"] for each in exits) - min(each["started_ms"] for each in exits)) / 1000


@contextmanager
def bench(most: int, docker: bool) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as root, Lab() as lab:
        os.environ["FLAGPERF_LEASES"] = f"{root}/leases"
        yield Bench(Path(root), lab, most, docker)


def preflight_s(lab: Lab, count: int) -> list[float]:
    """Looking at all hosts: cold, with connections to be made and code to be brought, and again."""
    told = lab.ssh_settings(lab.hosts(count, fresh=True))
    hosts = ssh_hosts(ClusterConf(tuple(told.hosts), told.user, told.port, told.key, told.known_hosts))
    wants = Wants(pack({}), nnodes=2)
    took = []
    try:
        for _ in range(2):
            began = time.perf_counter()
            findings = inspect(hosts, wants)
            took.append(time.perf_counter() - began)
        print("\n".join(sentences(findings)) or "all well")
    finally:
        each(hosts, lambda host: host.close())
    return took


def compare(made: Bench, places: Sequence[str], counts: Sequence[int], number: int) -> None:
    print(f"{'where':24}{'hosts':>6}{'a round':>24}{'our CPU':>9}{'all of pytest':>24}   goal")
    for place in places:
        first: dict[str, float] = {}
        for count in counts if place != "here" else [1]:
            found = {"round": made.rounds(place, count, number), "pytest": made.whole(place, count, number)}
            first = first or {kind: statistics.median(costs) for kind, costs in found.items()}
            own = f"{statistics.median(made.own_s) * 1000:6.0f} ms"
            line = f"{TITLES[place]:24}{count:6}{_said(found['round'])}{own}{_said(found['pytest'])}"
            print(f"{line}   {_judged(found, first, count)}", flush=True)


def _said(costs: Sequence[float]) -> str:
    return f"{statistics.median(costs):10.2f} s ({min(costs):.2f}-{max(costs):.2f})".rjust(24)


def _judged(found: dict[str, list[float]], first: dict[str, float], count: int) -> str:
    """Both figures, each against its goal."""
    middle = {kind: statistics.median(costs) for kind, costs in found.items()}
    if count == 1:
        return f"{GOAL_S:g} s: " + " and ".join(_met(cost, GOAL_S) for cost in middle.values())
    more = [(middle[kind] - first[kind]) / (count - 1) for kind in middle]
    told = " and ".join(f"{cost:+.2f} s {_met(cost, FURTHER_S)}" for cost in more)
    return f"{FURTHER_S:g} s a further host: {told}"


def _met(got: float, goal: float) -> str:
    return "met" if got <= goal else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement (5)")
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 2, 4, 8], help="how many there are (1 2 4 8)")
    parser.add_argument("--places", nargs="*", default=PLACES, choices=PLACES, help="of %(default)s")
    parser.add_argument("--preflight", type=int, default=32, help="how many hosts are looked at (32; 0: none)")
    asked = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {asked.rounds} of each")
    if asked.places:
        with bench(max(asked.hosts), "docker" in asked.places) as made:
            compare(made, asked.places, asked.hosts, asked.rounds)
    if asked.preflight:
        with Lab() as lab:
            cold, again = preflight_s(lab, asked.preflight)
            print(f"preflight of {asked.preflight} hosts: {cold:.2f} s, again {again:.2f} s; ", end="")
            print(f"goal {PREFLIGHT_S:g} s: {_met(cold, PREFLIGHT_S)}")


if __name__ == "__main__":
    main()
