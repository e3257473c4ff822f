"""A measurement's program with PyTorch, on two ranks that work together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flagperf_driver import perflog
from flagperf_driver.measuring import defaults
from tests.driver.frameworks import toy_data
from tests.driver.frameworks.ranks import run_ranks, wait

pytestmark = pytest.mark.slow
SIZE = 128
CONFIG = {
    **{name: value for name, value in vars(defaults).items() if name.islower() and not name.startswith("_")},
    "size": SIZE, "point_least_s": 0.3, "point_warmup_s": 0.1, "point_most_s": 0.6,
}  # fmt: skip


def test_both_ranks_log_the_same_time_of_a_point(torch_python: str, repo: Path, tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    case.write_text(json.dumps({**toy_data.case("pytorch"), "config": CONFIG}, default=str))
    toy = str(Path(__file__).with_name("toy_measuring.py"))
    ranks = run_ranks([torch_python, toy], repo, tmp_path, 2, FLAGPERF_CASE=str(case))
    output = wait(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(output)
    points = []
    for text in output:
        records = [record for record in map(perflog.parse_line, text.encode().splitlines()) if record]
        assert [record.event for record in records] == ["INIT_START", "INIT_END", "MEASURED", "LEFT_OUT", "FINISHED"]
        _, begin, point, left_out, end = (record.value for record in records)
        assert begin["given"]["case"] == "toy:pytorch:CPU:1:1:1"
        assert (begin["device"], begin["world_size"], begin["threads"]) == ("cpu", 2, 1)
        assert point["figures"]["matmul"] == pytest.approx(2 * SIZE**3 / point["seconds"])
        assert left_out["expected_s"] > 1000
        assert (end["points"], end["left_out"], end["timing"]) == (1, 1, "host clock")
        points.append([point[name] for name in ("seconds", "sustained", "iterations", "windows", "turns")])
    assert points[0] == points[1]
