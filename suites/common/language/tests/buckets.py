"""Checks of the token buckets: batches of one shape on all ranks, every sample once, exact weights."""

from __future__ import annotations

import numpy as np
from checking import raises
from common.language.buckets import TokenBuckets, TokenDraw, bucket_of
from common.shares import TooFewSamples

RNG = np.random.default_rng(3)
SIZES = RNG.integers(1, 40, 3000)
TOKENS = RNG.integers(1, 30, 3000)
LENGTHS = (8, 16, 32)


def share(
    batch_size: int = 6, rank: int = 0, world_size: int = 1, seed: int = 5, accumulation: int = 1
) -> TokenBuckets:
    return TokenBuckets(SIZES, TOKENS, LENGTHS, batch_size, rank, world_size, seed, accumulation=accumulation)


def plain(draws: list[TokenDraw]) -> list[list[int]]:
    return [draw.indices.tolist() for draw in draws]


def check_batches_have_few_shapes_and_fit_their_length() -> None:
    shapes = set()
    for draw in share():
        assert SIZES[draw.indices].max() <= draw.length
        assert bucket_of(SIZES[draw.indices], LENGTHS).std() == 0, "a batch mixes buckets"
        shapes.add((len(draw.indices), draw.length))
    assert shapes == {(24, 8), (12, 16), (6, 32)}


def check_samples_are_drawn_once_and_long_samples_never() -> None:
    ranks = [list(share(rank=rank, world_size=3)) for rank in range(3)]
    assert len({len(draws) for draws in ranks}) == 1
    for together in zip(*ranks, strict=True):
        assert len({(len(draw.indices), draw.length) for draw in together}) == 1, "the ranks' shapes differ"
    drawn = [index for draws in ranks for draw in draws for index in draw.indices.tolist()]
    assert len(drawn) == len(set(drawn)), "a sample was drawn twice"
    assert SIZES[drawn].max() <= 32
    fitting = int((SIZES <= 32).sum())
    assert fitting - (24 + 12 + 6) * 3 < len(drawn) <= fitting


def check_every_epoch_has_its_own_order_by_the_seed() -> None:
    def of(seed: int, epoch: int) -> list[list[int]]:
        buckets = share(seed=seed)
        buckets.set_epoch(epoch)
        return plain(list(buckets))

    assert of(1, 0) == of(1, 0)
    assert of(1, 0) != of(1, 1)
    assert of(1, 0) != of(2, 0)


def check_the_global_order_and_the_weights_do_not_depend_on_the_ranks() -> None:
    one = list(share(12))
    two = [list(share(6, rank, 2)) for rank in range(2)]
    assert plain(one) == [left + right for left, right in zip(*map(plain, two), strict=True)]
    for whole, left, right in zip(one, *two, strict=True):
        assert left.tokens_of_step == right.tokens_of_step == whole.tokens_of_step / 2
        assert whole.tokens_of_step == TOKENS[whole.indices].sum()
    assert plain(one) != plain(list(share(6))), "the control: another global batch is another order"


def check_weights_count_all_micro_steps() -> None:
    ranks = [list(share(rank=rank, world_size=2, accumulation=3)) for rank in range(2)]
    assert len(ranks[0]) % 3 == 0
    for first in range(0, len(ranks[0]), 3):
        step = [draw for draws in ranks for draw in draws[first : first + 3]]
        assert {draw.tokens_of_step for draw in step} == {sum(TOKENS[draw.indices].sum() for draw in step) / 6}


def check_a_resumed_epoch_continues_after_the_skipped_batches() -> None:
    buckets = share(accumulation=2)
    whole = list(buckets)
    assert len(whole) == len(buckets)
    for skipped in (0, 1, 4, len(whole)):
        buckets.skip(skipped)
        rest = list(buckets)
        assert plain(rest) == plain(whole[skipped:])
        assert [draw.tokens_of_step for draw in rest] == [draw.tokens_of_step for draw in whole[skipped:]]
    assert plain(list(buckets)) == plain(whole), "the next epoch must not skip batches"


def check_too_few_samples_are_an_error() -> None:
    raises(TooFewSamples, lambda: share(2000), "3000 samples", "train_batch_size")
