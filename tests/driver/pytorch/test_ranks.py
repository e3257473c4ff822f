"""Two ranks: they do together what one does alone, and end together."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import perflog
from tests.driver.pytorch.conftest import HERE, Found, run_ranks, wait
from tests.driver.pytorch.test_loop import far
from tests.driver.pytorch.toy_case import case

pytestmark = pytest.mark.slow


def test_at_the_same_global_batch_two_ranks_train_as_one(alone: Found, pair: list[Found]) -> None:
    one = alone["strong"]
    for rank in pair:
        both = rank["strong"]
        assert far(one.weights, both.weights) < 1e-5
        assert both.finished["samples"] == one.finished["samples"]
        assert both.finished["measured_samples"] == one.finished["measured_samples"]
        assert [end["samples"] for end in both.of("STEP_END")][-1] == 384
        for step, loss in one.losses.items():
            # The ranks log at the end of their shorter epoch too.
            assert math.isclose(both.losses.get(step, loss), loss, rel_tol=1e-4)
        assert both.finished["final_metrics"] == one.finished["final_metrics"]
    assert pair[0]["strong"].losses == pair[1]["strong"].losses


def test_compiled_code_is_kept_for_later_rounds_and_only_where_nobody_says_otherwise(
    torch_python: str, repo: Path, tmp_path: Path
) -> None:
    program = "import flagperf_driver.pytorch, torch._dynamo, os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    own = {"TMPDIR": str(tmp_path), "FLAGPERF_COMPILED": str(tmp_path / "compiled")}
    for given, kept in (({}, "compiled/torchinductor"), ({"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "own")}, "own")):
        env = {**os.environ, "PYTHONPATH": str(repo), **own, **given}
        done = subprocess.run([torch_python, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(tmp_path / kept)
        assert not list(tmp_path.glob("torchinductor_*"))


def test_accumulation_over_ranks_is_one_big_batch_too(alone: Found, pair: list[Found]) -> None:
    assert far(alone["strong"].weights, pair[1]["accumulated"].weights) < 1e-5


def test_gradients_travel_once_per_step(pair: list[Found]) -> None:
    # Two steps of four micro-steps: three of each four keep theirs.
    assert pair[0].value("no_syncs") == 6
    assert pair[0]["counted"].finished["steps"] == 2


def test_evaluation_is_exact_whatever_share_each_rank_has(pair: list[Found]) -> None:
    for rank in pair:
        found = rank.value("exact")
        assert set(found["loop"]) == {"even", "uneven", "one"}
        for shares in found["loop"].values():
            assert shares == {"accuracy": found["hand"], "count": 301, "untouched": True, "training": True}
        assert abs(found["mean_of_means"] - found["hand"]) > 1e-3


def test_running_statistics_are_averaged(pair: list[Found]) -> None:
    assert [rank.value("averaged", "mean") for rank in pair] == [1.5, 1.5]


def test_no_rank_waits_for_a_batch_that_another_lacks(pair: list[Found]) -> None:
    assert [rank["short"].finished["steps"] for rank in pair] == [4, 4]
    assert [rank["epochs"].finished["steps"] for rank in pair] == [10, 10], "the control: five an epoch"


def test_ranks_draw_the_same_weights_and_different_masks(pair: list[Found]) -> None:
    one, other = (rank.value("draws") for rank in pair)
    assert one[0] == other[0]
    assert one[1] != other[1]


@pytest.mark.parametrize("scenario", ["throughput", "max_samples", "deadline", "epochs"])
def test_ranks_stop_together(pair: list[Found], scenario: str) -> None:
    one, other = (rank[scenario].finished for rank in pair)
    for key in ("stop_reason", "steps", "samples", "final_metrics", "measured_samples"):
        assert one[key] == other[key]
    assert one["samples"] == one["steps"] * 32 * 2


def test_a_loss_that_is_no_number_on_one_rank_ends_both(pair: list[Found]) -> None:
    errors = [rank["nan"].error or "" for rank in pair]
    assert "the loss of step 4 is nan on rank 1" in errors[1]
    assert all(error.startswith("NonFiniteLoss: ") for error in errors)


def test_both_ranks_go_on_from_a_checkpoint(pair: list[Found]) -> None:
    for rank in pair:
        for scenario in ("resumed", "fsdp_resumed"):
            whole, second = rank.within(scenario, "whole"), rank.within(scenario, "second")
            assert sorted(second.losses) == list(range(6, 15))
            assert second.losses == {step: loss for step, loss in whole.losses.items() if step > 5}
            assert second.weights == whole.weights
            assert rank.value(scenario, "left") == ["toy_pytorch_CPU_1_1_1_round1.finished.pt"]


def test_sharded_training_is_the_same_training(pair: list[Found]) -> None:
    for rank in pair:
        plain = rank["ddp"]
        for scenario in ("fsdp", "fsdp_accumulated"):
            assert far(plain.weights, rank[scenario].weights) < 1e-5
        # One rank has all the evaluation batches, the other none: nobody waits in a forward pass.
        assert rank["fsdp"].finished["final_metrics"] == plain.finished["final_metrics"]
        assert far(rank["ddp_lamb"].weights, rank["fsdp_lamb"].weights) < 1e-5
        assert far(plain.weights, rank["ddp_lamb"].weights) > 1e-2, "the control"


# -- as a rank's program, to the process's end ---------------------------------------------------------------


def _environment(folder: Path, **settings: Any) -> dict[str, str]:
    path = folder / "case.json"
    path.write_text(json.dumps(case(**settings)))
    return {"FLAGPERF_CASE": str(path), "FLAGPERF_LOG_DIR": str(folder)}


def test_a_program_ends_with_its_last_event(torch_python: str, repo: Path, tmp_path: Path) -> None:
    environment = _environment(tmp_path, train_batch_size=16, stop_at=[1, 8])
    good = run_ranks([torch_python, str(HERE / "toy.py")], repo, tmp_path, 1, **environment)
    assert wait(good) == [""]
    assert good[0].returncode == 0
    with (tmp_path / "rank0.out.log").open("rb") as stream:
        records = list(perflog.read_records(stream))
    assert (records[0].event, records[-1].event) == ("INIT_START", "FINISHED")
    assert records[-1].value["init_time"] > 0.5, "starting Python and torch is part of it"


def test_a_rank_that_raises_says_so_and_ends_with_1(torch_python: str, repo: Path, tmp_path: Path) -> None:
    environment = _environment(tmp_path, train_batch_size=16, stop_at=[1, 8])
    ranks = run_ranks([torch_python, str(HERE / "toy.py")], repo, tmp_path, 2, **environment)
    ranks[1].wait(120)
    fallen = time.monotonic()
    wait(ranks)
    assert time.monotonic() - fallen < 20, "the other rank lost its peer and ends too"
    assert [rank.returncode for rank in ranks] == [1, 1]
    with (tmp_path / "rank1.out.log").open("rb") as stream:
        last = list(perflog.read_records(stream))[-1]
    assert last.event == "FAILED"
    assert last.value == {"type": "Stopped", "error": "asked to stop at call 8"}


def test_importing_the_driver_alone_imports_no_torch() -> None:
    program = "import sys, flagperf_driver.driver; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
