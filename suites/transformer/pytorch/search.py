"""Beam search for the best translation, as FlagPerf's: with its length penalty, and early end of a sentence."""

from __future__ import annotations

import math

import torch
from model import Encoded, Pair, Transformer
from torch import Tensor
from words import EOS, PAD


def translate(
    model: Transformer, source: Tensor, *, beam: int, length_penalty: float, max_length: int
) -> list[list[int]]:
    """Return the best translation of each source sentence, without EOS.

    A hypothesis that ends is scored by its mean log-probability, with the length to the power of the penalty. A
    sentence is done when ``beam`` hypotheses have ended; after ``max_length`` tokens all hypotheses end.
    """
    search = _Search(model, source, beam, length_penalty)
    for place in range(max_length):
        if search.advance(place):
            break
    else:
        search.finish(max_length)
    return search.best()


class _Search:
    """The hypotheses of all sentences (sentences x beam), and the best ended hypothesis of each sentence."""

    def __init__(self, model: Transformer, source: Tensor, beam: int, length_penalty: float) -> None:
        self._model, self._beam, self._penalty = model, beam, length_penalty
        self._encoded: Encoded = model.encode(source)
        self._past: list[Pair] | None = None
        sentences = len(source)
        self._tokens = source.new_full((sentences, beam, 1), EOS)  # decoding starts with EOS
        self._scores = torch.full((sentences, beam), -math.inf, device=source.device)
        self._scores[:, 0] = 0.0  # all hypotheses are equal at first
        self._first = beam * torch.arange(sentences, device=source.device)[:, None]
        self._ended = torch.zeros(sentences, dtype=torch.int64, device=source.device)
        self._best_score = torch.full((sentences,), -math.inf, device=source.device)
        self._best_tokens = source.new_full((sentences, 0), PAD)

    def advance(self, place: int) -> bool:
        """Append a token to all hypotheses; return whether all sentences are done."""
        scores = self._next_scores(place)
        if place == 0:
            scores[..., EOS] = -math.inf  # no translation is empty
        vocabulary = scores.shape[2]
        found, places = scores.flatten(1).topk(2 * self._beam, dim=1)  # at most half of them end
        origins, tokens = places // vocabulary, places % vocabulary
        ends = tokens == EOS
        ending = ends[:, : self._beam]
        self._note_ended(found[:, : self._beam].masked_fill(~ending, -math.inf), origins, place + 1)
        self._ended += ending.sum(1)
        kept = ends.int().argsort(dim=1, stable=True)[:, : self._beam]
        self._scores = found.gather(1, kept)
        self._reorder(origins.gather(1, kept), tokens.gather(1, kept))
        return bool((self._ended >= self._beam).all())

    def finish(self, length: int) -> None:
        """End all hypotheses."""
        scores = self._next_scores(length)[..., EOS]
        self._note_ended(scores, torch.arange(self._beam, device=scores.device).expand_as(scores), length + 1)

    def best(self) -> list[list[int]]:
        return [[token for token in tokens if token != PAD] for tokens in self._best_tokens.tolist()]

    def _next_scores(self, place: int) -> Tensor:
        """Return the score of each hypothesis with each token appended."""
        logits, self._past = self._model.step(self._tokens[:, :, -1], place, self._encoded, self._past)
        scores = logits.float().log_softmax(dim=-1) + self._scores[:, :, None]
        scores[..., PAD] = -math.inf
        return scores

    def _note_ended(self, scores: Tensor, origins: Tensor, length: int) -> None:
        """Keep the best of the ended hypotheses of each sentence that is not done; ``length`` counts EOS."""
        score, place = (scores / length**self._penalty).max(dim=1)
        better = (score > self._best_score) & (self._ended < self._beam)
        self._best_score = torch.where(better, score, self._best_score)
        origin = origins.gather(1, place[:, None])[:, :, None].expand(-1, -1, self._tokens.shape[2])
        tokens = self._tokens.gather(1, origin)[:, 0, 1:]
        longer = tokens.shape[1] - self._best_tokens.shape[1]
        padded = torch.nn.functional.pad(self._best_tokens, (0, longer), value=PAD)
        self._best_tokens = torch.where(better[:, None], tokens, padded)

    def _reorder(self, origins: Tensor, tokens: Tensor) -> None:
        order = (self._first + origins).flatten()
        before = self._tokens.flatten(0, 1)[order].view_as(self._tokens)
        self._tokens = torch.cat([before, tokens[:, :, None]], dim=2)
        assert self._past is not None
        self._past = [(key[order], value[order]) for key, value in self._past]
