"""The outcome of one round, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from flagperf_driver.layout import rank_log
from flagperf_driver.logged_step import Step
from flagperf_driver.node.logs.drawings import LoggedDrawings
from flagperf_driver.node.logs.points import LeftOutPoint, MeasuredPoint
from flagperf_driver.node.logs.ranklog import Evaluation, Impossible, whole
from flagperf_driver.target import Target
from pytest_flagperf import case as case_names
from pytest_flagperf.case import Case, Shape
from pytest_flagperf.kind import kind_of
from pytest_flagperf.results.figures import targets
from pytest_flagperf.results.measured import consistency, validity, vendor_code
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf.results.measured.profile import Profile
from pytest_flagperf.results.measured.replay import Replay
from pytest_flagperf.results.measured.starts import DrilledFault, Start
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.stored import files, type_check
from pytest_flagperf.stored.layout import round_folder
from pytest_flagperf.stored.plan import CaseFacts, check_kind
from pytest_flagperf.stored.round_dir import RoundFault

__all__ = ["SCHEMA", "Evaluation", "MetricValue", "Outcome", "Step", "Target"]

SCHEMA = 1
UNREADABLE = "unreadable"
AT = " at "
"""Between the name of a figure and that of its point."""


@dataclass(frozen=True)
class TrainingWork:
    """The amount of training; None if no rank reported it."""

    samples: int | None = None
    steps: int | None = None
    epochs: float | None = None
    measured_steps: int | None = None
    measured_samples: int | None = None
    warmup_steps: int | None = None
    batch_per_card: int | None = None
    data_ranks: int | None = None
    """The ranks that read a batch of their own each; None in older outcomes, whose ranks all did."""
    accumulation: int = 1
    step_flops: float | None = None
    """The model's FLOPs of one card's step, without padding."""
    samples_per_item: int = 1
    """The most samples of one item, for suites whose batches have items of several samples."""


@dataclass(frozen=True)
class Losses:
    """The losses of all logged steps of all ranks, including those that are not in the curve."""

    logged: int = 0
    bad: int = 0
    first_bad_step: int | None = None
    first_bad: float | None = None
    final: float | None = None


@dataclass(frozen=True)
class MetricQuality:
    """One metric by the logged evaluations, and the program's own final value."""

    best: float | None = None
    last: float | None = None
    program_final: float | None = None


@dataclass(frozen=True)
class Quality:
    """The suite's metrics by the logged evaluations, and the program's own result."""

    evaluations: int = 0
    bad: int = 0
    best: float | None = None
    last: float | None = None
    reached: Evaluation | None = None
    program_converged: bool | None = None
    program_final: float | None = None
    also: Mapping[str, MetricQuality] = field(default_factory=dict)
    """The further metrics that have a target."""

    def of(self, target: Target) -> dict[str, MetricQuality]:
        """Return the metrics that have a target, the suite's own first."""
        return {target.name: MetricQuality(self.best, self.last, self.program_final), **self.also}


@dataclass(frozen=True, kw_only=True)
class PlannedRound(CaseFacts):
    """What the plan says of a round before it starts."""

    case: str
    model: str
    framework: str
    hardware: str
    nnodes: int
    nproc: int
    round: int
    seed: int | None
    target: Target
    hosts: tuple[str, ...] = ()
    """The names of the hosts, in the order of their ranks."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """The limits that the config sets: max_steps, max_epochs, max_samples, and those of the figures of a step."""
    drill: tuple[str, ...] = ()
    """The faults of --drill."""
    parity_samples: int | None = None
    """The length of a parity training, which is judged by the reference's loss curve instead of the target."""


@dataclass(frozen=True, kw_only=True)
class LoggedRound:
    """What the ranks' logs say; a rank that ended early logged less."""

    stop_reason: str | None = None
    steps: tuple[Step, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    untrained: Evaluation | None = None
    drawings: tuple[LoggedDrawings, ...] = ()
    """What the model drew in the first and in the last evaluation."""
    points: tuple[MeasuredPoint, ...] = ()
    """The points of a measurement."""
    left_out: tuple[LeftOutPoint, ...] = ()
    """The points that would have taken too long."""
    bad_points: int = 0
    """The number of records of points that are not valid, of all ranks; they fail the round."""
    work: TrainingWork = TrainingWork()
    losses: Losses = Losses()
    quality: Quality = Quality()
    environment: Mapping[str, str] = field(default_factory=dict)
    impossible: tuple[Impossible, ...] = ()
    """The logged figures outside their possible range; they fail the round."""
    broken_lines: int = 0
    other_lines: int = 0
    logs: tuple[str, ...] = ()
    starts: tuple[Start, ...] = ()
    """The starts of a training that was started several times, the last one included; the curve is that of all."""
    lost_s: Mapping[str, float] = field(default_factory=dict)
    """The seconds of all starts that became no progress, by their parts."""
    struck: tuple[DrilledFault, ...] = ()
    """The faults of --drill that struck, in all starts."""
    phases: tuple[Phase, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome(PlannedRound, LoggedRound):
    """The result of one round; ``ok`` means that it finished, not that it converged."""

    state: str
    """How the round ended, by its record, as are the times; ``unknown`` without a record."""
    started_ms: int | None = None
    ended_ms: int | None = None
    failures: tuple[RoundFault, ...] = ()
    compared: int = 0
    """The number of compared pairs of figures; contradictions are among the failures."""
    metrics: tuple[MetricValue, ...] = ()
    """By the logs, the samples of hosts and devices, and the plan."""
    profile: Profile | None = None
    """Where the time of a step goes on the first rank's device; only throughput rounds have one."""
    warnings: tuple[str, ...] = ()
    """Remarks for readers of the figures; they fail nothing."""
    validity_warnings: tuple[ValidityWarning, ...] = ()
    """Conditions that distort the measurements; a round that has one fails under --strict."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """The hardware and software of the round, as reported by its hosts."""
    replay: Replay | None = None
    """What a clean process found that repeated segments of the training; None if the plan has no replay."""
    unverified_chip: str = ""
    """Why the chip is not verified: its devices did not report it. No table and no baseline has such figures."""

    @property
    def ok(self) -> bool:
        return self.state == "finished" and not self.failures

    @property
    def valid(self) -> bool:
        """Whether the round finished without a validity warning; only valid rounds decide a comparison."""
        return self.ok and not self.validity_warnings

    @property
    def busy(self) -> str:
        """The sentences of the validity warnings ``busy``; empty without such warnings."""
        return "; ".join(one.sentence for one in self.validity_warnings if one.kind == validity.BUSY)

    @property
    def ended_well(self) -> bool:
        """Whether every rank finished; the figures may still contradict each other."""
        return self.state == "finished" and all(one.kind == consistency.CONTRADICTION for one in self.failures)

    @property
    def meant_to_converge(self) -> bool:
        """Whether the round was meant to reach the target."""
        return kind_of(self).converges and not self.throughput_only and self.parity_samples is None

    @property
    def shape(self) -> Shape:
        return Shape(self.nnodes, self.nproc)

    @property
    def cards(self) -> int:
        return self.shape.cards

    @property
    def identity(self) -> tuple[int | None, int | None, int | None]:
        """The times and the seed, which are the same in every copy of the round."""
        return self.started_ms, self.ended_ms, self.seed

    @property
    def directory(self) -> Path:
        """The round's directory within its run's directory."""
        return Path(case_names.folder(self.case), round_folder(self.round))

    @property
    def without_repeat(self) -> str:
        """The name of its case without the number of rounds."""
        return case_names.without_repeat(self.case)

    @property
    def vendor_code(self) -> tuple[str, ...]:
        """The vendor code that the fingerprint lists, such as "step backward"."""
        return vendor_code.names(self.fingerprint)

    @property
    def rate_unit(self) -> str:
        """The unit of the main figure."""
        return self.figures[0].unit if self.figures else f"{self.sample_unit}/s"

    def metric(self, name: str) -> MetricValue | None:
        """Return a metric; "device_rate at 4 at once" is a figure of the point "4 at once"."""
        return next((metric for metric in chain(self.metrics, self._of_point(name)) if metric.name == name), None)

    def _of_point(self, name: str) -> Iterator[MetricValue]:
        own, at, place = name.partition(AT)
        point = next((one for one in self.points if one.name == place), None) if at else None
        figure = next((one for one in self.figures if one.name == own), None) if point else None
        if point and figure and own in point.figures:
            yield MetricValue(name, point.figures[own], figure.unit, figure.direction, place)

    def value(self, name: str) -> float | None:
        metric = self.metric(name)
        return None if metric is None else metric.value

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **files.to_json_types(self), "target": targets.to_json(self.target)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str = "outcome") -> Outcome:
        files.check_schema(body, SCHEMA, where)
        outcome = type_check.typed(cls, body, where)
        check_kind(outcome.kind, where)
        return outcome


def judged_at_points(outcome: Outcome) -> list[str]:
    """Return the figures of points that are judged, each by itself."""
    figures = [figure for figure in outcome.figures if figure.name in kind_of(outcome).judged_at_points]
    return [f"{one.name}{AT}{point.name}" for point in outcome.points for one in figures if one.over in point.values]


def counted(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the rounds whose figures count, everywhere: the valid ones, or all that finished if none is valid."""
    finished = [outcome for outcome in outcomes if outcome.ok]
    return [outcome for outcome in finished if outcome.valid] or finished


def why_failed(outcome: Outcome) -> str:
    """Return the first failure of a round that is not ok, else its state."""
    return outcome.failures[0].sentence if outcome.failures else outcome.state


def failed_logs_first(outcome: Outcome) -> list[str]:
    failed = {rank_log(failure.rank) for failure in outcome.failures if failure.rank is not None}
    return sorted(outcome.logs, key=lambda name: name.rpartition("/")[2] not in failed)


def unreadable(round_dir: Path, reason: str) -> Outcome:
    """Return the failed outcome of a round whose record cannot be read, with the case by its folder."""
    folder = round_dir.parent.name
    case = Case.of_folder(folder)
    number_ = whole("".join(filter(str.isdecimal, round_dir.name))) or 1
    failure = RoundFault(UNREADABLE, None, None, f"round {number_}: its record cannot be read: {reason}")
    return Outcome(
        case=str(case or folder),
        model=case.model if case else folder,
        framework=case.framework if case else "",
        hardware=case.hardware if case else "",
        nnodes=case.nnodes if case else 1,
        nproc=case.nproc if case else 1,
        vendor="",
        round=number_,
        seed=None,
        scale="",
        synthetic=False,
        throughput_only=False,
        sample_unit="samples",
        state=UNREADABLE,
        target=Target("", "", "", None),
        failures=(failure,),
    )
