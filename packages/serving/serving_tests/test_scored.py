"""The reference scale: answers to a set are scored, alone and under load, and compared with the stored reference."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from common.serving.scored import Question, Scored, stops_of

from pytest_flagperf.results import Outcome
from serving_tests import formula
from serving_tests.outcomes import outcome_of
from serving_tests.test_measurement import failed, judged, points_of

_TOKENS, _END = 16, 17


class FormulaSet:
    """Questions whose expected answers are the formula's own, but for every tenth, which no server can know."""

    plain = True

    def __init__(self, count: int) -> None:
        generator = random.Random(2)
        self.questions = [self._question(generator.choices(range(256), k=8), number) for number in range(count)]

    @staticmethod
    def _question(prompt: list[int], number: int) -> Question:
        text = list(prompt)
        while len(text) < len(prompt) + _TOKENS and text[-1] != _END:
            text.append(formula.following(text))
        return Question(prompt, " ".join(map(str, text[len(prompt) :])) if number % 10 else "")

    def score(self, question: Question, answer: str) -> Mapping[str, float]:
        pairs = zip(question.expected.split(), answer.split(), strict=False)
        return {"same": 100 * sum(one == other for one, other in pairs) / max(len(question.expected.split()), 1)}

    def length(self, tokens: Sequence[int], answer: str) -> float:
        assert len(tokens) == len(answer.split())
        return float(len(tokens))


def a_set(count: int = 40, **config: Any) -> Scored:
    settings = {"accuracy_requests": 0, "accuracy_answer_tokens": _TOKENS, "accuracy_temperature": 0.0, **config}
    values: Any = SimpleNamespace(**settings)
    return Scored(values, 1, FormulaSet(count), lambda tokens: " ".join(map(str, tokens)), [_END])


def outcome(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "", same: float = 90.0, length: float = 14.5
) -> Outcome:
    stored: dict[str, Any] = {"accuracy_set": "set", "accuracy_reference": {"same": same}, "accuracy_length": length}
    points = points_of(folder, monkeypatch, fault, scored=a_set(), concurrencies=[8], **stored)
    return outcome_of(points, scale="reference")


@pytest.mark.integration
def test_answers_to_a_set_are_judged_by_the_stored_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = outcome(tmp_path, monkeypatch)
    assert failed(good) - {"client"} == set(), judged(good)
    figures = [good.value(name) for name in ("score", "answer_length", "score_under_load")]
    assert figures == [pytest.approx(1.0), pytest.approx(1.0, abs=0.02), 1.0]
    assert judged(good)["accurate same"].got == "90 (40 of 40 answers)"
    assert failed(outcome(tmp_path, monkeypatch, same=91.0)) - {"client"} == {"accurate same"}, "a higher reference"
    assert failed(outcome(tmp_path, monkeypatch, length=18.0)) - {"client"} == {"length"}, "longer answers"


@pytest.mark.integration
@pytest.mark.parametrize(("fault", "expected"), [("wrong", {"accurate same", "length"}), ("tires", {"under_load"})])
def test_a_server_that_answers_worse_fails(
    fault: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = outcome(tmp_path, monkeypatch, fault)
    assert failed(bad) - {"answered", "client", "computed"} == expected
    assert all("the figures of this round are invalid" in judged(bad)[name].sentence for name in expected)


@pytest.mark.integration
def test_sampled_answers_are_not_judged_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: dict[str, Any] = {"accuracy_set": "set", "accuracy_reference": {"same": 90.0}, "concurrencies": [4]}
    points = points_of(tmp_path, monkeypatch, scored=a_set(accuracy_temperature=1.0), **stored)
    verdicts = judged(outcome_of(points, scale="reference"))
    assert "within the interval of" in verdicts["accurate same"].expected
    assert (verdicts["under_load"].ok, verdicts["under_load"].judged, "length" in verdicts) == (True, False, False)


def test_a_drawn_part_has_an_interval_and_the_whole_set_has_none() -> None:
    part, whole = a_set(100, accuracy_requests=20), a_set(100)
    assert part.prompts == a_set(100, accuracy_requests=20).prompts, "drawn by the seed"
    assert len({*map(tuple, part.prompts)}) == 20
    scores = [{"same": 100.0 * (number % 2)} for number in range(20)]
    # Student's quantile of 19 degrees of freedom is 2.093, and 80 of the 100 questions were left out.
    assert part.facts(scores)["same_interval"] == pytest.approx(2.093 * (2500 / 19 * 0.8) ** 0.5, rel=1e-2)
    assert whole.facts([{"same": 50.0, "other": 1.0}, *[{"same": 70.0}] * 99])["same_interval"] == 0.0
    sampled = a_set(100, accuracy_temperature=1.0)
    assert sampled.facts(scores * 5)["same_interval"] > 0.0, "the same questions are answered otherwise next time"


def test_the_ends_of_answers_are_those_of_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert stops_of(tmp_path) == [7]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert stops_of(tmp_path) == [7, 8]
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="no eos_token_id in generation_config"):
        stops_of(tmp_path)
