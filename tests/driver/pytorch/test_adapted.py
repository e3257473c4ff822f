"""What a vendor's own steps may change and what not: each refusal names what differs."""

from __future__ import annotations

import math

import pytest

from tests.driver.pytorch.conftest import Found, Trained

pytestmark = pytest.mark.slow
REPLACED = {
    "modules": "convert_model",
    "optimizer": "create_optimizer",
    "model": "create_model",
    "wrapped": "compile_model",
    "batch": "prepare_batch",
    "loss": "calculate_loss",
    "low": "model_to_fp16",
}


@pytest.mark.parametrize("name", REPLACED)
def test_what_computes_the_same_otherwise_trains_and_is_named(alone: Found, name: str) -> None:
    trained = alone.within("adapted", "good", name)
    assert trained.error is None
    (told,) = trained.of("INIT_END")
    assert told["replaced"] == [REPLACED[name]]
    assert told["deviations"] == ({"optimizer class": ["Ours", "AdamW"]} if name == "optimizer" else {})


@pytest.mark.parametrize("name", [name for name in REPLACED if name != "low"])
def test_it_trains_as_the_suites_own_does(alone: Found, name: str) -> None:
    """To the same weights, dropout included: the checks draw no random numbers, and leave the model as it was."""
    standard, trained = (alone.within("adapted", *where) for where in (("standard",), ("good", name)))
    assert trained.weights == pytest.approx(standard.weights, abs=1e-6)
    assert _metrics(trained) == pytest.approx(_metrics(standard))


def _metrics(trained: Trained) -> list[float]:
    return [value["accuracy"] for value in trained.of("EVALUATE")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "narrow",
            ["the model", "first.weight is 8 x 16, the suite's is 32 x 16", "first.bias is 8,", "convert_model"],
        ),
        ("nothing", ["own convert_model gives None, wanted is a model: it must return what it made"]),
        ("no loss", ["own calculate_loss gives None, wanted is a loss: it must return what it made"]),
        ("dropped", ["blocks.1.weight is missing", "blocks.1.bias is missing"]),
        ("frozen", ["first.weight is frozen, the suite's is trained"]),
        ("other values", ["first.weight does not begin with the suite's values"]),
        ("more", ["extra.weight is no parameter of the suite's"]),
        ("narrow model", ["last.bias is missing", "own create_model may change how it is computed, not what it is"]),
        ("rate", ["lr of first.weight is 0.5, the suite's is 0.01"]),
        ("decay", ["weight_decay of first.weight is 0.3, the suite's is 0.01"]),
        ("left out", ["first.weight is not in it", "blocks.0.weight is not in it"]),
    ],
)
def test_what_is_no_longer_the_suites_is_refused(alone: Found, name: str, words: list[str]) -> None:
    told = alone.value("adapted", "bad", name) or "nothing was refused"
    assert [word for word in ["AdaptationError", *words] if word not in told] == [], told


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_wrapped_for_many_ranks_it_is_seen_all_the_same(pair: list[Found], parallel: str) -> None:
    for found in pair:
        adapted, standard = found.within("adapted", parallel), found[parallel]
        assert adapted.error is None
        assert adapted.weights == pytest.approx(standard.weights, abs=1e-6)
        assert "first.weight is frozen" in found.value("adapted", f"{parallel} frozen")
        assert math.isfinite(adapted.finished["final_loss"])
