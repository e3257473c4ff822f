"""ReCoRD as SuperGLUE publishes it, ``train.jsonl`` and ``val.jsonl``, and as FlagPerf encodes it, ``*_sparse.hdf5``.

The encoded files are written from the same questions, as FlagPerf's program does it: h5sparse's groups with scipy's
csc_matrix, i8. All words of the questions are whole tokens of the vocabulary ``vocab.txt``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

FOLDER = "ReCoRD/glm_train_eval_hdf5_sparse"
TRAIN, EVAL = f"{FOLDER}/train_hdf5/train_sparse.hdf5", f"{FOLDER}/eval_hdf5/eval_sparse.hdf5"
TRAIN_LINES, EVAL_LINES, VOCABULARY = "ReCoRD/train.jsonl", "ReCoRD/val.jsonl", "vocab.txt"
TRAIN_ITEMS, EVAL_ITEMS, LENGTH = 12, 6, 512
SIZE, UNKNOWN, CLS, SEPARATOR, MASK = 30522, 100, 101, 102, 103
START, END, PAD = SIZE, SIZE + 1, 0
FIRST_WORD = 1996
PEOPLE = ["ann", "bob", "carl", "dora"]
PLACES = ["rome", "oslo", "lima", "cairo"]
OTHERS = ["it", "rained", "in", "met", "at", "and", "went", "to", ".", "-", "yesterday"]
WORDS = {word: FIRST_WORD + place for place, word in enumerate([*PEOPLE, *PLACES, *OTHERS])}

Item = dict[str, Any]


def write(folder: Path) -> None:
    """Write both forms of the data, and the vocabulary."""
    rng = np.random.default_rng(7)
    for lines, encoded, count in ((TRAIN_LINES, TRAIN, TRAIN_ITEMS), (EVAL_LINES, EVAL, EVAL_ITEMS)):
        items = [_item(index, rng) for index in range(count)]
        for name in (lines, encoded):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / lines).write_text("".join(f"{json.dumps(item)}\n" for item in items), encoding="utf-8")
        write_sparse(folder / encoded, items, training=encoded == TRAIN)
    tokens = {PAD: "[PAD]", UNKNOWN: "[UNK]", CLS: "[CLS]", SEPARATOR: "[SEP]", MASK: "[MASK]"}
    tokens |= {number: word for word, number in WORDS.items()}
    vocabulary = [tokens.get(number, f"[unused{number}]") for number in range(SIZE)]
    (folder / VOCABULARY).write_text("".join(f"{token}\n" for token in vocabulary), encoding="utf-8")


def _item(index: int, rng: np.random.Generator) -> Item:
    """Make a passage with two questions about the places where two people went."""
    people, places = (rng.permutation(names)[:2].tolist() for names in (PEOPLE, PLACES))
    sentences = [f"{who.title()} went to {where.title()}" for who, where in zip(people, places, strict=True)]
    text = f"{sentences[0]} . {sentences[1]} .\n@highlight\nit rained in {places[0].title()} yesterday"
    names = [name.title() for name in (*people, *places)]
    entities = [(place, place + len(name) - 1) for name in names for place in _places(text, name)]
    return {
        "source": "Daily mail",
        "passage": {"text": text, "entities": [{"start": start, "end": end} for start, end in sorted(entities)]},
        "idx": index,
        "qas": [
            {
                "query": f"{who.title()} went to @placeholder yesterday .",
                "answers": [
                    {"start": start, "end": start + len(where) - 1, "text": where.title()}
                    for start in _places(text, where.title())
                ],
                "idx": 2 * index + number,
            }
            for number, (who, where) in enumerate(zip(people, places, strict=True))
        ],
    }


def _places(text: str, name: str) -> list[int]:
    return [place for place in range(len(text)) if text.startswith(name, place)]


def write_sparse(path: Path, items: list[Item], *, training: bool) -> None:
    """Write the questions as rows, one for each candidate; in training the first candidate is right."""
    rows: dict[str, list[Any]] = {key: [] for key in ("text", "position", "target", "logit_mask", "mask")}
    choices: list[list[int]] = []
    right: list[int] = []
    spans: list[list[int]] = []
    for item in items:
        text = item["passage"]["text"]
        entities = sorted({text[place["start"] : place["end"] + 1] for place in item["passage"]["entities"]})
        for question in item["qas"]:
            answers = sorted({answer["text"] for answer in question["answers"]})
            candidates = [*answers, *(name for name in entities if name not in answers)] if training else entities
            choices.append([len(rows["mask"]), len(rows["mask"]) + len(candidates)])
            spans.append([len(right), len(right) + len(answers)])
            right += [candidates.index(answer) for answer in answers]
            before, after = question["query"].split("@placeholder")
            words = [*encode(text.replace("@highlight\n", "- ")), *encode(before)]
            part_a = [CLS, *words, MASK, *encode(after), PAD]
            for candidate in candidates:
                _add_row(rows, part_a, len(words) + 1, encode(candidate))
    with h5py.File(path, "w") as file:
        for key, values in rows.items():
            save_matrix(file, key, values)
        save_matrix(file, "choice_start_end", choices)
        if not training:
            save_matrix(file, "answer_idx", [[place] for place in right])
            save_matrix(file, "answer_start_end", spans)


def encode(text: str) -> list[int]:
    """Return the tokens of a text of known words."""
    return [WORDS[word] for word in text.lower().split()]


def _add_row(rows: dict[str, list[Any]], part_a: list[int], mask_at: int, answer: list[int]) -> None:
    sep, count = len(part_a), len(answer) + 1
    rows["text"].append(_padded([*part_a, START, *answer]))
    rows["position"].append(_padded([*range(sep), *[mask_at] * count]))
    rows["position"].append(_padded([*[0] * sep, *range(1, count + 1)]))
    rows["target"].append(_padded([*[0] * sep, *answer, END]))
    rows["logit_mask"].append(_padded([*[0] * sep, *[1] * count]))
    rows["mask"].append([sep])


def _padded(numbers: list[int]) -> list[int]:
    return numbers + [0] * (LENGTH - len(numbers))


def save_matrix(file: h5py.File, name: str, rows: Sequence[Sequence[int]], layout: str = "csc") -> None:
    """Write a matrix as h5sparse does, by default by columns."""
    matrix = np.array(rows)
    lines = matrix.T if layout == "csc" else matrix
    group = file.create_group(name)
    group.attrs["h5sparse_format"] = layout
    group.attrs["h5sparse_shape"] = matrix.shape
    group["data"] = lines[lines != 0].astype(np.int64)
    group["indices"] = np.nonzero(lines)[1].astype(np.int32)
    group["indptr"] = np.append(0, np.cumsum((lines != 0).sum(1))).astype(np.int32)
