"""Texts as numbers, one for each character, with FlagPerf's table and its rules for English."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
from common.shares import Array, SourceError

FILLER = "_"
"""Fills the end of a text, number 0."""
SYMBOLS = FILLER + "-!'(),.:;? ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS)}

ABBREVIATIONS = {
    "mrs": "misess", "mr": "mister", "dr": "doctor", "st": "saint", "co": "company", "jr": "junior", "maj": "major",
    "gen": "general", "drs": "doctors", "rev": "reverend", "lt": "lieutenant", "hon": "honorable", "sgt": "sergeant",
    "capt": "captain", "esq": "esquire", "ltd": "limited", "col": "colonel", "ft": "fort",
}  # fmt: skip
ABBREVIATED = re.compile(rf"\b({'|'.join(ABBREVIATIONS)})\.")


class TextError(SourceError):
    """A text cannot be written as numbers."""


def cleaned(text: str) -> str:
    """Return the text in small letters, without accents, with abbreviations written out."""
    letters = unicodedata.normalize("NFKD", text.replace("’", "'")).lower()
    words = ABBREVIATED.sub(lambda found: ABBREVIATIONS[found[1]], letters)
    return re.sub(r"\s+", " ", words)


def encoded(text: str) -> Array:
    """Return the number of each character; characters that the table lacks are left out."""
    if re.search(r"\d", text):
        raise TextError(f"the text {text[:60]!r} has digits; expected numbers in words, as in LJ Speech's lists")
    known = [NUMBERS[symbol] for symbol in cleaned(text) if symbol in NUMBERS and symbol != FILLER]
    return np.array(known, np.int64)


def padded(texts: list[Array], length: int) -> Array:
    """Return the texts as rows of one length, with the filler after the shorter ones."""
    if (longest := max(map(len, texts))) > length:
        raise TextError(f"a text has {longest} characters, but max_symbols = {length}; raise max_symbols")
    rows = np.zeros((len(texts), length), np.int64)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return rows
