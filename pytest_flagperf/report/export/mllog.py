"""A round as MLPerf's log lines: what it was, what it was told, and what happened when."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from flagperf_driver import events, perflog
from flagperf_driver.perflog import Record, number
from pytest_flagperf.results.logs.ranklog import whole
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts import has_converged
from pytest_flagperf.stored.layout import rank_log
from pytest_flagperf.stored.plan import StoredPlan, StoredValue

MARK = ":::MLLOG "
WANTED = (
    events.INIT_START, events.TRAIN_START, events.TRAIN_END, events.EPOCH_BEGIN, events.EPOCH_END, events.EVALUATE,
    events.FINISHED, events.FAILED,
)  # fmt: skip
"""What becomes a line, or tells when a round broke off: few lines of a log, however long it is."""
_OPTIMIZERS = {
    "sgd": {"momentum": "momentum"},
    "adam": {"beta_1": "beta1", "beta_2": "beta2", "epsilon": "epsilon"},
    "adamw": {"beta_1": "beta1", "beta_2": "beta2", "epsilon": "epsilon", "weight_decay": "weight_decay"},
    "lamb": {"beta_1": "beta1", "beta_2": "beta2", "epsilon": "epsilon", "weight_decay_rate": "weight_decay"},
}
_OPTIONS = {
    "opt_name": "optimizer",
    "opt_base_learning_rate": "learning_rate",
    "opt_learning_rate_warmup_steps": "lr_warmup_steps",
    "opt_weight_decay": "weight_decay",
    "opt_gradient_clip_norm": "max_grad_norm",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "micro_batch_size": "train_batch_size",
    "max_sequence_length": "max_seq_length",
}


class NotExportable(ValueError):
    """Why a round cannot be said in MLPerf's words."""


@dataclass(frozen=True)
class Benchmark:
    """What MLPerf calls a suite; without a ruleset it has no rules for it. Samples are by scale."""

    name: str
    ruleset: str | None = None
    train_samples: Mapping[str, int] = field(default_factory=dict)
    eval_samples: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    key: str
    time_ms: int
    value: object = None
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        """In ASCII, which the checkers read; a value that is no number is NaN, as MLPerf's own logger has it."""
        begins, ends = self.key.endswith("_start"), self.key.endswith("_stop")
        body = {
            "namespace": "",
            "time_ms": self.time_ms,
            "event_type": "INTERVAL_START" if begins else "INTERVAL_END" if ends else "POINT_IN_TIME",
            "key": self.key,
            "value": self.value,
            "metadata": self.metadata,
        }
        return MARK + json.dumps(body)


def rank0_records(round_dir: Path, outcome: Outcome) -> list[Record]:
    """What the first rank's log says of the training's course."""
    log = next((name for name in outcome.logs if Path(name).name == rank_log(0)), None)
    if log is None:
        raise NotExportable("rank 0 left no log")
    try:
        with (round_dir / log).open("rb") as stream:
            return list(perflog.read_records(stream, events=WANTED, loads=orjson.loads))
    except OSError as error:
        raise NotExportable(f"{log} cannot be read: {error.strerror}") from error


def lines(outcome: Outcome, plan: StoredPlan, records: Iterable[Record], benchmark: Benchmark, org: str) -> list[Line]:
    """The whole result file, in the log's order and with its times; raises NotExportable."""
    records = list(records)
    begin = next((record for record in records if record.event == events.INIT_START), None)
    if begin is None or all(record.event != events.TRAIN_START for record in records):
        raise NotExportable("its training never began")
    if all(record.event != events.EVALUATE for record in records):
        raise NotExportable("it is for throughput only" if outcome.throughput_only else "nothing was evaluated")
    head = [
        *_submission(outcome, benchmark, org, begin),
        *_told(outcome, plan, begin),
        *_samples(outcome, benchmark, begin),
    ]
    return [*head, *_Course(outcome, records).lines()]


def _submission(outcome: Outcome, benchmark: Benchmark, org: str, begin: Record) -> Iterator[Line]:
    device = outcome.environment.get("device") or outcome.hardware
    said = {
        "cache_clear": None,  # a stored round does not tell
        "submission_benchmark": benchmark.name,
        "submission_division": "open",
        "submission_org": org,
        "submission_platform": f"{outcome.nnodes}x{outcome.nproc} {device}",
        "submission_status": "research",
        "flagperf_case": outcome.case,
        "flagperf_round": outcome.round,
        "flagperf_scale": outcome.scale,
        "flagperf_target": {
            "metric": outcome.target.name, "direction": outcome.target.direction, "value": outcome.target.value,
        },
        "flagperf_fingerprint": outcome.fingerprint.get("key"),
    }  # fmt: skip
    for key, value in said.items():
        yield Line(key, begin.time_ms, value, _place(begin))


def _told(outcome: Outcome, plan: StoredPlan, begin: Record) -> Iterator[Line]:
    """The options, each with the file and line that said so."""
    config = plan.config

    def line(key: str, value: object, option: str) -> Line:
        setting = plan.values.get(option) or StoredValue(file=begin.file, line=begin.lineno)
        return Line(key, begin.time_ms, value, {"file": setting.file, "lineno": setting.line})

    if outcome.seed is not None:
        yield line("seed", outcome.seed, "seed")
    batch, accumulation = whole(config.get("train_batch_size")), whole(config.get("gradient_accumulation_steps"))
    yield line("global_batch_size", batch * (accumulation or 1) * outcome.cards, "train_batch_size")
    for key, option in _options(config).items():
        if config.get(option) is not None:
            yield line(key, config[option], option)


def _options(config: Mapping[str, Any]) -> dict[str, str]:
    """MLPerf's names for ours; an optimizer has names of its own for what it can be told."""
    name = str(config.get("optimizer"))
    own = {f"opt_{name}_{key}": option for key, option in _OPTIMIZERS.get(name, {}).items()}
    ends = "lr_decay_steps" if config.get("lr_decay_steps") is not None else "max_steps"
    return {**_OPTIONS, **own, "opt_learning_rate_training_steps": ends}


def _samples(outcome: Outcome, benchmark: Benchmark, begin: Record) -> Iterator[Line]:
    """How many the data are; where nobody says, how many were trained."""
    trained = benchmark.train_samples.get(outcome.scale) or _trained(outcome)
    evaluated = benchmark.eval_samples.get(outcome.scale)
    for key, value in (("train_samples", trained), ("eval_samples", evaluated)):
        if value is not None:
            yield Line(key, begin.time_ms, value, _place(begin))


class _Course:
    """Tells a training's course: its epochs, and the blocks of training between two evaluations."""

    def __init__(self, outcome: Outcome, records: list[Record]) -> None:
        self.outcome, self.records = outcome, records
        self.told: list[Line] = []
        self.epoch = 1
        self.samples = 0
        """Those of the last evaluation, where the next block begins."""
        self.block: tuple[int, Line] | None = None
        """Where the next block's first line belongs, and that line: told when it is known that there is one."""

    def lines(self) -> list[Line]:
        for record in self.records:
            tell = _TELLERS.get(record.event)
            if tell is not None:
                tell(self, record)
        if all(record.event != events.TRAIN_END for record in self.records):
            self._stop(self.records[-1], max(self.records[-1].time_ms, self._last_step_ms()))
        return self.told

    def add(self, key: str, record: Record, value: object = None, at: int | None = None, **metadata: object) -> None:
        self.told.append(Line(key, record.time_ms if at is None else at, value, {**_place(record), **metadata}))

    def init_start(self, record: Record) -> None:
        self.add("init_start", record)

    def train_start(self, record: Record) -> None:
        """The initialization goes on until then: the evaluation of the untrained model is a part of it."""
        self.add("init_stop", record)
        self.add("run_start", record)
        self._next_block(record)

    def epoch_begin(self, record: Record) -> None:
        self.epoch = max(whole(record.value.get("epoch")), 1)
        self.add("epoch_start", record, epoch_num=self.epoch)

    def epoch_end(self, record: Record) -> None:
        self.add("epoch_stop", record, epoch_num=max(whole(record.value.get("epoch")), 1))

    def evaluate(self, record: Record) -> None:
        """The line was logged at the evaluation's end and says how long it took."""
        seconds = number(record.value.get("time"))
        took = round(seconds * 1000) if 0 < seconds < math.inf else 0
        before = self.told[-1].time_ms if self.told else record.time_ms
        # Rounding may not put its beginning before what was logged before it.
        begin = min(max(record.time_ms - took, before), record.time_ms)
        self.samples = whole(record.value.get("samples"))
        where = {"epoch_num": self.epoch, "samples_count": self.samples}
        self._end_block(record, begin)
        self.add("eval_start", record, at=begin, **where)
        value = number(record.value.get(self.outcome.target.name))
        self.add("eval_accuracy", record, value, **where)
        self.add("eval_stop", record, **where)
        self._next_block(record)

    def train_end(self, record: Record) -> None:
        self._stop(record, record.time_ms)

    def _stop(self, record: Record, at: int) -> None:
        trained = _trained(self.outcome) or 0
        if trained > self.samples:
            self.samples = trained
            self._end_block(record, at)
        status = "success" if has_converged(self.outcome) else "aborted"
        self.add("run_stop", record, at=at, status=status, samples_count=self.samples, epoch_num=self.epoch)

    def _next_block(self, record: Record) -> None:
        where = {"first_epoch_num": self.epoch, "samples_count": self.samples}
        self.block = (len(self.told), Line("block_start", record.time_ms, None, {**_place(record), **where}))

    def _end_block(self, record: Record, at: int) -> None:
        if self.block is not None:
            place, first = self.block
            self.told.insert(place, first)
            self.block = None
            self.add(
                "block_stop", record, at=at,
                first_epoch_num=first.metadata["first_epoch_num"], samples_count=self.samples,
            )  # fmt: skip

    def _last_step_ms(self) -> int:
        """When a training that broke off was last heard of."""
        start = next(record.time_ms for record in self.records if record.event == events.TRAIN_START)
        last = number(self.outcome.steps[-1].time) if self.outcome.steps else 0.0
        return start + round(last * 1000) if last > 0 else start


_TELLERS = {
    events.INIT_START: _Course.init_start,
    events.TRAIN_START: _Course.train_start,
    events.EPOCH_BEGIN: _Course.epoch_begin,
    events.EPOCH_END: _Course.epoch_end,
    events.EVALUATE: _Course.evaluate,
    events.TRAIN_END: _Course.train_end,
}


def _trained(outcome: Outcome) -> int | None:
    return outcome.work.samples or (outcome.steps[-1].samples if outcome.steps else None)


def _place(record: Record) -> dict[str, object]:
    return {"file": record.file, "lineno": record.lineno}
