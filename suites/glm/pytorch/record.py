"""ReCoRD as SuperGLUE has it, ``train.jsonl`` and ``val.jsonl``, with the vocabulary of an uncased wordpiece model."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cloze import Example, Symbols

PLACEHOLDER = "@placeholder"
NEEDED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class RecordError(ValueError):
    """A data file cannot be used."""


class WordPieces:
    """The published model's tokens: the vocabulary's, and behind them the start and the end of a piece."""

    def __init__(self, path: Path) -> None:
        from tokenizers import BertWordPieceTokenizer  # the small data does without

        if not path.is_file():
            raise RecordError(f"{path}: no such file; vocab_file names the wordpiece vocabulary, one token a line")
        vocabulary = {line.rstrip("\n"): place for place, line in enumerate(path.open(encoding="utf-8"))}
        missing = [token for token in NEEDED if token not in vocabulary]
        if missing:
            raise RecordError(f"{path}: not a wordpiece vocabulary, it lacks {', '.join(missing)}")
        pad, _, cls, _, mask = (vocabulary[token] for token in NEEDED)
        self.symbols = Symbols(pad=pad, cls=cls, mask=mask, start=len(vocabulary), end=len(vocabulary) + 1)
        self.size = len(vocabulary) + 2
        self._pieces = BertWordPieceTokenizer(vocabulary, lowercase=True)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in self._pieces.encode_batch(list(texts), add_special_tokens=False)]


def read(path: Path, *, training: bool, candidates: int, seed: int) -> list[Example]:
    """Read questions: for training one for each right answer, with wrong ones up to ``candidates`` in all."""
    if not path.is_file():
        raise RecordError(f"{path}: no such file")
    draw = random.Random(seed)
    found: list[Example] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                found += _questions(json.loads(line), draw, candidates if training else None)
            except (KeyError, TypeError, ValueError) as error:
                raise RecordError(f"{path}:{number}: not a line of ReCoRD: {error!r}") from error
    if not found:
        raise RecordError(f"{path}: holds no question")
    return found


def _questions(item: dict[str, Any], draw: random.Random, most: int | None) -> Iterator[Example]:
    text = item["passage"]["text"]
    entities = sorted({text[place["start"] : place["end"] + 1] for place in item["passage"]["entities"]})
    passage = text.replace("@highlight\n", "- ")
    for question in item["qas"]:
        before, found, after = question["query"].partition(PLACEHOLDER)
        if not found:
            raise ValueError(f"the query {question['query']!r} has no {PLACEHOLDER}")
        answers = sorted({answer["text"] for answer in question["answers"]})
        if most is None:
            right = frozenset(place for place, entity in enumerate(entities) if entity in answers)
            yield Example(passage, before, after, entities, right)
        else:
            wrong = [entity for entity in entities if entity not in answers]
            for answer in answers:
                yield _training_example(passage, before, after, answer, wrong, most, draw)


def _training_example(
    passage: str, before: str, after: str, answer: str, wrong: list[str], most: int, draw: random.Random
) -> Example:
    candidates = [answer, *draw.sample(wrong, min(len(wrong), most - 1))]
    draw.shuffle(candidates)
    return Example(passage, before, after, candidates, frozenset({candidates.index(answer)}))
