"""STC: one dialogue per line; words by jieba, tokens by the published sentencepiece model.

Reading takes minutes: all processors of the host encode the lines once, and the tokens are kept in a cache.
"""

from __future__ import annotations

import hashlib
import io
import logging
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from common import cached
from common.shares import Array, SourceError
from lines import Lines

CHUNK = 20_000
"""Lines that a process encodes at a time."""
VISIBLE = str.maketrans(" \n", "\u2582\u2583")
"""The tokenizer's characters for a space and for the end of a line."""
END, PAD = "<eod>", "<pad>"
ARRAYS = ("tokens", "first")


class StcError(SourceError):
    """The dialogues or their tokenizer were not found or cannot be read."""


def read(path: Path, model: Path, vocab_size: int, length: int, cache: Path | None = None) -> Lines:
    """Return the dialogues of a file, or their tokens in the cache if neither file has changed."""
    tokenizer = Tokenizer(model, vocab_size)
    if not path.is_file():
        raise StcError(f"{path}: file not found; copy STC's train.txt and valid.txt into the data directory")
    kept = (cache or cached.default_folder()) / f"stc-{_fingerprint(path, model, length)}.npz"
    with cached.one_at_a_time(kept):
        if (arrays := cached.load(kept, ARRAYS)) is None:
            arrays = encode(_read_lines(path), tokenizer, length)
            cached.store(kept, arrays)
    if len(arrays["first"]) == 1:
        raise StcError(f"{path}: no dialogues; copy the file again")
    return Lines(**arrays, asked=np.ones(len(arrays["first"]) - 1, np.int64), length=length, pad=tokenizer.pad)


def _fingerprint(path: Path, model: Path, length: int) -> str:
    states = [(os.fspath(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in (path, model)]
    return hashlib.sha256(repr((states, length)).encode(errors="surrogateescape")).hexdigest()[:24]


def _read_lines(path: Path) -> list[str]:
    content = path.read_bytes()
    try:
        return list(io.StringIO(content.decode("utf-8"), newline=None))
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise StcError(f"{path}:{number}: not UTF-8: {error.reason}; copy the file again") from error


class Tokenizer:
    """jieba's words, and the tokens of these words."""

    def __init__(self, model: Path, vocab_size: int) -> None:
        import sentencepiece

        if not model.is_file():
            raise StcError(f"{model}: file not found; copy the folder bpe_3w_new into the data directory")
        try:
            self._pieces: Any = sentencepiece.SentencePieceProcessor(model_file=os.fspath(model))
        except (OSError, RuntimeError, ValueError) as error:
            raise StcError(f"{model}: not a sentencepiece model: {error}; copy the file again") from error
        if (size := self._pieces.get_piece_size()) != vocab_size:
            raise StcError(f"{model}: {size} tokens; expected vocab_size = {vocab_size}: copy CPM's own file")
        self.end, self.pad = (self._symbol(model, piece) for piece in (END, PAD))

    def _symbol(self, model: Path, piece: str) -> int:
        number = int(self._pieces.piece_to_id(piece))
        if number == self._pieces.unk_id():
            raise StcError(f"{model}: no token {piece}; copy CPM's own file")
        return number

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a line with its end, then the symbol of the text's end."""
        import jieba

        words = " ".join(word.translate(VISIBLE) for word in jieba.cut(text))
        return [*self._pieces.encode(words), self.end]


def pieces(tokens: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """Cut a text into parts of length + 1 tokens; a part of one token predicts nothing and is left out."""
    for start in range(0, len(tokens), length + 1):
        if len(part := tokens[start : start + length + 1]) > 1:
            yield part


def encode(texts: Sequence[str], tokenizer: Tokenizer, length: int) -> dict[str, Array]:
    """Encode all texts, with several processes if there are many."""
    import jieba

    jieba.setLogLevel(logging.WARNING)
    jieba.initialize()  # before the fork: the processes share its dictionary
    chunks = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    if len(chunks) <= 1:
        found = [_encode_chunk(tokenizer, chunk, length) for chunk in chunks]
    else:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), context) as pool:
            found = list(pool.map(_encode_chunk, [tokenizer] * len(chunks), chunks, [length] * len(chunks)))
    sizes: Array = np.concatenate([[0], *(sizes for _, sizes in found)])
    tokens: Array = np.concatenate([np.zeros(0, np.uint16), *(tokens for tokens, _ in found)])
    return {"tokens": tokens, "first": np.cumsum(sizes)}


def _encode_chunk(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> tuple[Array, Array]:
    """Return the tokens of the texts' parts, and the parts' sizes."""
    parts = [part for text in texts for part in pieces(tokenizer.encode(text), length)]
    tokens = np.array([token for part in parts for token in part], np.uint16)
    return tokens, np.array([len(part) for part in parts], np.int64)
