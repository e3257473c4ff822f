"""The tests of every case: TrainingBenchmark for suites that train, MeasurementBenchmark for suites that measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import pytest

if TYPE_CHECKING:
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.running.gates import Gates
    from pytest_flagperf.running.scaling import Scaling

Judge = Callable[["Iterable[Verdict]"], None]


class Benchmark:
    """Base class of the tests of all kinds of suites."""

    kind: ClassVar[str]
    """The kind of the suites, as in suite.toml."""

    def test_plugins(self, plugin_verdicts: Sequence[Verdict], judge: Judge) -> None:
        """All rounds pass the verdicts of the installed plugins; not collected if no plugin has verdicts."""
        judge(plugin_verdicts)


class TrainingBenchmark(Benchmark):
    """Base class of a suite's tests in ``suites/<model>/test_<model>.py``; add own checks to the subclass."""

    kind = "training"

    @pytest.mark.converges
    def test_converges(self, training: Outcome, judge: Judge, gates: Gates) -> None:
        """Every round reaches the suite's target."""
        from pytest_flagperf.results import verdicts  # not loaded while tests are collected

        judge([*verdicts.converges(training), *gates.valid(training)])

    @pytest.mark.throughput
    def test_throughput(self, trainings: Sequence[Outcome], judge: Judge, gates: Gates) -> None:
        """The throughputs of all rounds are valid and as good as the accepted baseline."""
        from pytest_flagperf.results import verdicts

        judge([*verdicts.throughput(trainings), *gates.figures(trainings)])

    @pytest.mark.speedup
    def test_speedup(self, scaling: Scaling, judge: Judge, gates: Gates) -> None:
        """Many cards are faster than one card by at least the required efficiency."""
        judge(gates.speedup(scaling))


@pytest.mark.measurement
class MeasurementBenchmark(Benchmark):
    """Base class of the tests of a suite that measures the machine, ``suites/<name>/test_<name>.py``."""

    kind = "measurement"

    def test_measured(self, measurements: Sequence[Outcome], judge: Judge, gates: Gates) -> None:
        """The figures of all rounds are complete, possible, repeatable, and as good as the accepted baseline."""
        from pytest_flagperf.results import verdicts  # not loaded while tests are collected

        judge([*verdicts.measured(measurements), *gates.figures(measurements)])

    def test_reaches(self, promised: Sequence[Outcome], judge: Judge) -> None:
        """The chip reaches the shares of its peaks that the vendor promises; not collected without a promise."""
        from pytest_flagperf.results import verdicts

        judge(verdicts.reaches(promised))

    def test_uniform(self, siblings: Sequence[Outcome], judge: Judge) -> None:
        """No device and no host is slower than its like; not collected for one process."""
        from pytest_flagperf.results import verdicts

        judge(verdicts.uniform(siblings))
