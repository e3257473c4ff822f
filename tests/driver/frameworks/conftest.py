"""Run the toy's trainings once for each framework, on one rank and on two ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.driver.pytorch.conftest import RankResults, run_ranks, wait

HERE = Path(__file__).parent
FRAMEWORKS = ("mindspore", "paddle", "tensorflow2")


@dataclass(frozen=True)
class Framework:
    """A framework with the results of all its scenarios."""

    name: str
    python: str
    alone: RankResults
    pair: list[RankResults]


def run_toy(
    framework: str, python: str, repo: Path, folder: Path, count: int, **environment: str
) -> tuple[list[int], list[str]]:
    """Run the toy's program, or with no FLAGPERF_CASE all scenarios; return exit codes and outputs."""
    argv = [python, str(HERE / f"toy_{framework}.py")]
    if "FLAGPERF_CASE" not in environment:
        argv = [python, str(HERE / "scenarios.py"), framework, str(folder)]
    ranks = run_ranks(argv, repo, folder, count, **environment)
    output = wait(ranks)
    return [rank.returncode for rank in ranks], output


@pytest.fixture(scope="session")
def frameworks(
    repo: Path, framework_python: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Framework]:
    """A function that runs a framework's scenarios on its first call and returns their results."""

    @cache
    def results(name: str) -> Framework:
        python, ranks = framework_python(name), []
        for count in (1, 2):
            folder = tmp_path_factory.mktemp(f"{name}{count}")
            codes, output = run_toy(name, python, repo, folder, count)
            assert codes == [0] * count, "\n".join(output)
            ranks.append([RankResults(json.loads((folder / f"rank{rank}.json").read_text())) for rank in range(count)])
        return Framework(name, python, ranks[0][0], ranks[1])

    return results


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, frameworks: Callable[[str], Framework]) -> Framework:
    """Each framework in turn."""
    return frameworks(request.param)
