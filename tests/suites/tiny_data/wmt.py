"""Sentences and translations as fairseq-preprocess binarises them, and as texts with a sentencepiece model.

The words are byte pairs whose joined form has Moses' escapes, as the published dictionary has them.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

TRAIN, TRAIN_INDEX = "train.en-de.en.bin", "train.en-de.en.idx"
TRAIN_TARGET = "train.en-de.de.bin"
TEST, REFERENCES, DICTIONARY = "test.en-de.en.bin", "test.raw.de", "dict.de.txt"
TEXT, TEST_TEXT, MODEL = "train.en", "test.en", "joined.model"
TRAIN_SENTENCES, TEST_SENTENCES = 160, 12
WORDS = {
    "ann": "anna", "bob": "bob", "sees": "sieht", "hears": "hört", "a": "einen", "red": "ro@@ ten", "big": "gro@@ ßen",
    "dog": "hund", "tree": "baum", "&quot;": "&quot;", "well @-@ known": "welt @-@ bekannten",
}  # fmt: skip
"""English words and their translations, both as byte pairs."""
EOS, FIRST, VOCAB_SIZE = 2, 4, 40
Tokens = list[int]


def write(folder: Path) -> None:
    """Write the binarised files with their dictionaries, and the same sentences as texts with a model."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    pairs = [text for pair in WORDS.items() for side in pair for text in side.split()]
    dictionary = list(dict.fromkeys(pairs))
    dictionary += [f"madeupword{number:04}" for number in range(VOCAB_SIZE - FIRST - len(dictionary))]
    for language in ("en", "de"):
        lines = (f"{word} {100 - place}\n" for place, word in enumerate(dictionary))
        (folder / f"dict.{language}.txt").write_text("".join(lines), encoding="utf-8")
    for name, count in (("train", TRAIN_SENTENCES), ("test", TEST_SENTENCES)):
        english = [_sentence(rng) for _ in range(count)]
        texts = {
            "en": [" ".join(words) for words in english],
            "de": [" ".join(WORDS[word] for word in words) for words in english],
        }
        for language, sentences in texts.items():
            tokens = [[*(FIRST + dictionary.index(word) for word in text.split()), EOS] for text in sentences]
            binarise(folder / f"{name}.en-de.{language}", tokens)
            plain = [detokenized(text) for text in sentences]
            (folder / f"{name}.{language}").write_text("".join(f"{text}\n" for text in plain), encoding="utf-8")
        if name == "test":
            (folder / REFERENCES).write_text("".join(f"{text}\n" for text in plain), encoding="utf-8")
    (folder / MODEL).write_bytes(_pieces([folder / TEXT, folder / "train.de"]))


def binarise(path: Path, sentences: Iterable[Tokens]) -> None:
    """Write ``.bin`` and ``.idx``: tokens of 4 bytes plus one, and an index of numbers of 8 bytes."""
    tokens = list(sentences)
    sizes = [len(sentence) for sentence in tokens]
    np.array([token + 1 for sentence in tokens for token in sentence], dtype="<i4").tofile(
        path.with_name(f"{path.name}.bin")
    )
    index = b"TNTIDX\x00\x00" + struct.pack("<5Q", 1, 4, 4, len(sizes), len(sizes))
    for numbers in (range(len(sizes) + 1), np.cumsum([0, *sizes]), sizes):
        index += np.asarray(numbers, dtype="<i8").tobytes()
    path.with_name(f"{path.name}.idx").write_bytes(index)


def detokenized(text: str) -> str:
    """Return the text as a person writes it."""
    return text.replace("@@ ", "").replace(" @-@ ", "-").replace("&quot;", '"')


def _sentence(rng: np.random.Generator) -> list[str]:
    kind = ["a", str(rng.choice(["red", "big", "well @-@ known"])), str(rng.choice(["dog", "tree"]))]
    return [str(rng.choice(["ann", "bob"])), str(rng.choice(["sees", "hears"])), *kind]


def _pieces(texts: list[Path]) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    lines = (line for path in texts for line in path.read_text(encoding="utf-8").splitlines())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, vocab_size=VOCAB_SIZE, model_type="bpe", character_coverage=1.0,
        bos_id=0, pad_id=1, eos_id=EOS, unk_id=3, minloglevel=2, num_threads=1,
    )  # fmt: skip
    return model.getvalue()
