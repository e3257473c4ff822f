"""Questions with one right answer: MLPerf Inference's set for gpt-oss, without those that ask for programs."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyarrow import ArrowInvalid, parquet

from common.serving.scored import Question

FILE = "acc_eval_ref.parquet"
"""In the data directory: a row for each question, with the tokens of its prompt, its part of the set and its answer."""
_PROMPTS = ("input_tokens", "tok_input")
"""The names that the column of prompts has had."""
_PART, _ANSWER = "dataset", "ground_truth"
_FINAL = re.compile(r"<\|channel\|>final[^<]*<\|message\|>(.*?)(?:<\|return\|>|<\|end\|>|\Z)", re.DOTALL)
_NAMED = r"(?i:answer)(?:\s+is)?\s*[:.]?\s*\W*"
_PARTS = {
    "aime25": (r"\\boxed\{\s*(\d+)\s*\}", rf"{_NAMED}(\d+)\b"),
    "gpqa_diamond": (r"\\boxed\{(?:\\text\{)?([A-D])\b", rf"{_NAMED}([A-D])\b", r"\A\W*([A-D])(?:\W*\Z|[).:\n])"),
}
"""The parts that are judged, each with what finds an answer, the surest first: a number, or the letter of a choice."""


class Questions:
    """The set; an answer is right, 100, or wrong, 0, and its length is that in tokens."""

    plain = False

    def __init__(self, folder: Path) -> None:
        self.questions = [*_read(folder / FILE)]
        if not self.questions:
            raise ValueError(f"{folder / FILE}: no row with {' or '.join(_PARTS)} in the column {_PART}")

    def score(self, question: Question, answer: str) -> Mapping[str, float]:
        return {question.part: 100.0 * (found(question.part, answer) == question.expected)}

    def length(self, tokens: Sequence[int], answer: str) -> float:  # noqa: ARG002 - another set counts characters
        return float(len(tokens))


def answer_set(folder: Path) -> Questions:
    return Questions(folder)


def found(part: str, answer: str) -> str | None:
    """Return the answer that the last message of a text gives; None without one, as after too long a thought."""
    messages = _FINAL.findall(answer)
    text = messages[-1].replace("**", "") if messages else ""
    given = next((matches[-1] for way in _PARTS[part] if (matches := re.findall(way, text))), None)
    return None if given is None else given.lstrip("0") or "0"


def _read(file: Path) -> Iterator[Question]:
    try:
        table = parquet.read_table(file)
    except ArrowInvalid as error:
        raise ValueError(f"{file}: expected a Parquet file: {error}") from None
    prompts = next((name for name in _PROMPTS if name in table.column_names), "")
    missing = {_PART, _ANSWER} - {*table.column_names}
    if missing or not prompts:
        expected = f"{_PART}, {_ANSWER} and {' or '.join(_PROMPTS)}"
        raise ValueError(f"{file}: the columns are {', '.join(table.column_names)}; expected {expected}")
    for row in table.select([prompts, _PART, _ANSWER]).to_pylist():
        part = str(row[_PART]).lower()
        if part in _PARTS:
            yield Question(array("I", row[prompts]), str(row[_ANSWER]).strip().lstrip("0") or "0", part)
