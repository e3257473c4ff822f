"""A checkpoint of PyTorch is read at any number of ranks, in any layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.driver.frameworks.ranks import run_ranks, wait

pytestmark = pytest.mark.slow


def test_a_checkpoint_of_two_ranks_is_read_by_four_and_by_one(torch_python: str, repo: Path, tmp_path: Path) -> None:
    results = {}
    for ranks in (2, 4, 1):
        processes = run_ranks(
            [torch_python, str(Path(__file__).with_name("reshaped.py")), str(tmp_path)], repo, tmp_path, ranks
        )
        output = wait(processes)
        assert {process.returncode for process in processes} == {0}, "\n".join(output)
        results[ranks] = json.loads((tmp_path / f"{ranks}.json").read_text())
    two, four, one = (results[ranks] for ranks in (2, 4, 1))
    assert two["trained"] == two["own"] == two["replicate"] == four["shard"] == four["shard x tensor"]
    assert one["two"] == one["four"] == {**two["trained"], "shared": True}
    assert one["two"] != one["untrained"], "the control"
    assert one["refused"].endswith("posix.mkdir, which no checkpoint contains")
    assert not (tmp_path / "called").exists()
    parts = ["down.bias", "down.weight", "embedding.weight", "steps", "up.bias", "up.weight"]
    assert sorted(one["stored"]) == [f"model/{name}" for name in parts], "a shared weight is stored once"
