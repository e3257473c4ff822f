"""Every framework's trainer computes what the loop and the suites expect of it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flagperf_driver import perflog
from flagperf_driver.heartbeat import read_heartbeat
from tests.driver.frameworks import toy_data, toy_reference
from tests.driver.frameworks.conftest import FRAMEWORKS, HERE, Framework
from tests.driver.pytorch.conftest import Trained, run_ranks, wait
from tests.driver.pytorch.test_agreement import contradictions, trainings

pytestmark = pytest.mark.slow

ROUNDING = 2e-5
"""The largest difference of weights between single and double precision after some steps."""
MISSING_ON_CPU = {"mindspore": {"bf16", "accumulated_bf16"}, "paddle": {"bf16", "fp16", "accumulated_bf16"}}
"""The scenarios of mixed precision that a framework refuses on the CPU."""


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the largest difference of two sets of weights."""
    assert set(one) == set(other)
    return max(float(np.abs(np.asarray(one[name]) - np.asarray(other[name])).max()) for name in one)


def both(framework: Framework, scenario: str) -> Iterator[Trained]:
    """Yield the results of the single rank, then those of each of two ranks."""
    for rank in (framework.alone, *framework.pair):
        yield rank[scenario]


def weights(trained: Trained) -> Mapping[str, Any]:
    named: Any = trained.weights
    return named  # type: ignore[no-any-return]


# -- one step ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "lamb"])
def test_an_optimizer_computes_its_formula(framework: Framework, optimizer: str) -> None:
    if optimizer not in framework.alone.scenarios:
        assert framework.name == "tensorflow2", f"{framework.name} trains with every optimizer of the options"
        return
    expected = toy_reference.train(framework.name, optimizer=optimizer, weight_decay=0.1, max_steps=5)
    for trained in both(framework, optimizer):
        assert distance(weights(trained), expected) < ROUNDING
    other = toy_reference.train(framework.name, optimizer=optimizer, weight_decay=0.0, max_steps=5)
    assert distance(expected, other) > 10 * ROUNDING, "the control: without weight decay"


def test_gradients_are_clipped_by_their_common_norm(framework: Framework) -> None:
    settings: dict[str, Any] = {"optimizer": "sgd", "weight_decay": 0.1, "max_steps": 5}
    expected = toy_reference.train(framework.name, max_grad_norm=1e-2, **settings)
    for trained in both(framework, "clipped"):
        assert distance(weights(trained), expected) < ROUNDING
    assert distance(expected, toy_reference.train(framework.name, **settings)) > 10 * ROUNDING, "the control"


def test_the_config_selects_the_parameters_with_weight_decay(framework: Framework) -> None:
    settings: dict[str, Any] = {"weight_decay": 0.5, "max_steps": 5}
    expected = toy_reference.train(framework.name, decay_vectors=True, no_decay=["first.bias"], **settings)
    for trained in both(framework, "decayed"):
        assert distance(weights(trained), expected) < ROUNDING
    for other in (
        toy_reference.train(framework.name, **settings),
        toy_reference.train(framework.name, decay_vectors=True, **settings),
    ):
        assert distance(expected, other) > 10 * ROUNDING, "the control"


def test_two_ranks_train_like_one_with_the_same_global_batch(framework: Framework) -> None:
    one = framework.alone["strong"]
    assert distance(weights(one), toy_reference.train(framework.name)) < 10 * ROUNDING
    for rank in framework.pair:
        for scenario in ("strong", "accumulated"):
            assert distance(weights(rank[scenario]), weights(one)) < ROUNDING
        assert rank["strong"].finished["samples"] == one.finished["samples"] == 384
        assert rank["strong"].finished["final_metrics"] == one.finished["final_metrics"]
        assert rank["strong"].losses == pytest.approx(one.losses, rel=1e-4)
    assert distance(weights(framework.alone["accumulated"]), weights(one)) < ROUNDING


def test_mixed_precision_trains_or_is_refused(framework: Framework) -> None:
    for scenario in ("bf16", "fp16", "accumulated_bf16"):
        for trained in both(framework, scenario):
            if trained.error is not None:
                assert "DeviceError: precision='" in trained.error
                assert scenario in MISSING_ON_CPU.get(framework.name, ()), trained.error
                continue
            assert all(np.isfinite(loss) for loss in trained.losses.values())
            if scenario != "fp16":
                difference = distance(weights(trained), weights(framework.alone["strong"]))
                assert 1e-5 < difference < 0.05, "close to fp32, but not the same"


def test_a_learning_rate_of_0_moves_nothing(framework: Framework) -> None:
    for trained in both(framework, "lr0"):
        kept = {name: value for name, value in weights(trained).items() if name in toy_data.initial()}
        assert distance(kept, toy_data.initial()) == 0
        assert distance(weights(framework.alone["strong"]), toy_data.initial()) > 1e-2, "the control"


# -- evaluation ----------------------------------------------------------------------------------------------


def test_evaluation_counts_every_sample_once(framework: Framework) -> None:
    values, labels = toy_data.samples(toy_data.EVAL, seed=1)
    for trained in (*both(framework, "strong"), *both(framework, "predicted")):
        end = {name: np.asarray(value) for name, value in weights(trained).items()}
        hidden = np.maximum(values @ end["first.weight"] + end["first.bias"], 0)
        right = (hidden @ end["last.weight"] + end["last.bias"]).argmax(1) == labels
        assert trained.finished["final_metrics"] == {"accuracy": pytest.approx(right.mean()), "count": toy_data.EVAL}


@pytest.mark.parametrize("scenario", ["uneven", "one"])
def test_all_ranks_evaluate_the_same_model(framework: Framework, scenario: str) -> None:
    one, other = (rank[scenario].finished["final_metrics"] for rank in framework.pair)
    assert one == other
    assert one["count"] == toy_data.EVAL
    statistics = [
        {name: value for name, value in weights(rank[scenario]).items() if name.startswith("norm.statistics")}
        for rank in framework.pair
    ]
    assert statistics[0], "the batch norm's statistics, which are averaged over the ranks"
    assert distance(*statistics) == 0


def test_statistics_are_averaged_over_ranks_at_each_evaluation(framework: Framework) -> None:
    def means(trained: Trained) -> dict[str, Any]:
        return {name: value for name, value in weights(trained).items() if "statistics" in name and "mean" in name}

    expected = means(framework.alone["lr0"])
    assert len(expected) == 1
    for rank in framework.pair:
        assert distance(means(rank["lr0"]), expected) < ROUNDING
    assert distance(expected, {name: np.zeros_like(value) for name, value in expected.items()}) > 0.1, "the control"


# -- the training --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["resumed", "skipping"])
def test_a_resumed_training_continues_bit_for_bit(framework: Framework, scenario: str) -> None:
    for rank in (framework.alone, *framework.pair):
        whole, second = rank.within(scenario, "whole"), rank.within(scenario, "second")
        assert "Stopped: asked to stop at batch 8" in (rank.within(scenario, "first").error or "")
        assert sorted(second.losses) == list(range(6, 15))
        assert second.losses == {step: loss for step, loss in whole.losses.items() if step > 5}
        assert distance(weights(second), weights(whole)) == 0
        assert rank.value(scenario, "left") == [f"toy_{framework.name}_CPU_1_1_1_round1.finished.pt"]


@pytest.mark.parametrize("scenario", ["throughput", "epochs", "short", "target"])
def test_ranks_stop_together(framework: Framework, scenario: str) -> None:
    one, other = (rank[scenario].finished for rank in framework.pair)
    for key in ("stop_reason", "steps", "samples", "final_metrics", "measured_samples"):
        assert one[key] == other[key]
    expected = {"throughput": ("throughput", 25), "epochs": ("max_epochs", 10), "short": ("max_epochs", 4)}
    if scenario in expected:
        assert (one["stop_reason"], one["steps"]) == expected[scenario]
    else:
        assert one["stop_reason"] == "target"
        assert one["converged"]


def test_a_nan_loss_names_its_step_and_ends_both_ranks(framework: Framework) -> None:
    errors = [rank["nan"].error or "" for rank in framework.pair]
    assert "the loss of step 4 is nan on rank 1" in errors[1]
    assert all(error.startswith("NonFiniteLoss: ") for error in errors)


def test_no_training_contradicts_itself(framework: Framework, tmp_path: Path) -> None:
    seen = 0
    for number, result in enumerate((framework.alone, *framework.pair)):
        for name, trained in trainings(result.scenarios):
            seen += 1
            assert contradictions(tmp_path, max(0, number - 1), trained) == [], name
    assert seen >= 40


def test_a_training_describes_itself(framework: Framework) -> None:
    for trained in both(framework, "strong"):
        (described,) = trained.of("INIT_END")
        assert described["parameters"] == sum(value.size for value in toy_data.initial().values())
        assert described["libraries"][framework.name] == described["framework_version"]
        assert trained.finished["timing"]
        assert trained.finished["p_core"] > 0


# -- the whole process of a rank -----------------------------------------------------------------------------


def _environment(name: str, folder: Path, **settings: Any) -> dict[str, str]:
    path = folder / "case.json"
    path.write_text(json.dumps(toy_data.case(name, **settings)))
    return {"FLAGPERF_CASE": str(path), "FLAGPERF_LOG_DIR": str(folder)}


def _records(folder: Path, rank: int) -> list[Any]:
    with (folder / f"rank{rank}.out.log").open("rb") as stream:
        return list(perflog.read_records(stream))


@pytest.fixture(params=FRAMEWORKS)
def toy(request: pytest.FixtureRequest, framework_python: Any) -> tuple[str, list[str]]:
    """A framework and the command of its toy."""
    return request.param, [framework_python(request.param), str(HERE / f"toy_{request.param}.py")]


def test_a_program_ends_with_its_last_event_and_leaves_no_process(
    toy: tuple[str, list[str]], repo: Path, tmp_path: Path
) -> None:
    environment = _environment(toy[0], tmp_path, train_batch_size=16)
    ranks = run_ranks(toy[1], repo, tmp_path, 2, **environment)
    wait(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0]
    for rank in range(2):
        records = _records(tmp_path, rank)
        assert (records[0].event, records[-1].event) == ("INIT_START", "FINISHED")
    assert _processes_with(str(tmp_path)) == []


@pytest.mark.parametrize("fault", ["raises", "killed"])
def test_when_a_rank_ends_the_other_ends_too(
    toy: tuple[str, list[str]], repo: Path, tmp_path: Path, fault: str
) -> None:
    at = {"stop_at": [1, 8]} if fault == "raises" else {"hang_at": [1, 8]}
    environment = _environment(toy[0], tmp_path, train_batch_size=16, **at)
    ranks = run_ranks(toy[1], repo, tmp_path, 2, **environment)
    if fault == "killed":
        _wait_for_step(tmp_path / "rank1.progress", 7)
        assert [rank.poll() for rank in ranks] == [None, None], "the control: a hanging rank ends nothing"
        ranks[1].send_signal(signal.SIGKILL)
    ranks[1].wait(120)
    ended = time.monotonic()
    wait(ranks)
    assert time.monotonic() - ended < 20
    assert ranks[1].returncode == (1 if fault == "raises" else -signal.SIGKILL)
    assert ranks[0].returncode in (1, -signal.SIGABRT), "some frameworks abort where a collective operation fails"
    if fault == "raises":
        last = _records(tmp_path, 1)[-1]
        assert (last.event, last.value["error"]) == ("FAILED", "asked to stop at batch 8")
    assert _records(tmp_path, 0)[-1].event != "FINISHED"
    assert _processes_with(str(tmp_path)) == []


def _wait_for_step(progress: Path, step: int) -> None:
    end = time.monotonic() + 120
    while (beat := read_heartbeat(progress)) is None or beat.step < step:
        assert time.monotonic() < end, "the rank did not reach its step"
        time.sleep(0.05)


def _processes_with(text: str) -> list[str]:
    """Return the processes whose environment contains ``text``, except zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if text in path.read_bytes().decode(errors="replace"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found
