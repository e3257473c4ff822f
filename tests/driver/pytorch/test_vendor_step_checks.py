"""Changes that a vendor's own steps may make, and the errors for all others."""

import math

import pytest

from tests.driver.frameworks.ranks import RankResults, Trained, distance

pytestmark = pytest.mark.slow
SCENARIOS = "adaptations"
REPLACED = {
    "modules": "convert_model", "optimizer": "create_optimizer", "model": "create_model", "wrapped": "compile_model",
    "batch": "prepare_batch", "loss": "calculate_loss", "low": "model_to_fp16",
}  # fmt: skip


@pytest.mark.parametrize("name", REPLACED)
def test_a_step_that_computes_the_same_trains_and_is_reported(alone: RankResults, name: str) -> None:
    trained = alone.within("good", name)
    assert trained.error is None
    (init_end,) = trained.of("INIT_END")
    assert init_end["replaced"] == [REPLACED[name]]
    assert init_end["deviations"] == ({"optimizer class": ["Ours", "AdamW"]} if name == "optimizer" else {})


@pytest.mark.parametrize("name", [name for name in REPLACED if name != "low"])
def test_a_vendors_step_trains_like_the_suites_step(alone: RankResults, name: str) -> None:
    """The final weights are the same, even with dropout: the checks draw no random numbers."""
    standard, trained = (alone.within(*where) for where in (("standard",), ("good", name)))
    assert distance(trained.weights, standard.weights) < 1e-6
    assert _metrics(trained) == pytest.approx(_metrics(standard))


def _metrics(trained: Trained) -> list[float]:
    return [value["accuracy"] for value in trained.of("EVALUATE")]


def test_a_step_that_returns_nothing_is_an_error(alone: RankResults) -> None:
    assert "the vendor's convert_model() returned None; expected a model" in (alone.value("bad", "nothing") or "")
    assert "the vendor's calculate_loss() returned None; expected a loss" in (alone.value("bad", "no loss") or "")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_wrapped_model_is_checked_too(pair: list[RankResults], parallel: str) -> None:
    for rank in pair:
        adapted, standard = rank[f"{parallel} modules"], rank[parallel]
        assert adapted.error is None
        assert distance(adapted.weights, standard.weights) < 1e-6
        accumulated = rank[f"{parallel} accumulated"]
        assert accumulated.error is None
        assert distance(accumulated.weights, standard.weights) < 1e-5
        assert math.isfinite(adapted.finished["final_loss"])


def test_a_model_without_memory_is_compared_by_its_declared_values(alone: RankResults, pair: list[RankResults]) -> None:
    adapted, standard = alone.within("meta", "modules"), alone["meta standard"]
    assert adapted.error is None
    assert distance(adapted.weights, standard.weights) < 1e-6
    for rank in pair:
        for parallel in ("ddp", "fsdp"):
            adapted = rank[f"{parallel} meta modules"]
            assert adapted.error is None
            assert distance(adapted.weights, rank["ddp meta"].weights) < 1e-6, "also the initial weights"
