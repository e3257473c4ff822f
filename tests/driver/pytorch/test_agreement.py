"""The measurements of real trainings do not contradict each other, whatever the training's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.results.logs.failures import RankLocation
from pytest_flagperf.results.logs.ranklog import Target, read_rank
from pytest_flagperf.results.measured import consistency, consistency_pairs
from tests.driver.pytorch.conftest import RankResults

TARGET = Target("accuracy", "higher", "fraction", 0.5)


def trainings(results: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all finished trainings with the names of their scenarios."""
    if '"FINISHED"' in str(results.get("log", "")):
        yield name, dict(results)
    for key, inner in results.items():
        if isinstance(inner, dict) and "log" not in results:
            yield from trainings(inner, f"{name} {key}".strip())


def contradictions(folder: Path, rank: int, trained: dict[str, Any]) -> list[str]:
    path = folder / f"rank{rank}.out.log"
    path.write_text(trained["log"])
    log = read_rank(path, rank, TARGET, trained["case"]["config"]["timing_warmup_steps"])
    case = trained["case"]
    read = consistency_pairs.RankFigures(case["config"], case["nnodes"] * case["nproc"], log)
    compared, failures = consistency.check([(RankLocation(rank, "localhost", 0), read)], 1)
    assert compared >= 12, case
    return [failure.sentence for failure in failures]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_no_training_contradicts_itself(request: pytest.FixtureRequest, tmp_path: Path, ranks: int) -> None:
    results: list[RankResults] = [request.getfixturevalue("alone")] if ranks == 1 else request.getfixturevalue("pair")
    seen = 0
    for rank, result in enumerate(results):
        for name, trained in trainings(result.scenarios):
            seen += 1
            assert contradictions(tmp_path, rank, trained) == [], name
    assert seen >= (25 if ranks == 1 else 10)
