"""Sentences and their translations: batches of the ranks, the loss and BLEU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import bleu
import corpus
import numpy as np
import sentences
import torch
from common.language.buckets import TokenBuckets, bucket_of
from common.shares import GroupedEvalShare
from corpus import Sentences
from model import Transformer
from search import translate
from torch import Tensor, nn
from words import EOS, FIRST, BytePairs, CorpusError, Pieces, WholeWords, Words

from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch import device as devices

EVAL_SEED = 20140601
"""The seed of the small scale's sentences for the evaluation, the same for all runs."""
SYNTHETIC_BATCHES = 64


class Batch(NamedTuple):
    """Sentences of one bucket (sentences x length), padded on the right."""

    source: Tensor
    target: Tensor
    tokens: int
    """The target's tokens, without padding."""
    tokens_of_step: float
    """The mean of ``tokens`` over all ranks and micro-steps of the optimizer step."""


class EvalBatch(NamedTuple):
    source: Tensor
    references: list[str]
    texts: Callable[[Iterable[Sequence[int]]], list[str]]
    tokens: int
    """The tokens of the source, with EOS and without padding: the target's are not known before the translation."""


class TrainBatches:
    """A rank's batches of the training; one pass is an epoch."""

    def __init__(self, ctx: Context, source: Sentences, target: Sentences) -> None:
        config = ctx.config
        self._source, self._target, self._vocab_size = source, target, config.vocab_size
        self._pinned = devices.pins(ctx.device)
        self._share = TokenBuckets(
            np.maximum(source.sizes, target.sizes), target.sizes, config.bucket_lengths, config.train_batch_size,
            ctx.data_rank, ctx.data_ranks, ctx.seed, accumulation=config.gradient_accumulation_steps,
        )  # fmt: skip

    def set_epoch(self, epoch: int) -> None:
        self._share.set_epoch(epoch)

    def skip(self, batches: int) -> None:
        self._share.skip(batches)

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[Batch]:
        for rows, length, tokens_of_step in self._share:
            source, target = (
                _tensor(part.padded(rows, length, self._vocab_size), pinned=self._pinned)
                for part in (self._source, self._target)
            )
            yield Batch(source, target, int(self._target.sizes[rows].sum()), tokens_of_step)


class EvalBatches:
    """A rank's batches of the evaluation, each of sentences of about the same length."""

    def __init__(self, ctx: Context, source: Sentences, references: Sequence[str], words: Words) -> None:
        config = ctx.config
        self._source, self._references, self._words = source, references, words
        self._vocab_size, self._lengths, self._pinned = (
            config.vocab_size,
            config.bucket_lengths,
            devices.pins(ctx.device),
        )
        buckets = bucket_of(source.sizes, config.bucket_lengths)
        self._share = GroupedEvalShare(buckets, config.eval_batch_size, ctx.data_rank, ctx.data_ranks)

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[EvalBatch]:
        for draw in self._share:
            longest = int(self._source.sizes[draw.indices].max())
            length = next((length for length in self._lengths if length >= longest), longest)
            source = _tensor(self._source.padded(draw.indices, length, self._vocab_size), pinned=self._pinned)
            references = [self._references[row] for row in draw.indices]
            yield EvalBatch(source, references, self._words.texts, int(self._source.sizes[draw.indices].sum()))


def _tensor(tokens: corpus.Array, *, pinned: bool) -> Tensor:
    tensor = torch.from_numpy(tokens)
    return tensor.pin_memory() if pinned else tensor


def create_train_data(ctx: Context) -> TrainBatches:
    """Return this rank's share of the training."""
    source, target = _synthetic(ctx) if ctx.synthetic else _training(ctx)
    if len(source.sizes) != len(target.sizes):
        raise CorpusError(
            f"{source.name} has {len(source.sizes)} sentences and {target.name} {len(target.sizes)}; "
            "expected the translation of each sentence"
        )
    if ctx.config.shuffle_labels:
        order = np.random.default_rng((ctx.seed, 1)).permutation(len(target.sizes))
        target = target.chosen(np.roll(order, 1)[np.argsort(order)])  # no sentence keeps its translation
    return TrainBatches(ctx, source, target)


def create_eval_data(ctx: Context) -> EvalBatches | list[EvalBatch]:
    """Return this rank's share of the evaluation; synthetic data have none."""
    if ctx.synthetic:
        return []
    source, references, words = _evaluation(ctx)
    if len(source.sizes) != len(references):
        raise CorpusError(
            f"{ctx.config.eval_references} has {len(references)} lines; expected {len(source.sizes)}, the sentences of "
            f"{source.name}"
        )
    return EvalBatches(ctx, source, references, words)


def _training(ctx: Context) -> tuple[Sentences, Sentences]:
    if ctx.scale == "small":
        english, german = zip(
            *sentences.translations(ctx.config.train_sentences, ctx.seed, _held_out(ctx)), strict=True
        )
        words = WholeWords(sentences.words())
        return Sentences.of(words.encode(english)), Sentences.of(words.encode(german))
    source = _path(ctx, ctx.config.train_data)
    return _read(ctx, source), _read(ctx, _of_target(source, ctx.config.languages))


def _evaluation(ctx: Context) -> tuple[Sentences, list[str], Words]:
    config = ctx.config
    if ctx.scale == "small":
        english, german = zip(*sentences.translations(config.eval_sentences, EVAL_SEED), strict=True)
        words = WholeWords(sentences.words())
        return Sentences.of(words.encode(english)), list(german), words
    source = _path(ctx, config.eval_data)
    target_language = config.languages[1]
    binarised = _is_binarised(source)
    vocabulary: Words = (
        BytePairs(_path(ctx, f"dict.{target_language}.txt"), config.vocab_size, target_language)
        if binarised
        else Pieces(_path(ctx, config.text_model), config.vocab_size)
    )
    return _read(ctx, source), corpus.read_lines(_path(ctx, config.eval_references)), vocabulary


def _held_out(ctx: Context) -> frozenset[str]:
    return frozenset(english for english, _ in sentences.translations(ctx.config.eval_sentences, EVAL_SEED))


def _path(ctx: Context, name: str) -> Path:
    if ctx.data_dir is None:
        raise CorpusError(
            "the Transformer's reference scale needs data; pass --data-dir, or --synthetic to measure throughput only"
        )
    return ctx.data_dir / name


def _is_binarised(path: Path) -> bool:
    return path.suffix == ".bin"


def _of_target(source: Path, languages: Sequence[str]) -> Path:
    """Return the file of the translations: its name ends with the target's language, before ``.bin`` if it has one."""
    binarised = ".bin" if _is_binarised(source) else ""
    ending = f".{languages[0]}{binarised}"
    if not source.name.endswith(ending):
        raise CorpusError(f"{source}: expected a name that ends with {ending!r}, by languages = {list(languages)}")
    return source.with_name(f"{source.name.removesuffix(ending)}.{languages[1]}{binarised}")


def _read(ctx: Context, path: Path) -> Sentences:
    if _is_binarised(path):
        return corpus.read_binarised(path)
    model = _path(ctx, ctx.config.text_model)
    return corpus.read_text(path, Pieces(model, ctx.config.vocab_size), model)


def _synthetic(ctx: Context) -> tuple[Sentences, Sentences]:
    """Return random tokens without padding, about as many sentences of each bucket's length as in WMT."""
    config, rng = ctx.config, np.random.default_rng(ctx.seed)
    lengths = np.array(config.bucket_lengths)
    count = SYNTHETIC_BATCHES * ctx.data_ranks * config.train_batch_size * lengths[-1] // lengths[0]
    typical = np.exp(rng.normal(np.log(28), 0.6, count)).clip(1, lengths[-1])
    sizes = lengths[bucket_of(typical, config.bucket_lengths)]

    def draw() -> Sentences:
        tokens = rng.integers(FIRST, config.vocab_size, sizes.sum(), dtype=np.uint16)
        starts = np.cumsum(sizes) - sizes
        tokens[starts + sizes - 1] = EOS
        return Sentences("synthetic", tokens, starts, sizes)

    return draw(), draw()


def calculate_loss(ctx: Context, model: nn.Module, batch: Batch) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the loss such that the mean over ranks and micro-steps weighs all tokens of the step alike."""
    total: Tensor = model(batch.source, batch.target)
    return total / batch.tokens_of_step


def evaluate_batch(ctx: Context, model: nn.Module, batch: EvalBatch) -> Tensor:
    """Translate the sentences; return the sums for BLEU and the number of sentences."""
    config = ctx.config
    found = translate(
        cast(Transformer, model), batch.source, beam=config.beam, length_penalty=config.length_penalty,
        max_length=config.max_output_length,
    )  # fmt: skip
    return torch.tensor([*bleu.sums(batch.texts(found), batch.references), len(found)], device=ctx.device)


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    *added, count = sums
    return {"bleu": bleu.score(added), "sentences": count}


def count_samples(ctx: Context, batch: Batch | EvalBatch) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of the target's tokens, with EOS and without padding, as FlagPerf counts."""
    return batch.tokens
