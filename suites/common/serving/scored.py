"""The set of the reference scale: questions, by whose expected answers those of published weights are scored.

The data directory has the weights, and the set as MLPerf Inference distributes it.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance
from typing import Protocol

from flagperf_driver import seeds
from flagperf_driver.driver import Config

WEIGHTS = "weights"
"""The folder of the weights in the data directory, in Hugging Face's format, with their tokenizer."""
LENGTH = "length"
_DRAWN = "accuracy_requests"


@dataclass(frozen=True)
class Question:
    """A prompt of a set, and what the answer is compared with."""

    prompt: Sequence[int]
    expected: str
    part: str = ""
    """The part of the set, if it has parts with scores of their own."""


class AnswerSet(Protocol):
    """A set: its questions, and how an answer is scored."""

    questions: Sequence[Question]
    plain: bool
    """Whether an answer is scored without its special tokens."""

    def score(self, question: Question, answer: str) -> Mapping[str, float]:
        """Return the scores of an answer, from 0 to 100, by the names of the config's ``accuracy_reference``."""

    def length(self, tokens: Sequence[int], answer: str) -> float:
        """Return the length of an answer, as the config's ``accuracy_length`` counts it."""


class Scored:
    """The questions that are asked, in the order in which they are drawn, and the scores of their answers."""

    def __init__(
        self, config: Config, seed: int, answers: AnswerSet, text_of: Callable[[list[int]], str], stops: Sequence[int]
    ) -> None:
        """Draw the questions; ``text_of`` is the tokenizer's, and ``stops`` are the tokens that end an answer."""
        self.count = len(answers.questions)
        """Of the whole set."""
        number = min(config.accuracy_requests or self.count, self.count)
        drawn = random.Random(seeds.derive(seed, _DRAWN)).sample(range(self.count), number)
        self._questions = [answers.questions[place] for place in drawn]
        self._answers, self._text_of, self.stops = answers, text_of, stops
        self.tokens: int = config.accuracy_answer_tokens
        """The most tokens of an answer."""
        self.temperature: float = config.accuracy_temperature

    @property
    def prompts(self) -> list[Sequence[int]]:
        return [question.prompt for question in self._questions]

    @property
    def timed(self) -> bool:
        """Whether questions are among the timed requests: an answer that is sampled is another one each time."""
        return not self.temperature

    def score(self, number: int, tokens: Sequence[int]) -> Mapping[str, float]:
        """Return the scores of an answer, and its length."""
        text = self._text_of(list(tokens)).strip()
        scores = self._answers.score(self._questions[number], text)
        return {**scores, LENGTH: self._answers.length(tokens, text)}

    def facts(self, scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the mean of each score and of the length, each with half of its 95 % interval.

        The mean of the whole set is exact if the answers are greedy: nothing was drawn.
        """
        drawn = 1.0 if self.temperature else math.sqrt(1 - len(scores) / self.count)
        facts: dict[str, float] = {"samples": len(scores), "of": self.count, "timed": self.timed}
        for name in dict.fromkeys(name for score in scores for name in score):
            values = [score[name] for score in scores if name in score]
            facts[name] = fmean(values)
            facts[f"{name}_interval"] = _interval(values) * drawn
        return facts

    def compared(self, loaded: Sequence[float], alone: Sequence[float]) -> tuple[float, float]:
        """Return the mean of scores under load as a share of the same questions' without, and half of its interval."""
        mean = fmean(alone)
        if not mean:  # nothing can be worse
            return 1.0, 0.0
        pairs = [after - before for after, before in zip(loaded, alone, strict=True)]
        return fmean(loaded) / mean, _interval(pairs) / mean


def _interval(values: Sequence[float]) -> float:
    """Return half of the 95 % interval of the mean: its standard error times Student's quantile, by its expansion."""
    free = max(len(values) - 1, 1)
    quantile = 1.96 + 2.37 / free + 2.82 / free**2
    return quantile * math.sqrt(variance(values) / len(values)) if len(values) > 1 else 0.0


def stops_of(folder: Path) -> list[int]:
    """Return the tokens that end an answer of published weights, by the files beside them."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        ends = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
        if ends is not None:
            return [ends] if isinstance(ends, int) else [int(end) for end in ends]
    raise ValueError(f"{folder}: no eos_token_id in generation_config.json or config.json; expected the weights' own")
