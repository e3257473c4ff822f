"""A decoder and a diffusion transformer train in every layout as on one rank, from the same initial weights."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
LAYOUTS = [
    "ddp", "shard, recomputed", "replicate x shard", "tensor", "replicate x tensor, tied", "shard x tensor, compiled",
    "expert", "shard x expert, recomputed", "replicate x expert", "ddp, experts", "expert, one rank has all tokens",
    "tensor, experts", "expert x tensor", "shard x tensor, experts",
    "diffusion, ddp", "diffusion, replicate x shard, compiled",
]  # fmt: skip
ROUNDING = 1e-5
"""Of sums in fp32 in another order: about a hundred roundings."""


@pytest.fixture(scope="module")
def results(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The comparison of each layout, and what one rank found."""
    file = tmp_path_factory.mktemp("layouts") / "results.json"
    program = [torch_python, str(Path(__file__).with_name("layouts.py")), str(file)]
    env = {**os.environ, "PYTHONPATH": str(repo), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, env=env, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_trains_as_one_rank(results: dict[str, Any], layout: str) -> None:
    found = results[layout]
    assert found["start"] == 0
    assert found["other seed"] > 0.1, "the control"
    assert found["end"] < 1e-5
    assert found["moved"] > 1e-2, "the control"
    plain, divided = found["losses"]
    assert divided == pytest.approx(plain, rel=ROUNDING)
    plain, divided = found["norms"]
    assert divided == pytest.approx(plain, rel=ROUNDING)
    assert min(plain) > (0.1 if layout.startswith("diffusion") else 0.5), "the limit of the norm applies"
    assert found["gathered"] == 0, "the norm needs no whole gradients"


@pytest.mark.parametrize("layout", ["shard x tensor, bf16", "diffusion, shard, bf16"])
def test_a_lower_precision_trains_alike_in_shards(results: dict[str, Any], layout: str) -> None:
    found = results[layout]
    assert found["start"] == 0, "the weights are fp32"
    plain, low = found["norms"]
    assert low == pytest.approx(plain, rel=1e-2)
    assert low != pytest.approx(plain, rel=1e-4), "the control"


def test_a_flipped_bit_in_a_copy_of_the_weights_is_found(results: dict[str, Any]) -> None:
    assert {results[layout]["differences"][0] for layout in LAYOUTS} == {""}, "the control"
    found = {layout: results[layout]["differences"][1].replace("after step 3 the weights", "") for layout in LAYOUTS}
    assert found == {
        "ddp": " of rank 1 differ from those of ranks 0, 2, 3",
        "shard, recomputed": "",  # no weight has a copy
        "replicate x shard": " (shard 1) differ between ranks 1, 3",
        "tensor": " (shard 0) of rank 1 differ from those of ranks 0, 2, 3",  # the norms have a copy on each rank
        "replicate x tensor, tied": " (shard 0) of rank 1 differ from those of ranks 0, 2, 3",
        "shard x tensor, compiled": " (shard 0) differ between ranks 0, 1",
        "expert": "",  # the ranks share the norms as shards
        "shard x expert, recomputed": "",
        "expert, one rank has all tokens": "",
        "replicate x expert": " (shard 1) differ between ranks 1, 3",
        "tensor, experts": " (shard 0) of rank 1 differ from those of ranks 0, 2, 3",
        "expert x tensor": " (shard 0) differ between ranks 0, 1",
        "shard x tensor, experts": " (shard 0) differ between ranks 0, 1",
        "ddp, experts": " of rank 1 differ from those of ranks 0, 2, 3",
        "diffusion, ddp": " of rank 1 differ from those of ranks 0, 2, 3",
        "diffusion, replicate x shard, compiled": " (shard 1) differ between ranks 1, 3",
    }


def test_a_checkpoint_of_experts_is_read_in_every_other_layout(results: dict[str, Any]) -> None:
    assert len(results["checkpoint"]) >= 5
    for layout, (before, after) in results["checkpoint"].items():
        assert before > 0.1, f"{layout}: the control"
        assert after == 0, layout


def test_recomputation_keeps_less_and_computes_again(results: dict[str, Any]) -> None:
    plain, selective, full = (results["recomputed"][mode] for mode in ("False", "selective", "True"))
    assert plain["norm"] == pytest.approx(selective["norm"]) == pytest.approx(full["norm"])
    assert plain["flops"] == selective["flops"] < full["flops"]
    assert plain["kept"] > selective["kept"] > full["kept"]
