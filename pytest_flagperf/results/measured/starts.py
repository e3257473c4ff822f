"""A training that was started several times: its starts, its joined curve, and the time that became no progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

from flagperf_driver.logged_step import Step
from flagperf_driver.node.logs.drawings import FirstAndLast
from flagperf_driver.node.logs.ranklog import Curve, Evaluation, Impossible, RankLog
from flagperf_driver.perflog import number
from flagperf_driver.target import Target
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.stored import layout
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import RoundFault, RoundRecord

T = TypeVar("T", Step, Evaluation)


@dataclass(frozen=True)
class Start:
    """One start of a training: it continued after ``from_step`` and came to ``last_step``, by the first rank's log."""

    folder: str
    from_step: int | None
    """None if it trained no step."""
    last_step: int
    started_ms: int
    ended_ms: int
    kind: str = ""
    """The kind of the fault that ended it; empty if it finished."""
    host: str | None = None
    sentence: str = ""


@dataclass(frozen=True)
class DrilledFault:
    """A fault of --drill, and what followed: seconds after it struck, None for what did not follow."""

    what: str
    step: int
    noticed_s: float | None
    started_s: float | None
    """Until the next start began."""
    trains_s: float | None
    """Until its first step began."""
    steps_repeated: int

    TIMES: ClassVar = ("noticed", "next start", "trains again")

    @property
    def times(self) -> dict[str, float | None]:
        """The seconds until each of TIMES."""
        return dict(zip(self.TIMES, (self.noticed_s, self.started_s, self.trains_s), strict=True))

    @property
    def sentence(self) -> str:
        """What it cost, in words."""
        parts = [f"{name} after {quantity(after, 's')}" for name, after in self.times.items() if after is not None]
        again = f"{count(self.steps_repeated, 'step')} done again"
        return f"{self.what} at step {self.step:,}: {', '.join([*(parts or ['not noticed']), again])}"


@dataclass(frozen=True)
class StartFiles:
    """What a start left: the end of its round, and the first rank's log with the offset of its host's clock.

    A killed controller leaves no record of the end, a lost host perhaps no log; one of both exists.
    """

    folder: str
    end: RoundRecord | None
    log: RankLog
    offset_s: float = 0.0
    hosts: int = 1
    error: str = ""
    """The type of the error that the faulty rank logged, where it was looked for; empty without one."""

    @property
    def fault(self) -> RoundFault:
        """What ended it early; without a kind if it finished or left no record."""
        return self.end.fault if self.end and self.end.fault else RoundFault("")

    @property
    def started_s(self) -> float:
        """The begin by the record, else by the log."""
        recorded = self.end.started_ms if self.end else None
        return self._at(self.log.init_start_ms) if recorded is None else recorded / 1000

    @property
    def ended_s(self) -> float:
        recorded = self.end.ended_ms if self.end else None
        return self._at(self.log.last_ms) if recorded is None else recorded / 1000

    @property
    def train_start_s(self) -> float | None:
        """TRAIN_START by the controller's clock; None if it came not so far. Without a log all time is training."""
        if not self.log.present:
            return self.started_s
        return None if self.log.train_start_ms is None else self._at(self.log.train_start_ms)

    @property
    def last_s(self) -> float:
        """TRAIN_END, else the last record."""
        return self._at(self.log.train_end_ms or self.log.last_ms) if self.log.present else self.ended_s

    def _at(self, time_ms: int | None) -> float:
        return (time_ms or 0) / 1000 - self.offset_s

    @property
    def trained_s(self) -> float:
        return 0.0 if self.train_start_s is None else max(self.last_s - self.train_start_s, 0.0)

    @property
    def first_step(self) -> int | None:
        return self.log.first_step

    @property
    def last_step(self) -> int:
        return self.log.totals.step

    @property
    def has_times(self) -> bool:
        recorded = self.end is not None and self.end.started_ms is not None and self.end.ended_ms is not None
        return recorded or self.log.init_start_ms is not None

    @property
    def log_is_whole(self) -> bool:
        """Return False if the log, or its end, may be lost with its host, or did not fit on its disk."""
        return self.log.present and self.fault.kind not in ("lost", "disk")

    def described(self) -> Start:
        begun = self.first_step
        return Start(
            self.folder,
            from_step=None if begun is None else begun - 1,
            last_step=self.last_step,
            started_ms=round(self.started_s * 1000),
            ended_ms=round(self.ended_s * 1000),
            kind=self.fault.kind,
            host=self.fault.host,
            sentence=self.fault.sentence,
        )


@dataclass(frozen=True)
class Chain:
    """All starts of a training, at least two; the last one is the round's own."""

    files: tuple[StartFiles, ...]
    unknown: int = 0
    """The number of further tries that left neither a record nor a log."""

    @property
    def count(self) -> int:
        return len(self.files) + self.unknown

    @property
    def is_whole(self) -> bool:
        """Return True if the logs say all that the last start can have continued."""
        return not self.unknown and all(files.log_is_whole for files in self.files[:-1])

    @property
    def starts(self) -> tuple[Start, ...]:
        return tuple(files.described() for files in self.files)

    @property
    def trained_s(self) -> float:
        """The seconds from TRAIN_START to the last record, of all starts."""
        return sum(files.trained_s for files in self.files)

    @property
    def last_step_before(self) -> int:
        """The last step that a start before the last one logged."""
        return max((files.last_step for files in self.files[:-1]), default=0)

    def remarks(self) -> Iterator[str]:
        """Yield a sentence for each start but the last one, and one if there were others."""
        if self.unknown:
            yield (
                f"{self.unknown} of {self.count} starts left neither a record nor a log: the curve does not contain"
                " their steps, and goodput is unknown"
            )
        starts = self.starts
        for number_, (start, after) in enumerate(pairwise(starts), 1):
            end = f"start {number_} of {len(starts)} ended "
            if not self.files[number_ - 1].log.present:
                end += "and the log of its first rank is missing here, so that its steps are not in the curve"
            else:
                end += "before its first step" if start.from_step is None else f"at step {start.last_step:,}"
            reason = f": {start.sentence}" if start.sentence else ""
            continued = "" if after.from_step is None else f"; the next one continued from step {after.from_step:,}"
            before, hosts = (files.hosts for files in self.files[number_ - 1 : number_ + 1])
            if hosts != before:
                continued += f" on {count(hosts, 'host')} instead of {before}, with other random numbers (dropout)"
            yield f"{end}{reason}{continued}"

    @property
    def impossible(self) -> tuple[Impossible, ...]:
        """The figures of earlier starts that are outside their range."""
        return tuple(figure for files in self.files[:-1] for figure in files.log.impossible)

    # -- the curve -------------------------------------------------------------------------------------------

    def joined(self, target: Target) -> RankLog:
        """Return the last start's log with the curve of the whole training; its times are since the first TRAIN_START.

        Of each start only what the next one continued is kept.
        """
        last = self.files[-1].log
        steps = self._curve(lambda log: log.steps)
        evaluations = self._curve(lambda log: log.evaluations)
        best = dict(last.best)
        for evaluation in evaluations:
            for name in target.values:
                value = evaluation.metrics.get(name, math.nan)
                if target.better(value, best.get(name, math.nan)):
                    best[name] = value
        return replace(
            last,
            steps=steps,
            evaluations=evaluations,
            untrained=next((files.log.untrained for files in self.files if files.log.untrained), None),
            reached=next((one for one in evaluations if target.reached_by(one.metrics)), None),
            best=best,
            drawings=self._drawings(),
            last_evaluation=evaluations[-1] if evaluations else last.last_evaluation,
            logged_steps=max(last.logged_steps, len(steps)),
            num_evaluations=max(last.num_evaluations, len(evaluations)),
        )

    def _curve(self, points_of: Callable[[RankLog], Sequence[T]]) -> tuple[T, ...]:
        curve: Curve[T] = Curve()
        begun = next((files.train_start_s for files in self.files if files.train_start_s is not None), 0.0)
        for files, until in zip(self.files, _kept_until(self.files), strict=True):
            later_s = (files.train_start_s or begun) - begun
            before = (files.first_step or 1) - 1
            for point in points_of(files.log):
                # A resumed training logs the last evaluation before its checkpoint again.
                if before < point.step <= until:
                    curve.add(_at(replace(point, time=point.time + later_s)))
        return curve.points()

    def _drawings(self) -> FirstAndLast:
        kept = FirstAndLast()
        for files in self.files:
            for drawn in files.log.drawings.all():
                kept.add(drawn)
        return kept

    # -- the time --------------------------------------------------------------------------------------------

    def figures(self, finished: Mapping[str, Any] | None) -> Iterator[MetricValue]:
        """Yield what the restarts cost; the times only for a training that finished."""
        starts = f"{self.count} starts"
        yield MetricValue("restarts", float(self.count - 1), "", "lower", f"{starts} of one training")
        repeated = sum(_repeated(self.files))
        how = "steps after the checkpoint from which the next start continued, by the first rank's log"
        how += "" if self.is_whole else "; at least so many, because a start's log is missing or cut short"
        yield MetricValue("steps_repeated", float(repeated), "steps", "lower", how)
        kept, wall, lost = kept_s(finished), self.files[-1].ended_s - self.files[0].started_s, self.lost_s(finished)
        if not lost:
            return
        how = f"controller's clock, from the begin of the first of {starts} to the end of the last one"
        yield MetricValue("wall_time", wall, "s", "lower", how)
        how = ", ".join(f"{name} {quantity(seconds, 's')}" for name, seconds in lost.items())
        yield MetricValue("lost_time", wall - kept, "s", "lower", f"wall_time - raw_train_time: {how}")
        yield goodput(kept, wall, f"wall_time of {starts}")

    def costs(self, finished: Mapping[str, Any] | None) -> str:
        """Return the number of starts with the goodput and the repeated steps, as text."""
        values = {figure.name: figure.value for figure in self.figures(finished)}
        goodput = f"goodput {quantity(values['goodput'], 'share')}, " if "goodput" in values else ""
        return f"{self.count} times ({goodput}{count(int(values['steps_repeated']), 'step')} done again)"

    def lost_s(self, finished: Mapping[str, Any] | None) -> dict[str, float]:
        """Return the seconds that became no progress by their parts; empty if they are unknown.

        They fill the wall time, with raw_train_time.
        """
        kept = kept_s(finished)
        if not math.isfinite(kept) or self.files[-1].ended_s <= self.files[0].started_s or self.unknown:
            return {}
        trained = [files for files in self.files if files.train_start_s is not None]
        without = [files for files in self.files if files.train_start_s is None]
        return {
            "starting": sum((files.train_start_s or 0.0) - files.started_s for files in trained)
            + sum(files.ended_s - files.started_s for files in without),
            "steps that were lost": self.trained_s - kept,
            "from the last record to the end": sum(files.ended_s - files.last_s for files in trained),
            "between two starts": sum(after.started_s - before.ended_s for before, after in pairwise(self.files)),
        }


def kept_s(finished: Mapping[str, Any] | None) -> float:
    return number((finished or {}).get("raw_train_time"))


def goodput(kept_s: float, wall_s: float, wall: str) -> MetricValue:
    return MetricValue("goodput", kept_s / wall_s, "share", "higher", f"raw_train_time over {wall}")


def drilled(files: Sequence[StartFiles]) -> Iterator[DrilledFault]:
    """Yield the faults that struck the starts of a training; the last one of a start ended it if another follows."""
    for start, after, repeated in zip(files, [*files[1:], None], _repeated(files), strict=True):
        faults = start.end.drill if start.end else ()
        for fault in faults:
            next_start = after if fault is faults[-1] else None
            struck_s = fault.struck_ms / 1000
            trains_s = next_start.train_start_s if next_start else None
            yield DrilledFault(
                fault.what,
                fault.step,
                noticed_s=None if fault.noticed_ms is None else (fault.noticed_ms - fault.struck_ms) / 1000,
                started_s=next_start.started_s - struck_s if next_start else None,
                trains_s=None if trains_s is None else trains_s - struck_s,
                steps_repeated=repeated if next_start else 0,
            )


def _kept_until(starts: Sequence[StartFiles]) -> list[float]:
    """Return for each start the step up to which later ones kept its work."""
    kept, until = [], math.inf
    for files in reversed(starts):
        kept.append(until)
        if files.first_step is not None:
            until = min(until, files.first_step - 1)
    return kept[::-1]


def _repeated(starts: Sequence[StartFiles]) -> list[int]:
    """Return for each start how many of its steps were done again."""
    pairs = zip(starts, _kept_until(starts), strict=True)
    return [int(max(files.last_step - until, 0)) if files.last_step else 0 for files, until in pairs]


def _at(point: T) -> Callable[[], T]:
    return lambda: point


def chain(plan: StoredPlan, own: StartFiles, earlier: Iterable[StartFiles]) -> Chain | None:
    """Return the starts of a round's training; None if it was started once, or saves no checkpoints."""
    if own.end is None or own.end.started_ms is None or own.end.ended_ms is None:
        return None
    if plan.throughput_only or not plan.training or not plan.config.get("checkpoint_dir"):
        return None
    tries = [*earlier]
    files = [one for one in tries if one.has_times]
    own = replace(own, folder=layout.last_try(own.folder))
    return Chain((*files, own), len(tries) - len(files)) if tries else None
