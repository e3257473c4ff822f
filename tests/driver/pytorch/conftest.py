"""The results of the scenarios that a module of tests names as SCENARIOS."""

from pathlib import Path

import pytest

from tests.driver.frameworks.ranks import RankResults, run_scenarios


@pytest.fixture(scope="module")
def both(
    request: pytest.FixtureRequest, torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RankResults, list[RankResults]]:
    name = request.module.SCENARIOS
    return run_scenarios("pytorch", torch_python, repo, tmp_path_factory.mktemp(name), name)


@pytest.fixture
def alone(both: tuple[RankResults, list[RankResults]]) -> RankResults:
    return both[0]


@pytest.fixture
def pair(both: tuple[RankResults, list[RankResults]]) -> list[RankResults]:
    return both[1]
