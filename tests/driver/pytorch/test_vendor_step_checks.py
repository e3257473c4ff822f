"""A vendor's own steps: they are reported, and their model gets the suite's initial values."""

import pytest

from tests.driver.frameworks.ranks import RankResults, Trained, distance

pytestmark = pytest.mark.slow
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
