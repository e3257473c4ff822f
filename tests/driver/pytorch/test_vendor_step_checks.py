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
    compared = trained.finished["compared_steps"]
    assert compared is None if name == "optimizer" else compared > 3
    assert init_end["deviations"] == ({"optimizer class": ["Ours", "AdamW"]} if name == "optimizer" else {})


@pytest.mark.parametrize("name", [name for name in REPLACED if name != "low"])
def test_a_vendors_step_trains_like_the_suites_step(alone: RankResults, name: str) -> None:
    """The final weights are the same, even with dropout: the checks draw no random numbers."""
    standard, trained = (alone.within(*where) for where in (("standard",), ("good", name)))
    assert distance(trained.weights, standard.weights) < 1e-6
    assert _metrics(trained) == pytest.approx(_metrics(standard))


def _metrics(trained: Trained) -> list[float]:
    return [value["accuracy"] for value in trained.of("EVALUATE")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "narrow",
            [
                "the model",
                "first.weight has shape 8 x 16, expected 32 x 16",
                "first.bias has shape 8,",
                "convert_model",
            ],
        ),
        ("nothing", ["the vendor's convert_model() returned None; expected a model"]),
        ("no loss", ["the vendor's calculate_loss() returned None; expected a loss"]),
        ("dropped", ["blocks.1.weight is missing", "blocks.1.bias is missing"]),
        ("frozen", ["first.weight is frozen, expected trained"]),
        ("other values", ["first.weight does not have the suite's initial values"]),
        ("more", ["extra.weight is not a parameter of the suite's model"]),
        ("narrow model", ["last.bias is missing", "create_model may only change how the model is computed"]),
        ("rate", ["lr of first.weight is 0.5, expected 0.01"]),
        ("decay", ["weight_decay of first.weight is 0.3, expected 0.01"]),
        ("left out", ["the optimizer differs", "first.weight is missing", "blocks.0.weight is missing"]),
    ],
)
def test_a_step_that_changes_model_or_optimizer_is_an_error(alone: RankResults, name: str, words: list[str]) -> None:
    message = alone.value("bad", name) or "no error"
    assert [word for word in ["AdaptationError", *words] if word not in message] == [], message


LESS = [
    "half", "second", "half prepared", "lower precision", "precision for all", "half gradient", "half after a draw",
    "lower precision after a draw", "other layer",
]  # fmt: skip


@pytest.mark.parametrize("name", LESS)
def test_a_step_that_computes_less_than_the_suites_is_an_error(alone: RankResults, name: str) -> None:
    assert set(alone.value("less")) == set(LESS)
    error = alone.value("less", name) or "no error"
    assert "rank 0: with the same weights, batch and random state the vendor's steps give the loss" in error


@pytest.mark.parametrize("name", ["half", "second"])
def test_a_part_of_the_batch_is_an_error_in_a_low_precision_too(alone: RankResults, name: str) -> None:
    assert "with the same weights" in (alone.value("less in bf16", name) or "no error")


def test_steps_are_compared_whatever_their_order_and_timed_on_request(alone: RankResults) -> None:
    trained = alone.within("another order")
    assert trained.error is None
    assert trained.finished["compared_steps"] > 3
    finished = alone.within("timed").finished
    assert finished["vendor_factor"] > 0
    assert finished["own_step_time"] > 0
    assert finished["profile"]["kinds"]["matrix product"] > 0, "of the vendor's steps, built again after the factor"
    assert "vendor_factor" not in alone.within("good", "loss").finished
    assert "vendor_factor" not in alone.within("nothing timed").finished, "no step is replaced"
    assert "step 10, rank 0: with the same weights" in (alone.value("at its end") or "no error")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_wrapped_model_is_checked_too(pair: list[RankResults], parallel: str) -> None:
    for rank in pair:
        adapted, standard = rank[f"{parallel} modules"], rank[parallel]
        assert adapted.error is None
        assert distance(adapted.weights, standard.weights) < 1e-6
        accumulated = rank[f"{parallel} accumulated"]
        assert accumulated.error is None
        assert distance(accumulated.weights, standard.weights) < 1e-5
        assert "with the same weights" in (rank[f"{parallel} half"].error or "")
        assert "first.weight is frozen" in (rank[f"{parallel} frozen"].error or "")
        assert math.isfinite(adapted.finished["final_loss"])


def test_a_model_without_memory_is_compared_by_its_declared_values(alone: RankResults, pair: list[RankResults]) -> None:
    adapted, standard = alone.within("meta", "modules"), alone["meta standard"]
    assert adapted.error is None
    assert adapted.finished["compared_steps"] > 3
    assert distance(adapted.weights, standard.weights) < 1e-6
    assert "with the same weights" in (alone.value("meta", "half", "error") or "")
    assert "first.weight does not have the suite's initial values" in alone.value("meta", "other values", "error")
    assert "first.weight is still on the meta device" in alone.value("meta", "no memory", "error")
    for rank in pair:
        for parallel in ("ddp", "fsdp"):
            adapted = rank[f"{parallel} meta modules"]
            assert adapted.error is None
            assert distance(adapted.weights, rank["ddp meta"].weights) < 1e-6, "also the initial weights"
