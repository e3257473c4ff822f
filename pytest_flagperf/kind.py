"""The kinds of suites: what each does its own way, found by ``kind = NAME`` of suite.toml and of stored runs.

The kinds of pytest-flagperf are in ``kinds/``, one folder each, and are found by the same hook as those of packages.
What must do the same for every kind asks ``kind_of``; only what serves one kind imports its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from .problems import Problems

if TYPE_CHECKING:
    from flagperf_driver.node.logs.points import MeasuredPoint
    from flagperf_driver.node.logs.ranklog import RankLog
    from flagperf_driver.node.logs.samples import Samples
    from pytest_flagperf.case import Shape
    from pytest_flagperf.catalog import Chip
    from pytest_flagperf.catalog.suite import Suite, SuiteTable
    from pytest_flagperf.config import Resolved
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.report.charts import Chart
    from pytest_flagperf.results.comparing.stored_runs import StoredRuns
    from pytest_flagperf.results.measured.metrics import MetricValue
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.tables.published import Published
    from pytest_flagperf.results.tables.store import StoredRun
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.results.verdicts.case_result import CaseResult
    from pytest_flagperf.selection import Selected
    from pytest_flagperf.stored.plan import CaseFacts, StoredPlan

_OWN = "pytest_flagperf.kinds"


@dataclass(frozen=True)
class Criterion:
    """What one test of each case judges; the test ``test_NAME``, its marker and its stored verdicts follow from it."""

    name: str
    passes: str
    """When the test passes, in a few words."""
    judge: Callable[[Sequence[Outcome]], Iterable[Verdict]] | str = ""
    """Returns the verdicts on rounds, by their outcomes alone, so that ``flagperf verify`` can judge again.

    A text is ``module:function``, which is imported only then; without any the gate alone judges.
    """
    rounds: str = "trainings"
    """The fixture of the rounds: ``trainings`` has all of a case, ``training`` each by itself (docs/using.md)."""
    gate: Literal["", "valid", "figures", "speedup"] = ""
    """What else must pass: the method of ``running.gates.Gates``."""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    """The names of the verdicts, each with when it passes; without them there is one verdict, of the same name."""
    kind: str = ""
    """The kind of its verdicts in stored runs, if that is not its name."""
    subject: str = ""
    """What a verdict that could not judge is counted as, such as ``speed-up``; its kind if empty."""
    advice: str = ""
    """What to do if it fails; if empty, what to do after a distorted measurement."""

    @property
    def meanings(self) -> Mapping[str, str]:
        """The names of all its verdicts, each with when it passes."""
        return self.verdicts or {self.name: self.passes}

    def verdicts_on(self, rounds: Sequence[Outcome]) -> list[Verdict]:
        """Judge rounds by their outcomes alone."""
        if not self.judge:
            return []
        judge = resolve_name(self.judge) if isinstance(self.judge, str) else self.judge
        return [verdict.of_kind(self.kind or self.name) for verdict in judge(rounds)]


class CaseWords(NamedTuple):
    """What --plan says of a case."""

    measures: str
    """In a table with a line for each case."""
    labels: Sequence[str]
    without_data: str = "none"
    """A word for the data of a case without a data directory: none, missing or included."""
    facts: Mapping[str, str] = {}
    """Further lines by their titles."""


@dataclass(frozen=True)
class DurationEstimate:
    """The estimated seconds of a round, and the source of the estimate; ``at_most``: a round may end earlier."""

    seconds: float
    source: str
    at_most: bool = False


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
    framework: ClassVar[str] = ""
    """The framework whose devices and environment its suites use, if their folders name something else."""
    generates: ClassVar[bool] = False
    """Whether --synthetic has an effect on cases that reach no target; their config has ``throughput_only``."""
    converges: ClassVar[bool] = False
    """Whether a case is meant to reach a target, unless --synthetic or --throughput-only measures throughput only."""
    needs_config: ClassVar[bool] = False
    """Whether cases at the reference scale need data and a config of the vendor."""
    judged: ClassVar[tuple[str, ...]] = ()
    """The figures that are judged against earlier rounds; if empty, all that a suite declares."""
    judged_at_points: ClassVar[tuple[str, ...]] = ()
    """The figures of which each point has a baseline of its own, such as "device_rate at 4 at once"."""
    main: ClassVar[str] = ""
    """The one of these figures that is shown where only one is."""
    criteria: ClassVar[tuple[Criterion, ...]] = ()
    """What the tests of a case judge, in this order."""
    markers: ClassVar[Mapping[str, str]] = {}
    """The markers of all tests of its suites, each with its meaning."""
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
        chip: Chip,  # noqa: ARG002
        training: Suite | None = None,  # noqa: ARG002
    ) -> tuple[Resolved, list[str]]:
        """Return the config with what follows from shape and chip, and its problems; ``training`` is its case_key's."""
        return resolved, []

    # -- a plan ------------------------------------------------------------------------------------------------

    def describe(self, plan: Plan) -> CaseWords:
        """Return what --plan says of a case, beside what it says of all."""
        raise NotImplementedError

    def source(self, plan: Plan, chosen: Sequence[Selected]) -> Selected | None:  # noqa: ARG002
        """Return the training of the same run whose weights a case with a ``case_key`` reads, if it reads any."""
        return None

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

    def criterion(self, test: str) -> Criterion | None:
        """Return the criterion of a test, such as ``test_converges[...]``; None of another test."""
        name = test.partition("[")[0].removeprefix("test_")
        return next((one for one in self.criteria if one.name == name), None)

    def criterion_of(self, verdict: str) -> Criterion | None:
        """Return the criterion of a verdict by its name, such as ``possible copy``; None of another verdict."""
        name = verdict.partition(" ")[0]
        return next((one for one in self.criteria if name in one.meanings), None)

    def derived(
        self,
        points: tuple[MeasuredPoint, ...],
        plan: StoredPlan,  # noqa: ARG002
        folder: Path,  # noqa: ARG002
        samples: Mapping[str, Samples],  # noqa: ARG002
    ) -> tuple[MeasuredPoint, ...]:
        """Return the points of all ranks, with figures from the files in the first rank's folder and from samples."""
        return points

    def measure(self, plan: StoredPlan, logs: Sequence[RankLog], starts: int) -> Iterable[MetricValue]:
        """Return the metrics of a round, by what its ranks logged, without those of its points.

        With several ``starts`` the times of the first log's curve are since TRAIN_START of the first one.
        """
        raise NotImplementedError

    def slow_devices(self, outcome: Outcome, accepted: Mapping[str, float]) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the slow devices of a measurement before the run (--preflight): the host of each, and a sentence."""
        return []

    def metric(self, outcomes: Sequence[Outcome], *, named: bool, with_target: bool) -> str:
        """Return the result of a case in a few words, such as ``top1 0.93 (>= 0.9)``; empty without one."""
        raise NotImplementedError

    def remarks(self, old: Sequence[Outcome], new: Sequence[Outcome]) -> list[str]:  # noqa: ARG002
        """Return sentences on a case in two runs, for a comparison, beside its figures."""
        return []

    def lines(self, cases: Sequence[CaseResult], width: int) -> list[str]:
        """Return the table of cases at the end of a run."""
        raise NotImplementedError

    def charts(self, outcomes: Sequence[Outcome], points: int) -> Iterator[Chart | None]:
        """Yield the charts of a case's rounds for the page and for a comparison, the most important one first."""
        raise NotImplementedError

    def markdown(self, entries: Sequence[tuple[StoredRun, CaseResult]]) -> tuple[list[list[str]], str]:
        """Return the rows of a table with a line for each case, the head first, and a sentence about its units."""
        raise NotImplementedError


def kind_of(one: Suite | Plan | CaseFacts | StoredPlan | Outcome | CaseResult) -> Kind:
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


def criteria() -> dict[str, Criterion]:
    """Return the criteria of all kinds by name; a kind that is derived from another one has the same again."""
    return {one.name: one for kind in kinds().values() for one in kind.criteria}


def markers() -> dict[str, str]:
    """Return the markers of the tests of all kinds, each with its meaning."""
    of_kinds = {name: meaning for kind in kinds().values() for name, meaning in kind.markers.items()}
    return {**{name: one.passes for name, one in criteria().items()}, **of_kinds}


@cache
def _own() -> Mapping[str, Kind]:
    return {kind.name: kind for kind in import_module(_OWN).flagperf_kinds()}
