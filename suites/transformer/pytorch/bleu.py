"""BLEU from sums, which can be added over batches and ranks: equal to sacrebleu's score of the whole set."""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu import BLEU, corpus_bleu

ORDERS = 4


def sums(translations: Sequence[str], references: Sequence[str]) -> list[int]:
    """Return the counts of lower-cased n-grams that agree and of all, by order, and the words of both texts."""
    score = corpus_bleu(translations, [references], lowercase=True, force=True)  # force: no warning about texts
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def score(added: Sequence[float]) -> float:
    """Return BLEU, 0 to 100, from the added sums."""
    counts = [int(value) for value in added]
    correct, total, (words, words_of_references) = counts[:ORDERS], counts[ORDERS : 2 * ORDERS], counts[2 * ORDERS :]
    result = BLEU.compute_bleu(correct, total, words, words_of_references, smooth_method="exp", max_ngram_order=ORDERS)
    return min(float(result.score), 100.0)  # its rounding errors can exceed 100
