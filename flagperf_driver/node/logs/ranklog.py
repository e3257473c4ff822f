"""Read one rank's log once from start to end, in memory that does not grow with the log."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Generic, Mapping, Sequence, TypeVar

from flagperf_driver import events, perflog
from flagperf_driver.logged_step import CHARTED, Step
from flagperf_driver.node.agent.milestones import MILESTONES
from flagperf_driver.node.logs.drawings import FirstAndLast, drawings
from flagperf_driver.node.logs.points import MOST_POINTS, LeftOutPoint, MeasuredPoint, left_out_point, measured_point
from flagperf_driver.node.logs.ranges import LOGGED, NOT_NEGATIVE, Range
from flagperf_driver.node.logs.whole_numbers import LARGEST_COUNT
from flagperf_driver.perflog import LogTranslator, Names, NamesInLog, number
from flagperf_driver.target import Target

CURVE_POINTS = 2000
TAIL_LINES = 20
_TAIL_BYTES = 16 * 1024
_NUMBERS = frozenset([int, float])
_NOT_METRICS = frozenset({"step", "samples", "time", "epoch"})

T = TypeVar("T")


@dataclass(frozen=True)
class Evaluation:
    """A logged evaluation; its end, ``time``, is in seconds since TRAIN_START, ``seconds`` is how long it took."""

    step: int
    samples: int
    time: float
    metrics: Mapping[str, float]
    seconds: float = math.nan


class Curve(Generic[T]):
    """At most ``CURVE_POINTS`` of any number of points, evenly apart, and the last one.

    A point is passed as a function, because most points of a long log are never created.
    """

    def __init__(self) -> None:
        self._kept: list[T] = []
        self._last: Callable[[], T] | None = None
        self._stride = 1
        self.seen = 0

    def add(self, make: Callable[[], T]) -> None:
        if self.seen % self._stride == 0:
            self._keep(make())
        else:
            self._last = make
        self.seen += 1

    def _keep(self, point: T) -> None:
        self._kept.append(point)
        self._last = None
        if len(self._kept) == CURVE_POINTS:
            # Remove every other point, also this one; it stays the last point until the next one comes.
            self._last = lambda: point
            self._kept = self._kept[::2]
            self._stride *= 2

    def points(self) -> tuple[T, ...]:
        return (*self._kept, *([] if self._last is None else [self._last()]))


@dataclass
class LogTotals:
    """What is known of all records, also of those that the curves leave out."""

    step: int = 0
    """The last step that was logged; before the first one the step from which the training continues."""
    longest_evaluation_s: float = 0.0


@dataclass(frozen=True)
class Impossible:
    """A field of a rank's records whose values were outside its range."""

    rank: int
    event: str
    name: str
    times: int
    first: float
    step: int | None
    allowed: Range


class RangeChecker:
    """Check one rank's records against the ranges, and count the figures that are outside."""

    def __init__(self, rank: int, target: Target) -> None:
        of_metric, loss = _pair(target.range), _pair(target.loss_range) or NOT_NEGATIVE
        evaluated = dict.fromkeys(target.values, of_metric) if of_metric and target.name else {}
        final = {f"final_metrics.{name}": allowed for name, allowed in evaluated.items()}
        own: dict[str, Mapping[str, Range]] = {
            events.STEP_END: {"loss": loss},
            events.INIT_EVALUATION: evaluated,
            events.EVALUATE: evaluated,
            events.FINISHED: {"final_loss": loss, **final},
        }
        self._rank = rank
        self._fields = {
            event: [
                (name, allowed.low, allowed.high, allowed) for name, allowed in {**known, **own.get(event, {})}.items()
            ]
            for event, known in LOGGED.items()
        }
        self._impossible: dict[tuple[str, str], Impossible] = {}

    def check(self, event: str, value: Mapping[str, Any]) -> None:
        """Record each figure that is outside its range."""
        if event == events.FINISHED:
            value = _flat(value)
        for name, low, high, allowed in self._fields.get(event, ()):
            got = value.get(name)
            if got is None or (type(got) in _NUMBERS and low <= got <= high):
                continue  # the usual case first: a long log has millions of records
            got = number(got)
            if math.isfinite(got) and got not in allowed:
                self._note(event, name, got, allowed, value.get("step"))

    def _note(self, event: str, name: str, value: float, allowed: Range, step: object) -> None:
        at = number(step)
        known = int(at) if 0 <= at <= LARGEST_COUNT else None
        first = Impossible(self._rank, event, name, 0, value, known, allowed)
        before = self._impossible.get((event, name), first)
        self._impossible[event, name] = replace(before, times=before.times + 1)

    def impossible(self) -> tuple[Impossible, ...]:
        return tuple(self._impossible.values())


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """Add the members of each table as TABLE.MEMBER."""
    tables = [(name, table) for name, table in value.items() if isinstance(table, dict)]
    return {**value, **{f"{name}.{member}": item for name, table in tables for member, item in table.items()}}


def _pair(bounds: Sequence[float] | None) -> Range | None:
    """Convert a range of the plan; None if the suite declares none."""
    if bounds is None or len(bounds) != 2:
        return None
    low, high = bounds
    return Range(low, high) if low < high else None


@dataclass
class RankLog:
    """The contents of one rank's log; ``present`` is False if the rank left no log.

    A host's summary stores the fields under their names.
    """

    # -- the file
    rank: int
    path: Path = Path()
    present: bool = True
    is_summary: bool = False
    """Whether these are the contents of the host's summary: without curves, and the log itself is still on the host."""
    bytes: int = 0
    broken_lines: int = 0
    other_lines: int = 0
    last_lines: tuple[str, ...] = ()
    """Of a summary of a rank that did not finish."""
    other_rank: int | None = None
    """The rank of the first record that another rank wrote."""
    names: NamesInLog = field(default_factory=NamesInLog)

    # -- the records that a rank writes once
    counts: dict[str, int] = field(default_factory=dict)
    """The number of records of each milestone; a rank writes each once."""
    init_end: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[Mapping[str, Any], ...] = ()
    """The values that each INIT_END repeats from the rank's parameters."""
    failed: Mapping[str, Any] | None = None
    finished: Mapping[str, Any] | None = None
    after_finished: str | None = None
    """The first event after FINISHED."""

    # -- the times, by the rank's clock
    milestones_ms: dict[str, int] = field(default_factory=dict)
    init_start_ms: int | None = None
    train_start_ms: int | None = None
    warm_ms: float | None = None
    """The end of the warm-up's last step, estimated from the logged steps."""
    train_end_ms: int | None = None
    last_ms: int | None = None

    # -- the steps and the checkpoints
    totals: LogTotals = field(default_factory=LogTotals)
    steps: tuple[Step, ...] = ()
    logged_steps: int = 0
    first_step: int | None = None
    """The first step after TRAIN_START; after a checkpoint it is not step 1."""
    bad_losses: int = 0
    first_bad_step: int | None = None
    first_bad_loss: float | None = None
    checkpoints: int = 0
    """The number of complete checkpoints that the log knows of."""

    # -- the evaluations
    evaluations: tuple[Evaluation, ...] = ()
    num_evaluations: int = 0
    untrained: Evaluation | None = None
    reached: Evaluation | None = None
    last_evaluation: Evaluation | None = None
    best: dict[str, float] = field(default_factory=dict)
    """The best value of each metric with a target."""
    bad_metrics: int = 0

    # -- the points of a measurement
    points: tuple[MeasuredPoint, ...] = ()
    left_out: tuple[LeftOutPoint, ...] = ()
    bad_points: int = 0
    """The number of records of points that are not valid, repeat a point, or are too many."""

    # -- the figures of all records
    impossible: tuple[Impossible, ...] = ()
    """The figures outside their possible range."""
    drawings: FirstAndLast = field(default_factory=FirstAndLast)
    """What the model drew; invalid records are left out."""

    @property
    def names_of_points(self) -> frozenset[str]:
        return frozenset(point.name for point in self.points)

    def tail(self) -> tuple[str, ...]:
        return self.last_lines or tail(self.path)


def read_rank(
    path: Path,
    rank: int,
    target: Target,
    warmup: int = 0,
    sample_unit: str = "",
    loads: perflog.Loads | None = None,
) -> RankLog:
    """Read the rank's log and translate FlagPerf's names; a missing file is a log without lines.

    ``target`` is from the plan. ``loads`` is a faster JSON parser than the standard library's.
    """
    names = LogTranslator(Names(target.name, target.original_name, sample_unit))
    log = RankLog(rank, path)
    skipped = perflog.SkippedCounts()
    ranges = RangeChecker(rank, target)
    reader = _RankLogReader(log, target, warmup)
    try:
        with path.open("rb") as stream:
            for record in perflog.read_records(stream, skipped, loads=loads):
                value = names.translate(record.event, record.value)
                ranges.check(record.event, value)
                reader.take(record if value is record.value else record._replace(value=value))
            log.bytes = stream.tell()
    except OSError:
        log.present = False
    log.broken_lines, log.other_lines = skipped.broken, skipped.other
    log.steps, log.evaluations = reader.steps.points(), reader.evaluations.points()
    log.impossible = ranges.impossible()
    log.logged_steps, log.num_evaluations = reader.steps.seen, reader.evaluations.seen
    log.points, log.left_out, log.given = tuple(reader.points), tuple(reader.left_out), tuple(reader.given)
    log.names = names.found
    return log


class _RankLogReader:
    """Add a log's records to a RankLog one by one."""

    def __init__(self, log: RankLog, target: Target, warmup: int) -> None:
        self.log, self.target, self._warmup = log, target, warmup
        self._point_names: set[str] = set()
        self.points: list[MeasuredPoint] = []
        self.left_out: list[LeftOutPoint] = []
        self.given: list[Mapping[str, Any]] = []
        self.steps: Curve[Step] = Curve()
        self.evaluations: Curve[Evaluation] = Curve()

    def take(self, record: perflog.Record) -> None:
        log = self.log
        log.last_ms = record.time_ms
        if record.rank != log.rank and log.other_rank is None:
            log.other_rank = record.rank
        if log.finished is not None and log.after_finished is None:
            log.after_finished = record.event
        if record.event in MILESTONES:
            log.counts[record.event] = log.counts.get(record.event, 0) + 1
            log.milestones_ms.setdefault(record.event, record.time_ms)
        if record.event == events.STEP_END:
            self._step(record)
        elif record.event == events.STEP_BEGIN:
            if log.first_step is None:
                log.first_step = whole(record.value.get("step"))
                log.totals.step = log.totals.step if self.steps.seen else log.first_step - 1
        elif record.event == events.EVALUATE:
            self._evaluation(record)
        elif record.event == events.CHECKPOINT:
            log.checkpoints += 1
        elif record.event == events.INIT_EVALUATION:
            # The training's time begins here, whether it is logged before or after TRAIN_START.
            log.untrained = replace(self._evaluated(record), time=0.0)
        elif record.event == events.DRAWINGS:
            found = drawings(record.value)
            if found is not None:
                log.drawings.add(found)
        elif record.event == events.INIT_END:
            log.init_end = record.value
            given = record.value.get("given")
            self.given.append(given if isinstance(given, dict) else {})
        elif record.event == events.INIT_START:
            log.init_start_ms = record.time_ms
        elif record.event == events.TRAIN_START:
            log.train_start_ms, log.train_end_ms = record.time_ms, None
            log.warm_ms, log.first_step = None if self._warmup else record.time_ms, None
        elif record.event == events.TRAIN_END:
            log.train_end_ms = record.time_ms
        elif record.event in (events.MEASURED, events.LEFT_OUT):
            self._point(record)
        elif record.event == events.FAILED:
            log.failed = record.value
        elif record.event == events.FINISHED:
            log.finished = record.value

    def _point(self, record: perflog.Record) -> None:
        log = self.log
        measured = measured_point(record.value, log.rank) if record.event == events.MEASURED else None
        left_out = left_out_point(record.value) if record.event == events.LEFT_OUT else None
        name = measured.name if measured else left_out.name if left_out else None
        if name is None or name in self._point_names or len(self._point_names) >= MOST_POINTS:
            log.bad_points += 1
            return
        self._point_names.add(name)
        self.points += [measured] if measured else []
        self.left_out += [left_out] if left_out else []

    def _step(self, record: perflog.Record) -> None:
        value = record.value
        loss = number(value.get("loss"))
        if not math.isfinite(loss):
            self._bad_loss(value, loss)
        if self.log.warm_ms is None:
            self._warm(record)
        if all(math.isfinite(number(value.get(name))) for name in ("step", "samples")):
            self.log.totals.step = int(number(value.get("step")))
        self.steps.add(partial(self._make_step, record, loss))

    def _warm(self, record: perflog.Record) -> None:
        """Estimate the end of the warm-up: not every step is logged, so go back from this one by mean steps."""
        past = whole(record.value.get("step")) - (self.log.first_step or 1) + 1 - self._warmup
        if past >= 0:
            seconds = number(record.value.get("step_time"))
            self.log.warm_ms = record.time_ms - (past * seconds * 1000 if math.isfinite(seconds) else 0)

    def _make_step(self, record: perflog.Record, loss: float) -> Step:
        value = record.value
        return Step(
            step=whole(value.get("step")),
            samples=whole(value.get("samples")),
            time=self._since_start(record),
            loss=loss,
            throughput=number(value.get("throughput")),
            learning_rate=number(value.get("learning_rate")),
            **{name: number(value[name]) for name in CHARTED if value.get(name) is not None},
        )

    def _bad_loss(self, value: Mapping[str, Any], loss: float) -> None:
        log = self.log
        log.bad_losses += 1
        if log.first_bad_step is None:
            log.first_bad_step, log.first_bad_loss = whole(value.get("step")), loss

    def _evaluation(self, record: perflog.Record) -> None:
        log, target = self.log, self.target
        evaluation = self._evaluated(record)
        if math.isfinite(evaluation.seconds):
            log.totals.longest_evaluation_s = max(log.totals.longest_evaluation_s, evaluation.seconds)
        values = {name: evaluation.metrics.get(name, math.nan) for name in target.values}
        if not all(map(math.isfinite, values.values())):
            log.bad_metrics += 1
        log.best.update(
            {name: value for name, value in values.items() if target.better(value, log.best.get(name, math.nan))}
        )
        if log.reached is None and target.reached_by(values):
            log.reached = evaluation
        log.last_evaluation = evaluation
        self.evaluations.add(lambda: evaluation)

    def _evaluated(self, record: perflog.Record) -> Evaluation:
        value = record.value
        return Evaluation(
            step=whole(value.get("step")),
            samples=whole(value.get("samples")),
            time=self._since_start(record),
            metrics={str(name): number(value[name]) for name in value if name not in _NOT_METRICS},
            seconds=number(value.get("time")),
        )

    def _since_start(self, record: perflog.Record) -> float:
        start = self.log.train_start_ms
        return math.nan if start is None else (record.time_ms - start) / 1000


def tail(path: Path, lines: int = TAIL_LINES) -> tuple[str, ...]:
    """The file's last lines that are not empty; only the end of a very long line."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            start = max(stream.tell() - _TAIL_BYTES, 0)
            stream.seek(start)
            text = stream.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    kept = [line.rstrip() for line in text.splitlines() if line.strip()]
    # The first line may be truncated.
    return tuple(kept[1:][-lines:] if start and len(kept) > 1 else kept[-lines:])


def whole(value: object) -> int:
    """Return a count from a log; 0 for other values, and for counts above LARGEST_COUNT."""
    count = number(value)
    return int(count) if abs(count) <= LARGEST_COUNT else 0
