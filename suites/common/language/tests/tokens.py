"""Checks of the batches of tokens: the bundled text, the control without order, and random tokens."""

from __future__ import annotations

import itertools

import numpy as np
from checking import context, raises
from common.language import tokens
from common.language.wikipedia import FILE, read_text
from common.shares import Draw

LENGTH = 32
SETTINGS = {
    "vocab_size": 256, "max_seq_length": LENGTH, "train_batch_size": 8, "eval_batch_size": 5, "eval_sequences": 12,
    "train_data": None, "eval_data": None,
}  # fmt: skip
TRAIN, EVALUATION = (text.encode() for text in read_text(FILE))


def all_of(pair: tuple[tokens.Source, tokens.Share]) -> list[tokens.Tokens]:
    source, share = pair
    return [source[draw] for draw in share]


def check_each_target_is_the_next_byte_and_every_byte_is_predicted_once() -> None:
    source, _ = tokens.train(context(**SETTINGS))
    batch = source[Draw(0, np.arange(len(source)))]
    assert batch.inputs.dtype == batch.targets.dtype == np.int64
    assert batch.inputs.shape == batch.targets.shape == ((len(TRAIN) - 1) // LENGTH, LENGTH)
    assert batch.inputs.tobytes() == np.frombuffer(TRAIN, np.uint8)[: batch.inputs.size].astype(np.int64).tobytes()
    assert (
        batch.targets.tobytes() == np.frombuffer(TRAIN, np.uint8)[1 : 1 + batch.inputs.size].astype(np.int64).tobytes()
    )


def check_the_evaluation_is_spread_over_other_text_and_shared_exactly() -> None:
    whole = np.concatenate([batch.inputs for batch in all_of(tokens.evaluation(context(**SETTINGS)))])
    ranks = [all_of(tokens.evaluation(context(rank=rank, world_size=2, **SETTINGS))) for rank in range(2)]
    assert sorted(row.tobytes() for part in ranks for batch in part for row in batch.inputs) == sorted(
        row.tobytes() for row in whole
    )
    places = [EVALUATION.index(row.astype(np.uint8).tobytes()) for row in whole]
    assert len(places) == 12
    assert places[0] == 0
    assert places[-1] > len(EVALUATION) * 0.99


def check_the_control_keeps_the_frequencies_and_no_order() -> None:
    plain, _ = tokens.train(context(**SETTINGS))
    control, _ = tokens.train(context(**SETTINGS, shuffle_labels=True))
    draws = [Draw(0, np.array([7, 3])), Draw(0, np.array([3])), Draw(1, np.array([3]))]
    first, alone, later = (control[draw].inputs for draw in draws)
    assert (first[1] == alone[0]).all(), "the order of a row depends on its batch"
    assert (alone != later).any()
    assert (first != plain[draws[0]].inputs).any()
    rows = [np.column_stack([batch.inputs, batch.targets[:, -1:]]) for batch in (plain[draws[0]], control[draws[0]])]
    assert (np.sort(rows[0]) == np.sort(rows[1])).all()


def check_random_tokens_have_the_shape_of_a_batch_and_differ_between_ranks() -> None:
    settings = {**SETTINGS, "vocab_size": 1000}
    ranks = [tokens.train(context(rank=rank, world_size=2, synthetic=True, **settings)) for rank in range(2)]
    assert [len(share) for _, share in ranks] == [tokens.SYNTHETIC_STEPS] * 2
    (first, second) = (source[next(iter(share))] for source, share in ranks)
    assert first.inputs.shape == (8, LENGTH)
    assert (first.inputs[:, 1:] == first.targets[:, :-1]).all()
    assert (first.inputs != second.inputs).any()
    assert 990 < first.inputs.max() < 1000
    assert [len(batch.inputs) for batch in all_of(tokens.evaluation(context(synthetic=True, **settings)))] == [5]


def check_ranks_of_a_tensor_group_read_the_same_sequences() -> None:
    def of(rank: int, synthetic: bool) -> list[bytes]:
        ctx = context(rank=rank, world_size=4, synthetic=synthetic, parallel={"shard": 2, "tensor": 2}, **SETTINGS)
        pairs = tokens.train(ctx), tokens.evaluation(ctx)
        return [source[draw].inputs.tobytes() for source, share in pairs for draw in itertools.islice(share, 3)]

    for synthetic in (False, True):
        first, second, third, fourth = (of(rank, synthetic) for rank in range(4))
        assert first == second
        assert third == fourth
        assert not set(first) & set(third)


def check_ranks_that_divide_experts_have_equally_many_batches_of_the_evaluation() -> None:
    def batches(parallel: object, **settings: int) -> list[int]:
        contexts = [
            context(rank=rank, world_size=2, parallel=parallel, **{**SETTINGS, **settings}) for rank in range(2)
        ]
        return [len(tokens.evaluation(ctx)[1]) for ctx in contexts]

    experts = {"expert": 2}
    assert batches(experts) == [2, 2]
    assert batches(experts, eval_sequences=11, eval_batch_size=4) == [2, 2]
    raises(ValueError, lambda: batches(experts, eval_sequences=11), "1 or 2 batches", "another eval_batch_size")
    assert batches("ddp", eval_sequences=11) == [2, 1], "the control: these ranks do not wait for each other"


def check_another_vocabulary_is_an_error() -> None:
    raises(ValueError, lambda: tokens.train(context(**{**SETTINGS, "vocab_size": 128})), "vocab_size = 128", "256")
