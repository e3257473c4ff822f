"""Run the toy's trainings once for all tests, in the torch environment, on one rank and on two ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
LIMIT_S = 240.0


@dataclass(frozen=True)
class Trained:
    """The results of one training."""

    events: list[tuple[str, dict[str, Any]]]
    error: str | None
    weights: list[float]
    log: str
    case: dict[str, Any]
    modes: list[list[Any]] = field(default_factory=list)
    dtype: str = ""

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


def _run_scenarios(torch_python: str, repo: Path, folder: Path, count: int) -> list[RankResults]:
    ranks = run_ranks([torch_python, str(HERE / "scenarios.py"), str(folder)], repo, folder, count)
    output = wait(ranks)
    assert [rank.returncode for rank in ranks] == [0] * count, "\n".join(output)
    return [RankResults(json.loads((folder / f"rank{rank}.json").read_text())) for rank in range(count)]


@pytest.fixture(scope="session")
def alone(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> RankResults:
    """The results of all scenarios of one rank."""
    return _run_scenarios(torch_python, repo, tmp_path_factory.mktemp("alone"), 1)[0]


@pytest.fixture(scope="session")
def pair(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> list[RankResults]:
    """The results of all scenarios of two ranks."""
    return _run_scenarios(torch_python, repo, tmp_path_factory.mktemp("pair"), 2)
