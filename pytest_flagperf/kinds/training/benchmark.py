"""The tests of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from ..benchmark import Benchmark, Judge

if TYPE_CHECKING:
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.running.gates import Gates
    from pytest_flagperf.running.scaling import Scaling


class TrainingBenchmark(Benchmark):
    """Base class of a suite's tests in ``suites/<model>/test_<model>.py``; add own checks to the subclass."""

    kind = "training"

    @pytest.mark.converges
    def test_converges(self, training: Outcome, judge: Judge, gates: Gates) -> None:
        """Every round reaches the suite's target."""
        from . import verdicts  # not loaded while tests are collected

        judge([*verdicts.converges(training), *gates.valid(training)])

    @pytest.mark.throughput
    def test_throughput(self, trainings: Sequence[Outcome], judge: Judge, gates: Gates) -> None:
        """The throughputs of all rounds are valid and as good as the accepted baseline."""
        from . import verdicts

        judge([*verdicts.throughput(trainings), *gates.figures(trainings)])

    @pytest.mark.speedup
    def test_speedup(self, scaling: Scaling, judge: Judge, gates: Gates) -> None:
        """Many cards are faster than one card by at least the required efficiency."""
        judge(gates.speedup(scaling))
