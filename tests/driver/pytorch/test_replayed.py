"""A vendor's own steps: reported, repeated by a clean process, with the suite's initial values."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.kinds.training.verdicts.replay import replayed
from pytest_flagperf.results.measured.replay import of_record
from pytest_flagperf.results.verdicts.verdict import Verdict
from tests.driver.frameworks.ranks import RankResults, Trained, distance
from tests.driver.pytorch.test_checkpoints import run
from tests.helpers.results_help import recorded

pytestmark = pytest.mark.slow
HONEST = ("none", "modules", "optimizer", "another order")
DISHONEST = ("patched model", "quarter", "first micro-step", "rate", "every second step")


@pytest.fixture(scope="module")
def results(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("replayed")
    run("replayed.py", torch_python, repo, folder)
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def judged(found: dict[str, Any], precision: str = "fp32") -> dict[str, Verdict]:
    replay = of_record(found, dict(found["logged"]), precision)
    return {verdict.name: verdict for verdict in replayed(replace(recorded("converged_1x1"), replay=replay))}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_only_steps_that_compute_the_same_are_repeated(results: dict[str, Any], precision: str) -> None:
    for name in HONEST:
        verdict = judged(results[f"{name} {precision}"], precision)["repeated"]
        assert verdict.ok, f"{name}: {verdict.sentence}"
    assert judged(results[f"low precision {precision}"], precision)["repeated"].ok == (precision == "bf16")
    for name in DISHONEST:
        verdict = judged(results[f"{name} {precision}"], precision)["repeated"]
        assert "in the steps 11 to 30 the weights changed otherwise than in the clean process" in verdict.sentence, name
        assert "the logged loss of step" in verdict.sentence, name


@pytest.mark.parametrize("name", ["none fp32", "none bf16", "ddp", "fsdp"])
def test_the_suites_own_steps_are_equal_bit_by_bit(results: dict[str, Any], name: str) -> None:
    verdicts = judged(results[name])
    assert verdicts["repeated"].ok
    assert verdicts["repeatable"].got == "equal bit by bit"
    assert results[name]["states"] == ["step0", "step10", "step30", "step40"]
    assert results[name]["initial"]["equal"]
    assert results[name]["step_time"] > 0
    assert results[name]["metrics"][0][1] == results[name]["metrics"][0][2]


def test_a_training_before_its_time_counts_is_not_that_of_the_secret_order(results: dict[str, Any]) -> None:
    assert judged(results["played, known"])["repeated"].ok, "the order of the epochs' numbers, as without a replay"
    sentence = judged(results["played"])["repeated"].sentence
    assert "in the steps 11 to 30 the weights changed otherwise than in the clean process" in sentence
    assert "the logged loss of step" in sentence


def test_segments_are_repeated_until_the_budget_is_used(results: dict[str, Any]) -> None:
    for name, steps in (
        ("none fp32", "11 to 30"),
        ("budget 30", "1 to 10 and 11 to 30"),
        ("budget 40, twins", "11 to 30"),
    ):
        verdict = judged(results[name])["repeated"]
        assert verdict.got.startswith(f"the steps {steps} differ by "), name


def test_a_flipped_bit_is_found_and_named(results: dict[str, Any]) -> None:
    verdicts = judged(results["flipped"])
    assert not verdicts["repeated"].ok
    (segment,) = of_record(results["flipped"], dict(results["flipped"]["logged"]), "fp32").segments
    assert (segment.first_unequal, segment.first_loss) == ("first.weight of rank 0", "step 20"), "it is damaged there"
    assert "first in first.weight of rank 0 and the loss of step 20" in verdicts["repeatable"].sentence


SCENARIOS = "adaptations"
REPLACED = {
    "modules": "convert_model", "optimizer": "create_optimizer", "model": "create_model", "wrapped": "compile_model",
    "batch": "prepare_batch", "loss": "calculate_loss", "low": "model_to_fp16",
}  # fmt: skip


@pytest.mark.parametrize("name", REPLACED)
def test_a_vendors_step_is_reported_and_trains_like_the_suites_step(alone: RankResults, name: str) -> None:
    """The final weights are the same, even with dropout; the lower precision of a step is its own."""
    standard, trained = alone["standard"], alone.within("good", name)
    assert trained.error is None
    (init_end,) = trained.of("INIT_END")
    assert init_end["replaced"] == [REPLACED[name]]
    assert init_end["deviations"] == ({"optimizer class": ["Ours", "AdamW"]} if name == "optimizer" else {})
    if name != "low":
        assert distance(trained.weights, standard.weights) < 1e-6
        assert _metrics(trained) == pytest.approx(_metrics(standard))


def _metrics(trained: Trained) -> list[float]:
    return [value["accuracy"] for value in trained.of("EVALUATE")]


def test_a_step_that_returns_nothing_is_an_error(alone: RankResults) -> None:
    assert "the vendor's convert_model() returned None; expected a model" in (alone.value("bad", "nothing") or "")
    assert "the vendor's calculate_loss() returned None; expected a loss" in (alone.value("bad", "no loss") or "")


def test_a_model_without_memory_gets_the_declared_values(alone: RankResults, pair: list[RankResults]) -> None:
    for adapted, standard in (
        (alone["meta"], alone["meta standard"]),
        *((rank[parallel], rank["standard"]) for rank in pair for parallel in ("ddp", "fsdp")),
    ):
        assert adapted.error is None
        assert distance(adapted.weights, standard.weights) < 1e-6, "also the initial weights"
