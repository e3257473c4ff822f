"""Read ReCoRD in SuperGLUE's format, ``train.jsonl`` and ``val.jsonl``, with an uncased wordpiece vocabulary."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cloze import Example, Symbols

PLACEHOLDER = "@placeholder"
REQUIRED_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

ADDED = 2
"""The start symbol and the end symbol of an answer, after the vocabulary."""


class RecordError(ValueError):
    """A data file was not found or is invalid."""


class WordPieces:
    """The published model's tokens: the vocabulary, then the start symbol and the end symbol of an answer."""

    def __init__(self, path: Path) -> None:
        from tokenizers import BertWordPieceTokenizer  # not installed for the small data

        if not path.is_file():
            raise RecordError(
                f"{path}: file not found; vocab_file must name the wordpiece vocabulary, one token per line"
            )
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise RecordError(f"{path}: not a wordpiece vocabulary: {error}") from error
        vocabulary = {line: place for place, line in enumerate(lines[:-1] if lines[-1] == "" else lines)}
        missing = [token for token in REQUIRED_TOKENS if token not in vocabulary]
        if missing:
            raise RecordError(f"{path}: not a wordpiece vocabulary; missing {', '.join(missing)}")
        pad, _, cls, _, mask = (vocabulary[token] for token in REQUIRED_TOKENS)
        self.symbols = Symbols(pad=pad, cls=cls, mask=mask, start=len(vocabulary), end=len(vocabulary) + 1)
        self.size = len(vocabulary) + ADDED
        self._pieces = BertWordPieceTokenizer(vocabulary, lowercase=True)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._pieces.encode_batch(list(texts), add_special_tokens=False)]


def read(path: Path, *, training: bool, candidates: int, seed: int) -> list[Example]:
    """Read questions; in training, one question for each right answer, with ``candidates`` candidates at most."""
    if not path.is_file():
        raise RecordError(f"{path}: file not found")
    draw = random.Random(seed)
    examples: list[Example] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                examples += _questions(json.loads(line), draw, candidates if training else None)
            except KeyError as error:
                raise RecordError(f"{path}:{number}: no {error}; expected a line of ReCoRD with answers") from error
            except (TypeError, ValueError) as error:
                raise RecordError(f"{path}:{number}: invalid line; expected a line of ReCoRD: {error}") from error
    if not examples:
        raise RecordError(f"{path}: no questions in the file")
    return examples


def _questions(item: dict[str, Any], draw: random.Random, max_candidates: int | None) -> Iterator[Example]:
    text = item["passage"]["text"]
    places = [(place["start"], place["end"]) for place in item["passage"]["entities"]]
    outside = [place for place in places if not 0 <= place[0] <= place[1] < len(text)]
    if outside:
        raise ValueError(f"the entity {outside[0]} is outside the passage of {len(text)} characters")
    entities = sorted({text[start : end + 1] for start, end in places})
    passage = text.replace("@highlight\n", "- ")
    for question in item["qas"]:
        before, placeholder, after = question["query"].partition(PLACEHOLDER)
        if not placeholder:
            raise ValueError(f"the query {question['query']!r} has no {PLACEHOLDER}")
        answers = sorted({answer["text"] for answer in question["answers"]})
        if max_candidates is None:
            right = frozenset(place for place, entity in enumerate(entities) if entity in answers)
            yield Example(passage, before, after, entities, right)
        else:
            wrong = [entity for entity in entities if entity not in answers]
            for answer in answers:
                yield _training_example(passage, before, after, answer, wrong, max_candidates, draw)


def _training_example(
    passage: str, before: str, after: str, answer: str, wrong: list[str], max_candidates: int, draw: random.Random
) -> Example:
    candidates = [answer, *draw.sample(wrong, min(len(wrong), max_candidates - 1))]
    draw.shuffle(candidates)
    return Example(passage, before, after, candidates, frozenset({candidates.index(answer)}))
