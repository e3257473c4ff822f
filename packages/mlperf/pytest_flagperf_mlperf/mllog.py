"""Convert a round to the log lines of MLPerf: its submission data, its options and its events."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from flagperf_driver import events, perflog
from flagperf_driver.layout import rank_log
from flagperf_driver.node.logs.ranklog import whole
from flagperf_driver.perflog import Record, number
from pytest_flagperf.catalog import REFERENCE
from pytest_flagperf.kinds.training.verdicts.reference import global_batch
from pytest_flagperf.results.measured import marks
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts import has_converged
from pytest_flagperf.stored.plan import StoredPlan, Value

MARK = ":::MLLOG "
OPEN, CLOSED = "open", "closed"
SUBMITTER = "unverified"
_EVENTS = (
    events.INIT_START, events.TRAIN_START, events.TRAIN_END, events.EPOCH_BEGIN, events.EPOCH_END, events.EVALUATE,
    events.FINISHED, events.FAILED,
)  # fmt: skip
"""The events that are exported, or that show when a round ended; few lines even of a long log."""
_OPTIMIZERS = {
    "sgd": {"momentum": "momentum"},
    "adam": {"beta_1": "beta1", "beta_2": "beta2", "epsilon": "epsilon"},
    "adamw": {"beta_1": "beta1", "beta_2": "beta2", "epsilon": "epsilon", "weight_decay": "weight_decay"},
    "lamb": {"beta_1": "beta1", "beta_2": "beta2", "epsilon": "epsilon", "weight_decay_rate": "weight_decay"},
}
_OPTIONS = {
    "opt_name": "optimizer",
    "opt_base_learning_rate": "learning_rate",
    "opt_weight_decay": "weight_decay",
    "opt_gradient_clip_norm": "max_grad_norm",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "micro_batch_size": "train_batch_size",
    "max_sequence_length": "max_seq_length",
    "max_steps": "max_steps",
}
_PRECISIONS = dict.fromkeys(("bf16", "float8", "mxfp8", "nvfp4"), "bfloat16")
"""MLPerf's names of precisions that differ from ours."""
_LINEAR = {**_PRECISIONS, "float8": "fp8", "mxfp8": "fp8", "nvfp4": "nvfp4"}
"""Those of the products of layers."""
_HALF = ("bfloat16", "fp16")


class NotExportable(ValueError):
    """A round that has no equivalent in MLPerf's format."""


@dataclass(frozen=True)
class MLPerfBenchmark:
    """MLPerf's name of a suite and, if MLPerf has rules for it, the ruleset; the numbers of samples by scale."""

    name: str
    ruleset: str | None = None
    division: str = OPEN
    """The division whose rules the reference scale keeps; other scales are another task, which is open."""
    sample_size: str | None = None
    """The config key with the number of the suite's samples, such as tokens, in one of MLPerf's, a sequence."""
    train_samples: Mapping[str, int] = field(default_factory=dict)
    eval_samples: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.division not in (OPEN, CLOSED):
            raise ValueError(f"division is {self.division!r}; expected {OPEN!r} or {CLOSED!r}")

    def division_of(self, scale: str) -> str:
        return self.division if scale == REFERENCE else OPEN

    def ruleset_of(self, scale: str) -> str | None:
        """Return the ruleset that checks rounds of a scale; MLPerf's closed rules are of the reference scale only."""
        return self.ruleset if self.division_of(scale) == self.division else None


@dataclass(frozen=True)
class MllogEntry:
    """A line of an MLPerf log."""

    key: str
    time_ms: int
    value: object = None
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the line in ASCII, which the checkers require; not-a-number is NaN, as in MLPerf's own logger."""
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
    """Return the records of rank 0 that are exported."""
    log = next((name for name in outcome.logs if Path(name).name == rank_log(0)), None)
    if log is None:
        raise NotExportable("rank 0 has no log")
    try:
        with (round_dir / log).open("rb") as stream:
            return list(perflog.read_records(stream, events=_EVENTS, loads=orjson.loads))
    except OSError as error:
        raise NotExportable(f"cannot read {log}: {error.strerror}") from error


def entries(
    outcome: Outcome, plan: StoredPlan, records: Iterable[Record], benchmark: MLPerfBenchmark
) -> list[MllogEntry]:
    """Return the lines of the result file in the order and with the times of the log; raises NotExportable."""
    if unverified := marks.unverified_chip([outcome]):
        raise NotExportable(unverified)
    if outcome.starts:
        starts = len(outcome.starts)
        raise NotExportable(f"the training was started {starts} times; a result file is the log of one process")
    records, size = list(records), _sample_size(plan, benchmark)
    begin = next((record for record in records if record.event == events.INIT_START), None)
    if begin is None or all(record.event != events.TRAIN_START for record in records):
        raise NotExportable("the training did not start")
    if all(record.event != events.EVALUATE for record in records):
        raise NotExportable("throughput only, no evaluations" if outcome.throughput_only else "no evaluations")
    head = [
        *_submission(outcome, benchmark, begin),
        *_configuration(outcome, plan, begin),
        *_samples(outcome, benchmark, begin, size),
    ]
    return [*head, *_EventConverter(outcome, records, size).lines()]


def _sample_size(plan: StoredPlan, benchmark: MLPerfBenchmark) -> int:
    """Return how many of the suite's samples are one of MLPerf's."""
    if benchmark.sample_size is None:
        return 1
    size = whole(plan.config.get(benchmark.sample_size))
    if size < 1:
        raise NotExportable(f"the config has no number {benchmark.sample_size}, the samples of one of MLPerf's")
    return size


def _submission(outcome: Outcome, benchmark: MLPerfBenchmark, begin: Record) -> Iterator[MllogEntry]:
    device = outcome.environment.get("device") or outcome.hardware
    values = {
        "cache_clear": None,  # not stored
        "submission_benchmark": benchmark.name,
        "submission_division": benchmark.division_of(outcome.scale),
        "submission_org": SUBMITTER,
        "submission_platform": f"{outcome.nnodes}x{outcome.nproc} {device}",
        "submission_status": "research",
        "flagperf_case": outcome.case,
        "flagperf_round": outcome.round,
        "flagperf_scale": outcome.scale,
        "flagperf_target": {
            "metric": outcome.target.name, "direction": outcome.target.direction, "value": outcome.target.value,
            "also": dict(outcome.target.also),
        },
        "flagperf_fingerprint": outcome.fingerprint.get("key"),
    }  # fmt: skip
    for key, value in values.items():
        yield MllogEntry(key, begin.time_ms, value, _place(begin))


def _configuration(outcome: Outcome, plan: StoredPlan, begin: Record) -> Iterator[MllogEntry]:
    """Yield the options, each with the file and line that set it."""
    config = plan.config

    def entry(key: str, value: object, option: str) -> MllogEntry:
        setting = plan.values.get(option) or Value(file=begin.file, line=begin.lineno)
        return MllogEntry(key, begin.time_ms, value, {"file": setting.file, "lineno": setting.line})

    if outcome.seed is not None:
        yield entry("seed", outcome.seed, "seed")
    yield entry("global_batch_size", global_batch(outcome) or 0, "train_batch_size")
    for key, option in _options(config).items():
        if config.get(option) is not None:
            yield entry(key, config[option], option)
    if interval := whole(config.get("eval_steps")) * (global_batch(outcome) or 0):
        yield entry("evaluation_frequency", interval, "eval_steps")
    for line in (*_schedule(config), *_disclosure(plan)):
        yield entry(*line)


def _schedule(config: Mapping[str, Any]) -> Iterator[tuple[str, object, str]]:
    """Yield the values that MLPerf computes from ours: the course of the learning rate after a warm-up in steps."""
    kind, end = config.get("lr_schedule"), config.get("lr_decay") or config.get("max_steps")
    warmup_unit = config.get("lr_warmup_unit") or config.get("lr_unit", "steps")
    if kind in ("linear", "cosine") and end and {config.get("lr_unit", "steps"), warmup_unit} == {"steps"}:
        yield "opt_end_learning_rate", config["learning_rate"] * config["lr_floor"], "lr_floor"
        yield "opt_learning_rate_decay_steps", end - config["lr_warmup"], "lr_decay"
        yield "opt_learning_rate_decay_schedule", f"{kind} with linear warmup", "lr_schedule"


def _disclosure(plan: StoredPlan) -> Iterator[tuple[str, object, str]]:
    """Yield what MLPerf's rules ask for since 6.1: precisions, how the ranks share the model, the config's file."""
    config, parallel = plan.config, plan.parallel
    given = str(config.get("precision"))
    linear, precision = (names.get(given, given) for names in (_LINEAR, _PRECISIONS))
    # Gradients are reduced in fp32; the weights and activations that ranks exchange have the precision of the layers.
    exchanged = precision if parallel.is_sharded and precision in _HALF else "fp32"
    yield "lowest_numerical_precision_in_linear", linear, "precision"
    yield "lowest_numerical_precision_in_attn", precision, "precision"
    yield "lowest_numerical_precision_in_comm", exchanged, "precision"
    yield "tensor_parallelism", parallel.tensor, "parallel"
    yield "expert_parallelism", parallel.expert, "parallel"
    for kind in ("pipeline", "context"):  # not axes of the table
        yield f"{kind}_parallelism", 1, "parallel"
    files = {value.layer: value.file for value in plan.values.values()}
    yield "config_filename", files.get("vendor") or files.get("suite") or config.get("vendor"), "vendor"


def _options(config: Mapping[str, Any]) -> dict[str, str]:
    """Return our names by MLPerf's; options of an optimizer have MLPerf names with its name."""
    name = str(config.get("optimizer"))
    of_optimizer = {f"opt_{name}_{key}": option for key, option in _OPTIMIZERS.get(name, {}).items()}
    unit = config.get("lr_unit", "steps")
    steps = "lr_decay" if config.get("lr_decay") is not None and unit == "steps" else "max_steps"
    warmup = f"opt_learning_rate_warmup_{config.get('lr_warmup_unit') or unit}"
    return {**_OPTIONS, **of_optimizer, warmup: "lr_warmup", "opt_learning_rate_training_steps": steps}


def _samples(outcome: Outcome, benchmark: MLPerfBenchmark, begin: Record, size: int) -> Iterator[MllogEntry]:
    """Yield the numbers of samples of the data sets; if unknown, the number of trained samples."""
    trained = benchmark.train_samples.get(outcome.scale) or (_trained(outcome) or 0) // size or None
    evaluated = benchmark.eval_samples.get(outcome.scale)
    for key, value in (("train_samples", trained), ("eval_samples", evaluated)):
        if value is not None:
            yield MllogEntry(key, begin.time_ms, value, _place(begin))


class _EventConverter:
    """Converts the events of a training: its epochs, evaluations, and the blocks of training between evaluations."""

    def __init__(self, outcome: Outcome, records: list[Record], size: int) -> None:
        self.outcome, self.records, self.size = outcome, records, size
        self.entries: list[MllogEntry] = []
        self.epoch = 1
        self.samples = 0
        """The samples at the last evaluation, where the next block begins."""
        self.block: tuple[int, MllogEntry] | None = None
        """The position and first line of the next block; written only if the block has samples."""

    def lines(self) -> list[MllogEntry]:
        for record in self.records:
            convert = _CONVERTERS.get(record.event)
            if convert is not None:
                convert(self, record)
        if all(record.event != events.TRAIN_END for record in self.records):
            self._stop(self.records[-1], max(self.records[-1].time_ms, self._last_step_ms()))
        return self.entries

    def add(self, key: str, record: Record, value: object = None, at: int | None = None, **metadata: object) -> None:
        self.entries.append(
            MllogEntry(key, record.time_ms if at is None else at, value, {**_place(record), **metadata})
        )

    def init_start(self, record: Record) -> None:
        self.add("init_start", record)

    def train_start(self, record: Record) -> None:
        """End the initialization, which includes the evaluation of the untrained model, and start the run."""
        self.add("init_stop", record)
        self.add("run_start", record)
        self._next_block(record)

    def epoch_begin(self, record: Record) -> None:
        self.epoch = max(whole(record.value.get("epoch")), 1)
        self.add("epoch_start", record, epoch_num=self.epoch)

    def epoch_end(self, record: Record) -> None:
        self.add("epoch_stop", record, epoch_num=max(whole(record.value.get("epoch")), 1))

    def evaluate(self, record: Record) -> None:
        """Add the start and end of an evaluation; the record was logged at its end and has its duration."""
        seconds = number(record.value.get("time"))
        duration_ms = round(seconds * 1000) if 0 < seconds < math.inf else 0
        previous = self.entries[-1].time_ms if self.entries else record.time_ms
        # Rounding must not move the start before the previous line.
        begin = min(max(record.time_ms - duration_ms, previous), record.time_ms)
        self.samples = whole(record.value.get("samples")) // self.size
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
        trained = (_trained(self.outcome) or 0) // self.size
        if trained > self.samples:
            self.samples = trained
            self._end_block(record, at)
        status = "success" if has_converged(self.outcome) else "aborted"
        self.add("run_stop", record, at=at, status=status, samples_count=self.samples, epoch_num=self.epoch)

    def _next_block(self, record: Record) -> None:
        where = {"first_epoch_num": self.epoch, "samples_count": self.samples}
        self.block = (len(self.entries), MllogEntry("block_start", record.time_ms, None, {**_place(record), **where}))

    def _end_block(self, record: Record, at: int) -> None:
        if self.block is not None:
            position, first = self.block
            self.entries.insert(position, first)
            self.block = None
            self.add(
                "block_stop", record, at=at,
                first_epoch_num=first.metadata["first_epoch_num"], samples_count=self.samples,
            )  # fmt: skip

    def _last_step_ms(self) -> int:
        """Return the time of the last logged step, for a training that did not end."""
        start = next(record.time_ms for record in self.records if record.event == events.TRAIN_START)
        last = number(self.outcome.steps[-1].time) if self.outcome.steps else 0.0
        return start + round(last * 1000) if last > 0 else start


_CONVERTERS = {
    events.INIT_START: _EventConverter.init_start,
    events.TRAIN_START: _EventConverter.train_start,
    events.EPOCH_BEGIN: _EventConverter.epoch_begin,
    events.EPOCH_END: _EventConverter.epoch_end,
    events.EVALUATE: _EventConverter.evaluate,
    events.TRAIN_END: _EventConverter.train_end,
}


def _trained(outcome: Outcome) -> int | None:
    return outcome.work.samples or (outcome.steps[-1].samples if outcome.steps else None)


def _place(record: Record) -> dict[str, object]:
    return {"file": record.file, "lineno": record.lineno}
