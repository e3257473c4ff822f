"""The tests of a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from ..benchmark import Benchmark, Judge

if TYPE_CHECKING:
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.running.gates import Gates


@pytest.mark.measurement
class MeasurementBenchmark(Benchmark):
    """Base class of the tests of a suite that measures the machine, ``suites/<name>/test_<name>.py``."""

    kind = "measurement"

    def test_measured(self, measurements: Sequence[Outcome], judge: Judge, gates: Gates) -> None:
        """The figures of all rounds are complete, possible, repeatable, and as good as the accepted baseline."""
        from . import verdicts  # not loaded while tests are collected

        judge([*verdicts.measured(measurements), *gates.figures(measurements)])

    def test_reaches(self, promised: Sequence[Outcome], judge: Judge) -> None:
        """The chip reaches the shares of its peaks that the vendor promises; not collected without a promise."""
        from . import verdicts

        judge(verdicts.reaches(promised))

    def test_uniform(self, siblings: Sequence[Outcome], judge: Judge) -> None:
        """No device and no host is slower than its like; not collected for one process."""
        from . import verdicts

        judge(verdicts.uniform(siblings))
