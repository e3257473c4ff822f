"""Checks of the ranks' shares: exact, disjoint, and the same order for any number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from checking import raises
from common.shares import EvalShare, GroupedEvalShare, GroupedTrainShare, Share, TooFewSamples, TrainShare, turn


def order(share: Share) -> list[list[int]]:
    return [batch.indices.tolist() for batch in share]


def check_training_shares_are_equal_and_disjoint_and_not_padded() -> None:
    shares = [TrainShare(103, 10, rank, 3, seed=5) for rank in range(3)]
    parts = [[index for batch in order(share) for index in batch] for share in shares]
    assert [len(part) for part in parts] == [30, 30, 30]
    together = [index for part in parts for index in part]
    assert len(set(together)) == 90, "a sample was drawn twice"
    assert max(together) < 103


def check_every_epoch_has_its_own_order_by_the_seed() -> None:
    def of(seed: int, epoch: int) -> list[list[int]]:
        share = TrainShare(100, 10, 0, 1, seed)
        share.set_epoch(epoch)
        return order(share)

    assert of(1, 0) == of(1, 0)
    assert of(1, 0) != of(1, 1)
    assert of(1, 0) != of(2, 0)


def check_the_global_order_does_not_depend_on_the_ranks() -> None:
    one = order(TrainShare(100, 20, 0, 1, seed=4))
    two = [order(TrainShare(100, 10, rank, 2, seed=4)) for rank in range(2)]
    assert one == [left + right for left, right in zip(*two, strict=True)]
    parts = order(TrainShare(100, 10, 0, 1, seed=4))  # a step of two batches
    assert one == [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    groups = np.arange(100) // 50
    assert TrainShare(100, 20, 0, 1, seed=4).any_ranks
    assert not GroupedTrainShare(groups, 20, 0, 1, seed=4).any_ranks, "the groups' batches are another order"
    assert not TrainShare(100, 20, 0, 1, seed=4, repeats=3).any_ranks


def check_a_resumed_epoch_continues_after_the_skipped_batches() -> None:
    share = TrainShare(100, 10, 0, 1, seed=4)
    whole = order(share)
    share.skip(7)
    assert order(share) == whole[7:]
    assert order(share) == whole, "the next epoch must not skip batches"


def check_repeated_batches_take_turns_that_the_epoch_determines() -> None:
    share = TrainShare(80, 10, 0, 1, seed=4)
    assert [draw.number for draw in share] == [*range(8)]
    share.skip(7)
    assert [draw.number for draw in share] == [7]
    first, second = ([turn(epoch, number, 8) for number in range(16)] for epoch in (1, 2**31 - 1))
    assert sorted(first[:8]) == sorted(first[8:]) == sorted(second[:8]) == [*range(8)]
    assert first[:8] != first[8:]
    assert first != second


def check_repeated_samples_are_copies_of_fewer_samples() -> None:
    for ranks, batch in ((1, 12), (2, 6), (3, 4)):
        shares = [TrainShare(100, batch, rank, ranks, seed=4, repeats=3) for rank in range(ranks)]
        for parts in zip(*shares, strict=True):
            together = [
                (int(index), int(copy))
                for part in parts
                for index, copy in zip(part.indices, part.copies, strict=True)  # type: ignore[arg-type]
            ]
            assert len(set(together)) == 12
            assert len({index for index, _ in together}) == 4
            assert all(copies == [0, 1, 2] for copies in _by_sample(together).values())
            indices = [index for index, _ in together]
            assert all(one != next_one for one, next_one in itertools.pairwise(indices)), "copies are neighbours"
    batches = order(TrainShare(100, 12, 0, 1, seed=4, repeats=3))
    assert len(batches) == 8
    assert len({index for batch in batches for index in batch}) == 32, "an epoch must not repeat a global batch"


def _by_sample(drawn: list[tuple[int, int]]) -> dict[int, list[int]]:
    copies: dict[int, list[int]] = {}
    for index, copy in drawn:
        copies.setdefault(index, []).append(copy)
    return copies


def check_batches_that_the_repeats_do_not_divide_are_full() -> None:
    share = TrainShare(100, 10, 0, 1, seed=4, repeats=4)
    assert all(len(batch) == 10 and len(set(batch)) == 3 for batch in order(share))


def check_without_repeats_there_are_no_copies() -> None:
    assert next(iter(TrainShare(100, 10, 0, 1, seed=4))).copies is None


def check_too_few_samples_are_an_error() -> None:
    raises(TooFewSamples, lambda: TrainShare(15, 8, 0, 2, seed=1), "15 samples", "train_batch_size")
    assert len(TrainShare(16, 8, 0, 2, seed=1)) == 1


def check_evaluation_shares_are_exact() -> None:
    for samples, batch, ranks in itertools.product((1, 7, 360, 361), (1, 4, 180), (1, 2, 3, 8)):
        shares = [EvalShare(samples, batch, rank, ranks) for rank in range(ranks)]
        assert sorted(i for share in shares for part in order(share) for i in part) == list(range(samples))
        assert all(len(order(share)) == len(share) for share in shares)


def flat(parts: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


GROUPS = np.array([0, 1, 1, 2, 0, 1, 1] * 15)


def check_a_grouped_global_batch_has_one_group_and_no_sample_twice() -> None:
    for epoch in range(2):
        shares = [GroupedTrainShare(GROUPS, 4, rank, 2, seed=5) for rank in range(2)]
        for share in shares:
            share.set_epoch(epoch)
        batches = [flat(parts) for parts in zip(*map(order, shares), strict=True)]
        assert len(batches) == len(shares[0]) == 30 // 8 + 60 // 8 + 15 // 8
        assert all(len(batch) == 8 and len(set(GROUPS[batch])) == 1 for batch in batches)
        drawn = flat(batches)
        assert len(set(drawn)) == len(drawn)
        groups = [int(GROUPS[batch[0]]) for batch in batches]
        assert groups != sorted(groups), "the groups must not follow each other"
        assert len(set(groups[:3])) == 3, "an epoch begins with each group"
    plain = order(TrainShare(len(GROUPS), 8, 0, 1, seed=5))
    assert any(len(set(GROUPS[batch])) > 1 for batch in plain), "the control: a share without groups mixes them"


def check_grouped_orders_differ_by_epoch_and_not_by_ranks() -> None:
    one = GroupedTrainShare(GROUPS, 8, 0, 1, seed=4)
    two = [order(GroupedTrainShare(GROUPS, 4, rank, 2, seed=4)) for rank in range(2)]
    first = order(one)
    assert first == [left + right for left, right in zip(*two, strict=True)]
    one.set_epoch(1)
    whole = order(one)
    assert whole != first
    one.skip(3)
    assert order(one) == whole[3:]


def check_groups_without_a_full_batch_are_an_error() -> None:
    raises(TooFewSamples, lambda: GroupedTrainShare(np.arange(20), 2, 0, 1, seed=1), "20 samples", "train_batch_size")


def check_grouped_evaluation_shares_are_exact() -> None:
    for batch, ranks in itertools.product((1, 4, 50), (1, 2, 3)):
        shares = [GroupedEvalShare(GROUPS, batch, rank, ranks) for rank in range(ranks)]
        parts = [part for share in shares for part in order(share)]
        assert sorted(flat(parts)) == list(range(len(GROUPS)))
        assert all(len(set(GROUPS[part])) == 1 and len(part) <= batch for part in parts)
        assert all(len(order(share)) == len(share) for share in shares)
    assert len(GroupedEvalShare(GROUPS[:1], 4, 1, 2)) == 0
