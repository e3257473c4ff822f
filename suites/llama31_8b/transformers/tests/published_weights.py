"""Weights and a set in the data directory are served and scored, and what is worse than them is detected."""

import checking
import torch
from common.serving.published import write
from common.serving.scored import LENGTH, WEIGHTS
from common.serving.trained import ContinuouslyBatched

from tests.suites import published_set, served


def check_the_set_is_scored_as_the_model_itself_answers_it() -> None:
    folder = checking.SCRATCH / "data"
    model = served.trained(checking.SUITE, ContinuouslyBatched)
    published_set.write_set(model, folder, 24)
    scored, points = published_set.measured(checking.SUITE, ContinuouslyBatched, folder)
    expected = published_set.reference(model, scored)
    facts = points["accuracy"].facts
    assert facts["samples"] == facts["of"] == 24, facts
    assert all(abs(facts[name] / value - 1) < 1e-6 for name, value in expected.items()), (facts, expected)
    assert not any(facts[f"{name}_interval"] for name in expected), "nothing of the set was drawn"
    assert points["8 at once"].figures["score_under_load"] == 1.0, points

    settings = {"accuracy_answer_tokens": published_set.ANSWER // 2, "accuracy_requests": 12}
    _, points = published_set.measured(checking.SUITE, ContinuouslyBatched, folder, "accuracy", **settings)
    facts = points["accuracy"].facts
    assert (facts["samples"], facts["of"]) == (12, 24)
    assert facts[LENGTH] + facts[f"{LENGTH}_interval"] < 0.9 * expected[LENGTH], "answers are cut short"

    blocks = model.model.blocks
    model.model.blocks = torch.nn.ModuleList([blocks[1], blocks[0]])
    config = (folder / WEIGHTS / "config.json").read_text()
    write(model.model, folder / WEIGHTS)
    (folder / WEIGHTS / "config.json").write_text(config)
    _, points = published_set.measured(checking.SUITE, ContinuouslyBatched, folder, "accuracy")
    facts = points["accuracy"].facts
    worse = [name for name, value in expected.items() if name != LENGTH and facts[name] < 0.99 * value]
    assert worse == ["rouge1", "rouge2", "rougeL", "rougeLsum"], (facts, expected)
