"""Encoded sentences: fairseq's binarised files, or text that is encoded once and cached."""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
from common.shares import Array
from words import EOS, PAD, CorpusError

MAGIC = b"TNTIDX\x00\x00"
TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64}
"""The types of tokens, by the number that the index has."""
LINES = 100_000
"""Lines that are encoded at a time."""


class Encoder(Protocol):
    def encode(self, lines: Sequence[str]) -> list[list[int]]: ...


class Sentences(NamedTuple):
    """The tokens of sentences, each with EOS at its end."""

    name: str
    """The name of the file, for messages."""
    tokens: Array
    starts: Array
    sizes: Array
    added: int = 0
    """What the file adds to each token."""

    @classmethod
    def of(cls, tokens: Sequence[Sequence[int]]) -> Sentences:
        sizes = np.array([len(sentence) for sentence in tokens], dtype=np.int64)
        return cls("sentences", np.concatenate([np.asarray(sentence) for sentence in tokens]), _starts(sizes), sizes)

    def chosen(self, rows: Array) -> Sentences:
        """Return these sentences only, in this order."""
        return self._replace(starts=self.starts[rows], sizes=self.sizes[rows])

    def padded(self, rows: Array, length: int, vocab_size: int) -> Array:
        """Return the tokens of some sentences, padded on the right (sentences x length)."""
        place = np.arange(length)
        inside = place < self.sizes[rows, None]
        places = np.minimum(self.starts[rows, None] + place, len(self.tokens) - 1)
        found = np.where(inside, self.tokens[places].astype(np.int64) - self.added, PAD)
        ends = found[np.arange(len(rows)), self.sizes[rows] - 1]
        if found.min() < 0 or found.max() >= vocab_size or not (ends == EOS).all():
            raise CorpusError(
                f"{self.name}: tokens {found.min()} to {found.max()}, at ends {np.unique(ends)[:3].tolist()}; "
                f"expected tokens below vocab_size = {vocab_size} and sentences that end with {EOS}"
            )
        return found


def read_binarised(path: Path) -> Sentences:
    """Read fairseq's ``.bin`` with its ``.idx`` beside it: an index of sizes and places, in numbers of 8 bytes."""
    index = path.with_suffix(".idx")
    try:
        with index.open("rb") as file:
            if file.read(8) != MAGIC:
                raise CorpusError(f"{index}: no index of fairseq's binarised data")
            _, code, width, count, dimensions = struct.unpack("<5Q", _bytes(file, 40, index))
            if TYPES.get(code) is None or np.dtype(TYPES[code]).itemsize != width or dimensions != count:
                raise CorpusError(f"{index}: type {code} of {width} bytes, {count} sentences with {dimensions} sizes; "
                                  "expected one size of each sentence, and tokens that are whole numbers")  # fmt: skip
            _numbers(file, count + 1, index)  # the number of sizes before each sentence
            starts, sizes = _numbers(file, count + 1, index), _numbers(file, count, index)
        tokens = np.memmap(path, dtype=np.dtype(TYPES[code]).newbyteorder("<"), mode="r")
    except (OSError, ValueError) as error:
        if isinstance(error, CorpusError):
            raise
        raise CorpusError(
            f"{getattr(error, 'filename', None) or path}: cannot be read ({error}); copy the file again"
        ) from None
    if not np.array_equal(np.diff(starts), sizes) or sizes.min(initial=1) < 1 or starts[-1] != len(tokens):
        raise CorpusError(f"{path}: {len(tokens)} tokens, expected {starts[-1]} by {index.name}; copy both files again")
    return Sentences(path.name, tokens, starts[:-1], sizes, added=1)


def read_text(path: Path, encoder: Encoder, model: Path, cache: Path | None = None) -> Sentences:
    """Encode the lines of a text; use the cached tokens if neither text nor model has changed."""
    folder = cache or default_cache()
    encoded = folder / f"{_fingerprint(path, model)}.tokens"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with encoded.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the other ranks of this host wait
            if not encoded.is_file():
                _encode(path, encoder, encoded)
        tokens: Array = np.memmap(encoded, dtype=np.uint16, mode="r")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: not a text in UTF-8 ({error})") from None
    except (OSError, ValueError) as error:
        raise CorpusError(f"{getattr(error, 'filename', None) or path}: cannot be read or written ({error})") from None
    ends = np.flatnonzero(tokens == EOS) + 1
    sizes = np.diff(ends, prepend=0)
    return Sentences(path.name, tokens, ends - sizes, sizes)


def default_cache() -> Path:
    """Return the folder of encoded texts: among the user's caches, because data folders may be read-only."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(home) / "pytest-flagperf" / "encoded"


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: cannot be read ({error}); expected a text in UTF-8") from None


def _encode(path: Path, encoder: Encoder, encoded: Path) -> None:
    with path.open(encoding="utf-8") as lines, tempfile.NamedTemporaryFile(dir=encoded.parent, delete=False) as file:
        for some in _chunks(lines):
            np.concatenate([np.asarray(tokens, dtype=np.uint16) for tokens in encoder.encode(some)]).tofile(file)
    Path(file.name).replace(encoded)


def _chunks(lines: Any) -> Iterator[list[str]]:
    stripped = (line.rstrip("\n") for line in lines)
    while some := list(islice(stripped, LINES)):
        yield some


def _fingerprint(*paths: Path) -> str:
    try:
        parts = [f"{path.resolve()} {path.stat().st_mtime_ns} {path.stat().st_size}" for path in paths]
    except OSError as error:
        raise CorpusError(f"{error.filename}: file not found") from None
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:24]


def _starts(sizes: Array) -> Array:
    starts: Array = np.cumsum(sizes) - sizes
    return starts


def _bytes(file: BinaryIO, count: int, path: Path) -> bytes:
    content = file.read(count)
    if len(content) != count:
        raise CorpusError(f"{path}: the file is cut; copy it again")
    return content


def _numbers(file: BinaryIO, count: int, path: Path) -> Array:
    return np.frombuffer(_bytes(file, 8 * count, path), dtype="<i8")
