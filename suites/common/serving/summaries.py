"""News articles with summaries: CNN/DailyMail as MLPerf Inference prepares it for Llama 3.1 8B, scored by ROUGE."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import nltk
from rouge_score.rouge_scorer import RougeScorer

from common.serving.scored import Question

FILE = "cnn_eval.json"
"""In the data directory: a list of objects with the tokens of the prompt and the summary, beside texts."""
SENTENCES = "nltk_data"
"""In the data directory: NLTK's data with the begins and ends of English sentences."""
_PROMPT, _SUMMARY = "tok_input", "output"
_SCORES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class Summaries:
    """The set; a score is 100 times the F-measure, with stemmed words, and the length is that of the text."""

    plain = True

    def __init__(self, folder: Path) -> None:
        self.questions = _read(folder / FILE)
        nltk.data.path.insert(0, str(folder / SENTENCES))
        self._scorer = RougeScorer([*_SCORES], use_stemmer=True)

    def score(self, question: Question, answer: str) -> Mapping[str, float]:
        scores = self._scorer.score(_lines(question.expected.strip()), _lines(answer))
        return {name: 100 * scores[name].fmeasure for name in _SCORES}

    def length(self, tokens: Sequence[int], answer: str) -> float:  # noqa: ARG002 - another set counts tokens
        return float(len(_lines(answer)))


def answer_set(folder: Path) -> Summaries:
    return Summaries(folder)


def _lines(text: str) -> str:
    """Return the text with a sentence a line, as ROUGE-Lsum and the length need it."""
    return "\n".join(nltk.sent_tokenize(text))


def _read(file: Path) -> list[Question]:
    try:
        samples = json.loads(file.read_text(encoding="utf-8"))
        # An array has a tenth of a list's size, and each rank reads the set.
        questions = [Question(array("I", one[_PROMPT]), str(one[_SUMMARY])) for one in samples]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        expected = f"a list of objects with {_PROMPT}, the tokens of a prompt, and {_SUMMARY}, its summary"
        raise ValueError(f"{file}: {type(error).__name__}: {error}; expected {expected}") from None
    empty = next((number for number, question in enumerate(questions) if not question.prompt), None)
    if empty is not None or not questions:
        raise ValueError(f"{file}: {'no samples' if not questions else f'sample {empty} has an empty {_PROMPT}'}")
    return questions
