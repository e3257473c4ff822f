"""Run the toy's trainings in a framework's environment, and read their results."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
LIMIT_S = 1800.0
"""Enough for 2 cores that other tests use as well; only a hang takes longer."""


@dataclass(frozen=True)
class Trained:
    """The results of one training."""

    events: list[tuple[str, dict[str, Any]]]
    error: str | None
    weights: dict[str, Any]
    log: str
    case: dict[str, Any]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [value for name, value in self.events if name == event]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    @property
    def finished(self) -> dict[str, Any]:
        (value,) = self.of("FINISHED")
        return value

    @property
    def losses(self) -> dict[int, float]:
        return {value["step"]: value["loss"] for value in self.of("STEP_END")}


@dataclass(frozen=True)
class RankResults:
    """The results of one rank's process, by scenario."""

    scenarios: dict[str, Any]

    def __getitem__(self, name: str) -> Trained:
        return self.within(name)

    def within(self, *names: str) -> Trained:
        """Return a training; of a nested scenario, by the names on its path."""
        return Trained(**self.value(*names))

    def value(self, *names: str) -> Any:
        value: Any = self.scenarios
        for name in names:
            value = value[name]
        return value


def run_ranks(
    argv: Sequence[str], repo: Path, folder: Path, count: int, **environment: str
) -> list[subprocess.Popen[str]]:
    """Start a program as ``count`` ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = []
    for rank in range(count):
        env = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(repo),
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error::FutureWarning:flagperf_driver",
            **environment,
        }  # fmt: skip
        ranks.append(
            subprocess.Popen(argv, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    return ranks


def wait(ranks: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Wait for all ranks and return their output."""
    try:
        return [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def run_scenarios(
    framework: str, python: str, repo: Path, folder: Path, *module: str
) -> tuple[RankResults, list[RankResults]]:
    """Run all scenarios of scenarios.py on one rank and, at the same time, on two ranks; return their results."""
    running = {}
    for count in (1, 2):
        place = folder / f"ranks{count}"
        place.mkdir()
        running[place] = run_ranks(
            [python, str(HERE / "scenarios.py"), framework, str(place), *module], repo, place, count
        )
    found = []
    try:
        for place, ranks in running.items():
            output = wait(ranks)
            assert {rank.returncode for rank in ranks} == {0}, "\n".join(output)
            paths = [place / f"rank{rank}.json" for rank in range(len(ranks))]
            found.append([RankResults(json.loads(path.read_text())) for path in paths])
    finally:
        for rank in itertools.chain(*running.values()):
            rank.kill()
    return found[0][0], found[1]


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the largest difference of two sets of weights."""
    assert set(one) == set(other)
    return max(float(np.abs(np.asarray(one[name]) - np.asarray(other[name])).max()) for name in one)
