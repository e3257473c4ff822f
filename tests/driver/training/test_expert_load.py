"""How evenly the tokens of a mixture are divided among its experts."""

import pytest

from flagperf_driver.training.expert_load import entropy, largest


@pytest.mark.parametrize(
    ("load", "most", "even"),
    [
        ([[5, 5, 5, 5]], 1.0, 1.0),
        ([[20, 0, 0, 0]], 4.0, 0.0),
        ([[10, 10, 0, 0]], 2.0, 0.5),
        ([[5, 5, 5, 5], [10, 10, 0, 0], [6, 4, 5, 5]], 2.0, 0.5),
    ],
)
def test_the_most_uneven_layer_is_reported(load: list[list[float]], most: float, even: float) -> None:
    assert (largest(load), entropy(load)) == pytest.approx((most, even))
