"""Follow docs/measurements.md step by step."""

from pathlib import Path

import pytest

from tests.helpers.walk import Copy


@pytest.mark.slow
@pytest.mark.usefixtures("torch_python")
def test_adding_a_measurement_takes_one_folder_and_it_measures(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.follow("measurements.md")
    assert copy.git("status", "--porcelain").splitlines() == ["?? suites/sorting/"]
    (run,) = copy.runs
    (case,) = run["cases"]
    (outcome,) = case["outcomes"]
    figures = {metric["name"]: metric["value"] for metric in outcome["metrics"]}
    assert figures["sort"] > 1e4
    assert 0 < figures["sort_latency"] < 1
    assert [point["name"] for point in outcome["points"]] == ["sort 10000", "sort 100000"]
    assert all(verdict["ok"] for verdicts in case["verdicts"].values() for verdict in verdicts)
