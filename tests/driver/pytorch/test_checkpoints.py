"""A checkpoint of PyTorch is read at any number of ranks, in any layout."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_a_checkpoint_of_two_ranks_is_read_by_four_and_by_one(torch_python: str, repo: Path, tmp_path: Path) -> None:
    program = [torch_python, str(Path(__file__).with_name("reshaped.py")), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(repo), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    two, four, one = (json.loads((tmp_path / f"{ranks}.json").read_text()) for ranks in (2, 4, 1))
    assert two["trained"] == two["own"] == two["replicate"] == four["shard"] == four["shard x tensor"]
    assert one["two"] == one["four"] == {**two["trained"], "shared": True}
    assert one["two"] != one["untrained"], "the control"
    assert two["unshared"].endswith("of another rank not found; checkpoint_dir must be shared by all hosts")
    assert one["refused"].endswith("posix.mkdir, which no checkpoint contains")
    assert not (tmp_path / "called").exists()
    parts = ["down.bias", "down.weight", "embedding.weight", "steps", "up.bias", "up.weight"]
    assert sorted(one["stored"]) == [f"model/{name}" for name in parts], "a shared weight is stored once"
