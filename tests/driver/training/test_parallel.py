"""The table of axes that ``parallel`` means, which samples a rank reads, and how evenly experts are used."""

from typing import Any

import pytest

from flagperf_driver.driver import Config
from flagperf_driver.training.expert_load import entropy, largest
from flagperf_driver.training.parallel import Parallel, ParallelError
from flagperf_driver.training.steps import Context


@pytest.mark.parametrize(
    ("value", "ranks", "sizes", "name"),
    [
        ("fsdp", 1, (1, 1, 1, 1), "ddp"),
        ("ddp", 8, (8, 1, 1, 1), "ddp"),
        ("fsdp", 8, (1, 8, 1, 1), "fsdp"),
        ({"shard": 4}, 8, (2, 4, 1, 1), "replicate=2,shard=4"),
        ({"shard": -1, "tensor": 2}, 8, (1, 4, 1, 2), "shard=4,tensor=2"),
        ({"replicate": 2, "shard": 2, "tensor": 2}, 8, (2, 2, 1, 2), "replicate=2,shard=2,tensor=2"),
        ({"expert": 4}, 8, (2, 1, 4, 1), "replicate=2,expert=4"),
        ({"shard": -1, "expert": 2}, 8, (1, 4, 2, 1), "shard=4,expert=2"),
    ],
)
def test_a_value_gives_each_axis_its_ranks(value: Any, ranks: int, sizes: tuple[int, ...], name: str) -> None:
    parallel = Parallel.of(value, ranks)
    assert (parallel.replicate, parallel.shard, parallel.expert, parallel.tensor) == sizes
    assert (parallel.name, parallel.ranks) == (name, ranks)


@pytest.mark.parametrize(
    ("value", "ranks", "problem"),
    [
        ("foo", 2, "expected ddp, fsdp or a table, as in shard=4,tensor=2; got 'foo'"),
        ({"shard": 3}, 8, "shard 3 does not divide 8, the number of ranks"),
        ({"shard": 4, "tensor": 2}, 1, "shard 4 x tensor 2 = 8 does not divide 1, the number of ranks"),
        ({"replicate": 2, "shard": 2}, 8, "replicate 2 x shard 2 = 4; expected 8, the number of ranks"),
        ({"shard": 0}, 2, "shard is 0; expected a whole number from 1"),
        ({"shard": True}, 2, "shard is True; expected a whole number from 1"),
        ({"shard": 2.0}, 2, "shard is 2.0; expected a whole number from 1"),
        ({"shart": 2}, 2, "unknown axis 'shart'; choose from replicate, shard, expert, tensor"),
        ({"shard": -1, "tensor": -1}, 2, "shard and tensor are -1; expected at most one"),
    ],
)
def test_a_value_that_does_not_fit_the_ranks_is_an_error(value: Any, ranks: int, problem: str) -> None:
    with pytest.raises(ParallelError) as caught:
        Parallel.of(value, ranks)
    assert problem in str(caught.value)


def test_neighbouring_ranks_of_a_tensor_group_read_the_same_samples() -> None:
    config = Config({"parallel": {"shard": 2, "tensor": 2}})
    ranks = [Context(config, rank=rank, world_size=8) for rank in range(8)]
    assert [ctx.data_rank for ctx in ranks] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {ctx.data_ranks for ctx in ranks} == {4}
    assert [ctx.parallel.is_counted(ctx.rank) for ctx in ranks] == [True, False] * 4
    other = Context(Config({}), rank=3, world_size=4)
    assert (other.data_rank, other.data_ranks) == (3, 4), "a framework without this key"


def test_ranks_of_an_expert_group_read_different_samples_and_share_all_other_weights() -> None:
    parallel = Parallel.of({"shard": 2, "expert": 2}, 8)
    assert (parallel.data_ranks, parallel.is_sharded) == (8, True)
    assert [parallel.data_rank(rank) for rank in range(8)] == list(range(8))
    assert parallel.without_experts == Parallel(replicate=2, shard=4)
    assert Parallel.of({"expert": 2}, 2).is_sharded


@pytest.mark.parametrize(
    ("load", "most", "even"),
    [
        ([[5, 5, 5, 5]], 1.0, 1.0),
        ([[20, 0, 0, 0]], 4.0, 0.0),
        ([[5, 5, 5, 5], [10, 10, 0, 0], [6, 4, 5, 5]], 2.0, 0.5),
    ],
)
def test_the_most_uneven_layer_is_reported(load: list[list[float]], most: float, even: float) -> None:
    assert (largest(load), entropy(load)) == pytest.approx((most, even))
