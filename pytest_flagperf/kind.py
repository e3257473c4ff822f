"""The kinds of suites: what each does its own way, found by ``kind = NAME`` of suite.toml and of stored runs.

The kinds of pytest-flagperf are in ``kinds/``, one folder each, and are found by the same hook as those of packages.
What must do the same for every kind asks ``kind_of``; only what serves one kind imports its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from .problems import Problems

if TYPE_CHECKING:
    from pytest_flagperf.case import Shape
    from pytest_flagperf.catalog.suite import Suite, SuiteTable
    from pytest_flagperf.config import Resolved
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.report.page.charts import Chart
    from pytest_flagperf.results.comparing.stored_runs import StoredRuns
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.tables.published import Published
    from pytest_flagperf.results.tables.store import StoredRun
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.results.verdicts.case_result import CaseResult
    from pytest_flagperf.running.forecast import DurationEstimate

_OWN = "pytest_flagperf.kinds"


JudgeRounds = Callable[["Sequence[Outcome]"], "list[Verdict]"]


class CaseWords(NamedTuple):
    """What --plan says of a case."""

    measures: str
    """In a table with a line for each case."""
    labels: Sequence[str]
    without_data: str = "none"
    """A word for the data of a case without a data directory: none, missing or included."""
    facts: Mapping[str, str] = {}
    """Further lines by their titles."""


class Kind:
    """A kind of suites; derive from it, or, for suites with figures, from ``pytest_flagperf.kinds.MeasurementKind``.

    pytest-flagperf calls it while tests are collected: its methods import what only they need.
    """

    name: ClassVar[str]
    table: ClassVar[type[SuiteTable]]
    """The keys of a suite.toml of this kind."""
    program: ClassVar[str]
    """The file in the suite's folder that each rank runs."""
    driver: ClassVar[tuple[str, ...]]
    """The folders of flagperf_driver that a rank runs beside the one of its framework; fingerprints contain them."""
    converges: ClassVar[bool] = False
    """Whether a case is meant to reach a target, unless --synthetic or --throughput-only measures throughput only."""
    needs_config: ClassVar[bool] = False
    """Whether cases at the reference scale need data and a config of the vendor."""
    judged: ClassVar[tuple[str, ...]] = ()
    """The figures that are judged against earlier rounds, if suites declare none."""
    main: ClassVar[str] = ""
    """The one of these figures that is shown where only one is."""
    verdicts: ClassVar[tuple[str, ...]] = ()
    """The names of its verdicts beside those of pytest-flagperf; [[expected]] may have them."""
    guide: ClassVar[str] = ""
    """The document that describes how to add a suite of this kind."""

    def defaults(self, framework: str, driver: Path) -> list[Path]:
        """Return the files in the folder flagperf_driver with all config keys and their defaults."""
        raise NotImplementedError

    def check(
        self,
        suite: Suite,  # noqa: ARG002
        scale: str,  # noqa: ARG002
        shape: Shape,  # noqa: ARG002
        resolved: Resolved,
    ) -> tuple[Resolved, list[str]]:
        """Return the config of a case, with what follows from its shape, and the problems of its values."""
        return resolved, []

    # -- a plan ------------------------------------------------------------------------------------------------

    def describe(self, plan: Plan) -> CaseWords:
        """Return what --plan says of a case, beside what it says of all."""
        raise NotImplementedError

    def estimate(self, plan: Plan, stored_runs: StoredRuns) -> DurationEstimate | str:  # noqa: ARG002
        """Return how long a round takes, or what would have to be declared to know it."""
        return "nothing else to estimate by"

    def outlook(
        self,
        plan: Plan,  # noqa: ARG002
        stored_runs: StoredRuns,  # noqa: ARG002
        results: Iterable[Published],  # noqa: ARG002
    ) -> tuple[str, list[str]]:
        """Return whether a case converges, as far as it is known, and further lines about the time that it takes."""
        return "", []

    # -- results -----------------------------------------------------------------------------------------------

    def judges(self) -> Mapping[str, JudgeRounds]:
        """Return what each test judges of rounds by their outcomes alone.

        ``flagperf verify`` judges them again; ``flagperf accept`` does so with the first one.
        """
        raise NotImplementedError

    def metric(self, outcomes: Sequence[Outcome], *, named: bool, with_target: bool) -> str:
        """Return the result of a case in a few words, such as ``top1 0.93 (>= 0.9)``; empty without one."""
        raise NotImplementedError

    def lines(self, cases: Sequence[CaseResult], width: int) -> list[str]:
        """Return the table of cases at the end of a run."""
        raise NotImplementedError

    def charts(self, outcomes: Sequence[Outcome], points: int) -> Iterator[Chart | None]:
        """Yield the charts of a case's rounds for the page and for a comparison, the most important one first."""
        raise NotImplementedError

    def markdown(self, entries: Sequence[tuple[StoredRun, CaseResult]]) -> tuple[list[list[str]], str]:
        """Return the rows of a table with a line for each case, the head first, and a sentence about its units."""
        raise NotImplementedError


class HasKind(Protocol):
    """A suite, a plan or an outcome."""

    @property
    def kind(self) -> str: ...


def kind_of(one: HasKind) -> Kind:
    """Return the kind of a suite, a plan or an outcome."""
    return kind_named(one.kind)


def kind_named(name: str) -> Kind:
    """Return the kind of this name; Problems if neither pytest-flagperf nor an installed package has it."""
    known = _own() if name in _own() else kinds()
    if name not in known:
        has = ", ".join(known)
        raise Problems([f"kind {name!r} is unknown: install the package that has it; the kinds are {has}"])
    return known[name]


def kinds() -> dict[str, Kind]:
    """Return all kinds by name; Problems if a package has one of a taken name."""
    from .hooks.plugins import named  # commands on stored runs of our own kinds load no plugins

    further = named("flagperf_kinds", Kind, _own())
    return {**_own(), **{name: kind for name, (_, kind) in further.items()}}


@cache
def _own() -> Mapping[str, Kind]:
    return {kind.name: kind for kind in import_module(_OWN).flagperf_kinds()}
