"""The tests of every case, which suites import from here; they follow from the criteria of the kind of suites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import pytest

from .kind import Criterion, kind_named

if TYPE_CHECKING:
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.running.gates import Gates

Judge = Callable[["Iterable[Verdict]"], None]


class Benchmark:
    """Base class of the tests of suites of a kind, ``suites/<name>/test_<name>.py``; add own checks to the subclass."""

    kind: ClassVar[str]
    """The kind of the suites, as in suite.toml; the class that sets it gets a test for each criterion."""

    def __init_subclass__(cls) -> None:
        """Add the tests."""
        criteria = kind_named(cls.kind).criteria if "kind" in cls.__dict__ else ()
        for criterion in criteria:
            name = f"test_{criterion.name}"
            if name not in cls.__dict__:
                setattr(cls, name, _test_of(criterion))

    def test_plugins(self, plugin_verdicts: Sequence[Verdict], judge: Judge) -> None:
        """All rounds pass the verdicts of the installed plugins; not collected if no plugin has verdicts."""
        judge(plugin_verdicts)


def _test_of(criterion: Criterion) -> Callable[..., None]:
    @pytest.mark.usefixtures(criterion.rounds)
    def test(_: Benchmark, request: pytest.FixtureRequest, judge: Judge, gates: Gates) -> None:
        judge(gates.verdicts(criterion, request.getfixturevalue(criterion.rounds)))

    test.__name__, test.__doc__ = f"test_{criterion.name}", f"{criterion.passes[0].upper()}{criterion.passes[1:]}."
    return test


class TrainingBenchmark(Benchmark):
    """The tests of a model's training."""

    kind = "training"


class MeasurementBenchmark(Benchmark):
    """The tests of a suite that measures the machine."""

    kind = "measurement"
