"""A model in several frameworks: from the same weights and batches the first losses are equal, and so are the sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.catalog import Catalog, Suite
from tests.suites import programs

pytestmark = pytest.mark.slow
CATALOG = Catalog.scan([Path(__file__).parents[2]])
OTHERS = [suite for suite in CATALOG.trainings.values() if suite.framework != "pytorch"]
WITHIN = 1e-3
"""The largest relative difference of a loss: sums in another order, magnified by five optimizer steps."""
SLOWER = 0.1
"""The learning rate beside that of the config. Adam's first steps turn rounding errors into whole steps of weights."""


@pytest.mark.parametrize("suite", OTHERS, ids=lambda suite: suite.folder)
def test_the_first_losses_are_those_of_pytorch(
    suite: Suite, suite_python: Callable[[Path], str], tmp_path: Path
) -> None:
    of_pytorch = CATALOG.suite(suite.model, "pytorch")
    weights = str(tmp_path / "weights.npz")

    def five_steps(of: Suite, **settings: Any) -> dict[str, Any]:
        found: dict[str, Any] = programs.run(suite_python, {of.path: [weights, settings]}, "five_steps")[of.path]
        return found

    rate = SLOWER * _config(suite)["learning_rate"]
    expected = five_steps(of_pytorch, **{**_sizes(suite, of_pytorch), "learning_rate": rate})
    got = five_steps(suite, learning_rate=rate)
    assert got["parameters"] == expected["parameters"]
    assert got["losses"] == pytest.approx(expected["losses"], rel=WITHIN)
    other = five_steps(of_pytorch, **{**_sizes(suite, of_pytorch), "learning_rate": 2 * rate})["losses"]
    assert got["losses"] != pytest.approx(other, rel=WITHIN), "the control: another learning rate"


def _config(suite: Suite) -> dict[str, Any]:
    from flagperf_driver import options

    return options.values(suite.framework, *(suite.path / "config" / name for name in ("_base.py", "_small.py")))


def _sizes(suite: Suite, of_pytorch: Suite) -> dict[str, Any]:
    """Return the values of the suite's config that differ from PyTorch's."""
    own, theirs = _config(suite), _config(of_pytorch)
    return {key: value for key, value in own.items() if key in theirs and theirs[key] != value}
