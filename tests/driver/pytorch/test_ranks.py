"""Two ranks: they train like a single rank, and end together."""

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
from tests.driver.pytorch.conftest import HERE, RankResults, run_ranks, wait
from tests.driver.pytorch.test_loop import distance
from tests.driver.pytorch.toy_case import case

pytestmark = pytest.mark.slow


def test_two_ranks_train_like_one_with_the_same_global_batch(alone: RankResults, pair: list[RankResults]) -> None:
    one = alone["strong"]
    for rank in pair:
        both = rank["strong"]
        assert distance(one.weights, both.weights) < 1e-5
        assert both.finished["samples"] == one.finished["samples"]
        assert both.finished["measured_samples"] == one.finished["measured_samples"]
        assert [end["samples"] for end in both.of("STEP_END")][-1] == 384
        for step, loss in one.losses.items():
            # The ranks log at the end of their shorter epoch too.
            assert math.isclose(both.losses.get(step, loss), loss, rel_tol=1e-4)
        assert both.finished["final_metrics"] == one.finished["final_metrics"]
    assert pair[0]["strong"].losses == pair[1]["strong"].losses


def test_compiled_code_is_kept_for_later_rounds_unless_the_user_sets_a_folder(
    torch_python: str, repo: Path, tmp_path: Path
) -> None:
    program = "import flagperf_driver.pytorch, torch._dynamo, os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    own = {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "compiled")}
    for given, kept in (({}, "compiled/torchinductor"), ({"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "own")}, "own")):
        env = {**os.environ, "PYTHONPATH": str(repo), **own, **given}
        done = subprocess.run([torch_python, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(tmp_path / kept)
        assert not list(tmp_path.glob("torchinductor_*"))


def test_accumulation_on_two_ranks_is_one_big_batch(alone: RankResults, pair: list[RankResults]) -> None:
    assert distance(alone["strong"].weights, pair[1]["accumulated"].weights) < 1e-5


def test_gradients_are_synchronized_once_per_step(pair: list[RankResults]) -> None:
    # Two steps of four micro-steps each; only the last micro-step synchronizes.
    assert pair[0].value("no_syncs") == 6
    assert pair[0]["counted"].finished["steps"] == 2


def test_evaluation_is_exact_for_all_kinds_of_shares(pair: list[RankResults]) -> None:
    for rank in pair:
        exact = rank.value("exact")
        assert set(exact["loop"]) == {"even", "uneven", "one"}
        for shares in exact["loop"].values():
            assert shares == {"accuracy": exact["hand"], "count": 301, "untouched": True, "training": True}
        assert abs(exact["mean_of_means"] - exact["hand"]) > 1e-3


def test_running_statistics_are_averaged(pair: list[RankResults]) -> None:
    assert [rank.value("averaged", "mean") for rank in pair] == [1.5, 1.5]


def test_ranks_with_different_numbers_of_batches_do_the_same_steps(pair: list[RankResults]) -> None:
    assert [rank["short"].finished["steps"] for rank in pair] == [4, 4]
    assert [rank["epochs"].finished["steps"] for rank in pair] == [10, 10], "the control: five steps per epoch"


def test_ranks_have_the_same_weights_and_different_later_random_numbers(pair: list[RankResults]) -> None:
    one, other = (rank.value("draws") for rank in pair)
    assert one[0] == other[0]
    assert one[1] != other[1]


@pytest.mark.parametrize("scenario", ["throughput", "max_samples", "deadline", "epochs"])
def test_ranks_stop_together(pair: list[RankResults], scenario: str) -> None:
    one, other = (rank[scenario].finished for rank in pair)
    for key in ("stop_reason", "steps", "samples", "final_metrics", "measured_samples"):
        assert one[key] == other[key]
    assert one["samples"] == one["steps"] * 32 * 2


def test_a_nan_loss_on_one_rank_ends_both_ranks(pair: list[RankResults]) -> None:
    errors = [rank["nan"].error or "" for rank in pair]
    assert "the loss of step 4 is nan on rank 1" in errors[1]
    assert all(error.startswith("NonFiniteLoss: ") for error in errors)


def test_both_ranks_continue_from_a_checkpoint(pair: list[RankResults]) -> None:
    for rank in pair:
        for scenario in ("resumed", "fsdp_resumed"):
            whole, second = rank.within(scenario, "whole"), rank.within(scenario, "second")
            assert sorted(second.losses) == list(range(6, 15))
            assert second.losses == {step: loss for step, loss in whole.losses.items() if step > 5}
            assert second.weights == whole.weights
            assert rank.value(scenario, "left") == ["toy_pytorch_CPU_1_1_1_round1.finished.pt"]


def test_sharded_training_gives_the_same_weights(pair: list[RankResults]) -> None:
    for rank in pair:
        plain = rank["ddp"]
        for scenario in ("fsdp", "fsdp_accumulated"):
            assert distance(plain.weights, rank[scenario].weights) < 1e-5
        # One rank has all evaluation batches, the other has no batch, and no rank waits in a forward pass.
        assert rank["fsdp"].finished["final_metrics"] == plain.finished["final_metrics"]
        assert distance(rank["ddp_lamb"].weights, rank["fsdp_lamb"].weights) < 1e-5
        assert distance(plain.weights, rank["ddp_lamb"].weights) > 1e-2, "the control"


# -- the whole process of a rank -----------------------------------------------------------------------------


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
    assert records[-1].value["init_time"] > 0.5, "init_time includes the start of Python and torch"


def test_a_rank_that_raises_logs_failed_and_exits_with_1(torch_python: str, repo: Path, tmp_path: Path) -> None:
    environment = _environment(tmp_path, train_batch_size=16, stop_at=[1, 8])
    ranks = run_ranks([torch_python, str(HERE / "toy.py")], repo, tmp_path, 2, **environment)
    ranks[1].wait(120)
    ended = time.monotonic()
    wait(ranks)
    assert time.monotonic() - ended < 20, "the other rank must end too"
    assert [rank.returncode for rank in ranks] == [1, 1]
    with (tmp_path / "rank1.out.log").open("rb") as stream:
        last = list(perflog.read_records(stream))[-1]
    assert last.event == "FAILED"
    assert last.value == {"type": "Stopped", "error": "asked to stop at call 8"}


def test_importing_the_driver_alone_imports_no_torch() -> None:
    program = "import sys, flagperf_driver.driver; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
