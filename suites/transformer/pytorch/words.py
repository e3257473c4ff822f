"""Tokens and words: fairseq's dictionaries of byte pairs, sentencepiece's models, and the words of the small scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

PAD, EOS, UNKNOWN, FIRST = 1, 2, 3, 4
"""fairseq's special tokens, and the first token that is a word; token 0 does not occur."""
JOIN = "@@ "
"""The mark of byte pairs: the word goes on."""


class CorpusError(ValueError):
    """A file of the data cannot be used; the message names the file."""


class Words(Protocol):
    """The words of the target's tokens."""

    def texts(self, sentences: Iterable[Sequence[int]]) -> list[str]:
        """Return the text of each sentence as a person would write it."""


class BytePairs:
    """A fairseq dictionary: a file with a word and its count in each line."""

    def __init__(self, path: Path, vocab_size: int, language: str) -> None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CorpusError(
                f"{path}: cannot be read ({error}); expected the dictionary of fairseq-preprocess"
            ) from None
        words = [line.rpartition(" ") for line in lines]
        if broken := next((number for number, (_, _, count) in enumerate(words, 1) if not count.isdigit()), None):
            raise CorpusError(f"{path}:{broken}: {lines[broken - 1]!r}; expected a word, a space and its count")
        if len(words) + FIRST != vocab_size:
            raise CorpusError(
                f"{path}: {len(words)} words; expected {vocab_size - FIRST} for vocab_size = {vocab_size}; "
                "prepare the data as the suite's README describes"
            )
        self._words = ["", "<pad>", "", "<unk>", *(word for word, _, _ in words)]
        from sacremoses import MosesDetokenizer

        self._detokenizer = MosesDetokenizer(lang=language)

    def texts(self, sentences: Iterable[Sequence[int]]) -> list[str]:
        joined = [f"{' '.join(self._words[token] for token in sentence)} ".replace(JOIN, "") for sentence in sentences]
        return [self._detokenizer.detokenize(text.split()) for text in joined]


class Pieces:
    """A sentencepiece model with fairseq's special tokens."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        from sentencepiece import SentencePieceProcessor

        if not path.is_file():
            raise CorpusError(
                f"{path}: file not found; expected a sentencepiece model, as the suite's README describes"
            )
        try:
            self._model = SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise CorpusError(f"{path}: sentencepiece cannot read this file ({error})") from None
        got = self._model.vocab_size(), self._model.pad_id(), self._model.eos_id(), self._model.unk_id()
        if got != (expected := (vocab_size, PAD, EOS, UNKNOWN)):
            raise CorpusError(
                f"{path}: got vocab_size, pad_id, eos_id and unk_id {got}, expected {expected}; "
                "train the model as the suite's README describes"
            )

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each line, with EOS."""
        tokens: list[list[int]] = self._model.encode(lines, add_eos=True)
        return tokens

    def texts(self, sentences: Iterable[Sequence[int]]) -> list[str]:
        return [self._model.decode([token for token in sentence if token >= UNKNOWN]) for sentence in sentences]


class WholeWords:
    """A vocabulary of all words of the small scale, in both languages."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = ["", "<pad>", "", "<unk>", *sorted(set(words))]
        self._tokens = {word: token for token, word in enumerate(self._words) if token >= FIRST}

    def __len__(self) -> int:
        return len(self._words)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each line, with EOS."""
        return [[*(self._tokens[word] for word in line.split()), EOS] for line in lines]

    def texts(self, sentences: Iterable[Sequence[int]]) -> list[str]:
        return [" ".join(self._words[token] for token in sentence) for sentence in sentences]
