"""Rounds as they leave their files, made up: what replays and runs of many cases are recorded from.

Everything depends only on the parameters, so that the same recording is the same bytes every time.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flagperf_driver import events, perflog
from flagperf_driver.layout import MILESTONE_TIMES
from flagperf_driver.node.agent.milestones import MILESTONES
from flagperf_driver.node.sampling import devices
from flagperf_driver.node.sampling import host_counters as hosts
from flagperf_driver.perflog import Names

PCI = "12ab:0001"
"""The id of the chip's devices."""
START_MS = 1_700_000_000_000
BATCH = 32
WARMUP = 5
CONFIG = {
    "train_batch_size": BATCH,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.001,
    "timing_warmup_steps": WARMUP,
}
LEFT_OUT = {"waiting": 0.25, "evaluation": 3.0, "summarizing": 0.3, "rest": 0.1}
LOCALHOST = {"name": "localhost", "address": "127.0.0.1"}
Json = dict[str, Any]
Entry = tuple[float, str, Json]


@dataclass(frozen=True)
class Sampling:
    """The samples of each host: by default of eight devices, busy during the training."""

    devices: int = 8
    every_s: float = 1.0
    watts: float = 620.0
    memory_mib: int = 143_771
    throttle: Callable[[int, float], str] = lambda device, share: "none"
    """By device and share of the round that is over."""
    clock: Callable[[int, float], int] = lambda device, share: 1980
    left_out: Callable[[float], bool] = lambda share: False
    edit: Callable[[str, list[str]], list[str]] = lambda name, rows: rows
    """By file, host or devices: its rows, the header first."""
    report: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Training:
    """A training as one would like it; each recording says where it differs."""

    name: str
    nproc: int = 1
    steps: int = 200
    target: float | None = 0.9
    last: float = 0.93
    loss_at: Callable[[int], float] = lambda step: 2.3 * math.exp(-step / 80) + 0.1
    converged: bool | None = None
    reason: str | None = None
    """Why it stopped; None: what follows from the rest."""
    synthetic: bool = False
    throughput_only: bool = False
    state: str = "finished"
    fault: Json | None = None
    exits: tuple[Json, ...] = ()
    edit: Callable[[int, list[Entry]], list[Entry]] = lambda rank, entries: entries
    text: Callable[[int, list[str]], list[str]] = lambda rank, lines: lines
    finished: Callable[[Json], Json] = lambda value: value
    accuracy_at: Callable[[int], float] | None = None
    nnodes: int = 1
    model: str = "toy"
    metric: str = "top1"
    sample_unit: str = "images"
    vendor: str = "cpu"
    hardware: str = "CPU"
    scale: str = "small"
    device: str = "a processor"
    precision: str = "fp32"
    round: int = 1
    rounds: int = 1
    started_ms: int = START_MS
    step_s: float = 0.02
    eval_s: float = 0.5
    init_s: float = 2.5
    log_every: int = 10
    eval_every: int = 50
    speed_at: Callable[[int], float] = lambda step: 1.0
    """A step's speed against the usual one; it shows in what is logged, and not in how long the training takes."""
    plan_fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the plan."""
    hosts: tuple[Json, ...] = (LOCALHOST,)
    sampling: Sampling | None = None
    token: str | None = None
    """With one it is a round as they are now: its logs repeat what the ranks were given, and the agents saw them."""

    @property
    def case(self) -> str:
        return f"{self.model}:pytorch:{self.hardware}:{self.nnodes}:{self.nproc}:{self.rounds}"

    @property
    def cards(self) -> int:
        return self.nnodes * self.nproc

    @property
    def per_step(self) -> int:
        return BATCH * self.cards

    @property
    def seconds(self) -> float:
        evals = 0 if self.throughput_only else 1 + self.steps // self.eval_every
        return self.init_s + self.steps * self.step_s + evals * self.eval_s + 0.1

    def offset_s(self, noderank: int) -> float:
        """How far that host's clock is ahead."""
        return float(self.hosts[noderank].get("clock_offset_s", 0.0))

    def accuracy(self, step: int) -> float:
        return round(self.accuracy_at(step) if self.accuracy_at else self.last * (1 - math.exp(-step / 40)), 4)


def entries(training: Training) -> Iterator[Entry]:
    """The events of one rank with the seconds since its start."""
    init_s, eval_s = training.init_s, training.eval_s
    yield 0.0, events.INIT_START, {}
    yield init_s, events.INIT_END, _init_end(training)
    now = init_s
    if not training.throughput_only:
        now += eval_s
        untrained = {"step": 0, "samples": 0, "time": eval_s, training.metric: 0.1}
        yield now, events.INIT_EVALUATION, untrained
    yield now, events.TRAIN_START, {}
    start = now
    accuracy = 0.1
    for step in range(1, training.steps + 1):
        now += training.step_s
        if step == 1:
            yield now, events.STEP_BEGIN, {"step": 1}
        if step % training.log_every == 0 or step == training.steps:
            yield now, events.STEP_END, _step_end(training, step)
        if step % training.eval_every == 0 and not training.throughput_only:
            now, accuracy = now + eval_s, training.accuracy(step)
            yield (
                now,
                events.EVALUATE,
                {"step": step, "samples": step * training.per_step, "time": eval_s, training.metric: accuracy},
            )
    yield now, events.TRAIN_END, {"reason": _reason(training)}
    yield now + 0.1, events.FINISHED, training.finished(_finished(training, now + 0.1, now - start, accuracy))


def _init_end(training: Training) -> Json:
    return {
        "init_time": training.init_s, "parameters": 123456, "device": training.device, "framework_version": "2.9.1",
        "libraries": {"somelib": "1.2.3"}, "precision": training.precision, "world_size": training.cards,
        "replaced": [], "compile": False, **({"given": given(training)} if training.token else {}),
    }  # fmt: skip


def given(training: Training) -> Json:
    """What INIT_END repeats."""
    seed = 41 + training.round
    return {"case": training.case, "round": training.round, "seed": seed, "token": training.token}


def _step_end(training: Training, step: int) -> Json:
    step_time = training.step_s / training.speed_at(step)
    return {
        "step": step, "epoch": 1 + step // 100, "samples": step * training.per_step,
        "loss": round(training.loss_at(step), 5), "learning_rate": 0.001, "step_time": step_time,
        "throughput": training.per_step / step_time, "input_wait": round(0.001 * training.log_every, 4),
    }  # fmt: skip


def _finished(training: Training, now: float, train: float, accuracy: float) -> Json:
    per_step, measured, step_s = training.per_step, training.steps - WARMUP, training.step_s
    samples = training.steps * per_step
    evals = 0.0 if training.throughput_only else training.eval_s * (training.steps // training.eval_every)
    waited = 0.001 * training.steps
    no_eval = train - evals
    converged = training.converged
    if converged is None:
        converged = not training.throughput_only and training.target is not None and accuracy >= training.target
    return {
        "e2e_time": round(now, 4), "init_time": round(now - 0.1 - train, 4), "raw_train_time": round(train, 4),
        "train_no_eval_time": round(no_eval, 4), "pure_training_computing_time": round(no_eval - waited, 4),
        "converged": converged, "stop_reason": _reason(training),
        "final_loss": round(training.loss_at(training.steps), 5),
        "final_metrics": {} if training.throughput_only else {training.metric: accuracy}, "samples": samples,
        "steps": training.steps, "epochs": 2, "p_whole": samples / train, "p_train": samples / no_eval,
        "p_core": samples / (no_eval - waited), "timing": "host clock", "warmup_steps": WARMUP,
        "measured_steps": measured, "measured_samples": measured * per_step,
        "step_time": {"mean": step_s, "p50": step_s, "p90": step_s * 1.1, "p99": step_s * 1.3},
        "forward_time": step_s / 3, "input_wait_time": waited,
        **(_parts(training, no_eval, evals) if training.token else {}), "eval_time": evals, "compile_time": 0.0,
        "peak_memory_bytes": 300 * 2**20, "threads": 1,
    }  # fmt: skip


def _parts(training: Training, no_eval: float, evals: float) -> Json:
    """The figures of newer rounds; a tenth of an evaluation is not the model's time."""
    model_s = 0.9 * evals
    samples = round(model_s / (training.step_s / 3 / BATCH))
    return {
        "windows_time": round(no_eval, 4), "eval_model_time": model_s, "eval_samples": samples,
        "check_time": 0.0, "save_time": 0.0,
    }  # fmt: skip


def _reason(training: Training) -> str:
    if training.reason is not None:
        return training.reason
    if training.throughput_only:
        return "throughput"
    reached = training.target is not None and training.accuracy(training.steps) >= training.target
    return "target" if reached else "max_steps"


def lines(training: Training, rank: int) -> list[str]:
    start = training.started_ms + round(training.offset_s(rank // training.nproc) * 1000)
    names = Names(training.metric, "", training.sample_unit)
    found = [
        perflog.format_record(
            perflog.Record(
                event, names.with_original_names(event, value), start + round(at * 1000), rank, "loop.py", 100
            )
        )
        for at, event, value in training.edit(rank, list(entries(training)))
    ]
    return training.text(rank, ["a library says hello", *found])


def plan(training: Training) -> Json:
    cards = training.cards
    body = {
        "schema": 1, "case": training.case, "model": training.model, "framework": "pytorch",
        "vendor": training.vendor, "hardware": training.hardware,
        "nnodes": training.nnodes, "nproc": training.nproc, "round": training.round, "seed": 41 + training.round,
        "scale": training.scale, "synthetic": training.synthetic, "throughput_only": training.throughput_only,
        "metric": {
            "name": training.metric, "direction": "higher", "unit": "fraction", "target": training.target,
            "range": [0.0, 1.0], "loss_range": None, "original_name": "",
        },
        **({"left_out": LEFT_OUT} if training.token else {}),
        "sample_unit": training.sample_unit, "device": "cpu", "backend": "gloo", "modules": [], "data_dir": None,
        "device_module": None, "extern": None,
        "config": CONFIG,
        "values": {
            "learning_rate": {
                "value": 0.001, "file": "suites/toy/pytorch/config/_base.py", "line": 3, "layer": "suite",
            },
            "train_batch_size": {
                "value": BATCH, "file": "vendors/cpu/toy-pytorch/config/config_CPUx1x1.py", "line": 1,
                "layer": "vendor",
            },
        },
        "deviations": [
            {"key": "train_batch_size", "value": BATCH, "reference": 64,
             "file": "vendors/cpu/toy-pytorch/config/config_CPUx1x1.py", "line": 1},
        ],
        "flops_per_sample": 1e6, "peak_tflops": 0.1, "min_efficiency": 0.6, "scaling": "weak",
        "hosts": [
            {**host, "noderank": number, "devices": [*range(training.nproc)]}
            for number, host in enumerate(training.hosts)
        ],
        "runtime": "venv", "python": "3.11",
        "fingerprint": {"key": f"key-{cards}", "one_card_key": "key-1"}, "argv": {}, "manifest": [],
    }  # fmt: skip
    return {**body, **({"token": training.token} if training.token else {}), **training.plan_fields}


def end(training: Training) -> Json:
    good = {"code": 0, "signal": None, "cause": None}
    exits = training.exits or (good,) * training.cards
    ranks = [{"rank": rank, **ended} for rank, ended in enumerate(exits)]
    nproc = training.nproc
    return {
        "schema": 1,
        "state": training.state,
        "fault": training.fault,
        "started_ms": training.started_ms - 500,
        "ended_ms": training.started_ms + max(12_000, round(training.seconds * 1000) + 500),
        "hosts": [
            {"name": host["name"], "noderank": number, "ranks": ranks[number * nproc : (number + 1) * nproc]}
            for number, host in enumerate(training.hosts)
        ],
        **({"seconds": round(training.seconds + 0.6, 3)} if training.token else {}),
    }


def seen(training: Training, noderank: int) -> Json:
    """What the host's agent saw, a tenth of a second around each record's true time."""
    start_ms = training.started_ms + round(training.offset_s(noderank) * 1000)

    def moment(at: float) -> list[float]:
        return [round(5000 + at, 4), start_ms + round(at * 1000)]

    written = {event: at for at, event, _ in reversed(list(entries(training))) if event in MILESTONES}
    of_rank: Json = {event: {"after": moment(at - 0.1), "by": moment(at + 0.1)} for event, at in written.items()}
    first, *others = range(noderank * training.nproc, (noderank + 1) * training.nproc)
    its = {"started": moment(-0.05), **of_rank}
    sums = _sums(training, first)
    return {"schema": 1, "ranks": {str(first): {**its, **sums}, **{str(rank): its for rank in others}}}


def _sums(training: Training, rank: int) -> Json:
    """The agent's sums over the records of a host's first rank, known to half a second."""
    found = list(entries(training))
    at = {event: when for when, event, _ in found}
    if events.TRAIN_END not in at:
        return {}
    train = at[events.TRAIN_END] - at[events.TRAIN_START]
    evals = sum(its["time"] for _, event, its in found if event == events.EVALUATE)
    moved = (abs(when - by[0]) for by, (when, _, _) in zip(found, training.edit(rank, found), strict=False))
    sums = {"steps": train - evals, "evaluations": evals}
    return {
        **{name: [max(sum_ - 0.5, 0.0), sum_ + 0.5] for name, sum_ in sums.items()},
        "off_s": max(*moved, 0.1) - 0.1,
    }


def host_rows(training: Training, sampling: Sampling, noderank: int) -> Iterator[str]:
    yield ",".join(hosts.COLUMNS)
    for when, share in _times(training, sampling, noderank):
        cpu, memory = 0.12 + 0.05 * _wave(share, 31), 0.2 + 0.1 * min(share * 10, 1)
        net = 9e8 * _busy(training, share) * (training.nnodes - 1)
        cells = [f"{cpu:.4f}", f"{memory:.4f}", f"{net:.0f}", f"{net:.0f}", "", "", f"{4e7 * cpu:.0f}", "0", "", ""]
        yield ",".join([f"{when:.4f}", *cells])


def device_rows(training: Training, sampling: Sampling, noderank: int) -> Iterator[str]:
    yield ",".join(devices.COLUMNS)
    joules = [1e6 + 1e3 * device for device in range(sampling.devices)]
    before = None
    for when, share in _times(training, sampling, noderank):
        intervals, before = 1 if before is None else round((when - before) / sampling.every_s), when
        busy = _busy(training, share)
        for device in range(sampling.devices):
            mine = busy * (device < training.nproc)
            shake = _wave(share, 40 + 3 * device)
            watts = 75 + mine * (sampling.watts - 75 + 12 * shake)
            joules[device] += watts * sampling.every_s * intervals
            cells = [
                f"{31 + device + mine * (64 - 31) * min(1, share * 4) + shake:.0f}", f"{watts:.1f}",
                f"{600 + mine * 81_000:.0f}", f"{sampling.memory_mib}", f"{mine * (96 + 3 * shake):.0f}",
                f"{sampling.clock(device, share) if mine else 345}", "2619",
                sampling.throttle(device, share), f"{joules[device]:.3f}",
            ]  # fmt: skip
            yield ",".join([f"{when:.4f}", str(device), *cells])


def _times(training: Training, sampling: Sampling, noderank: int) -> Iterator[tuple[float, float]]:
    """By the host's own clock, with the share of the round that is over then."""
    start = training.started_ms / 1000 - 0.4 + training.offset_s(noderank)
    whole = training.seconds + 0.8
    for number in range(int(whole / sampling.every_s) + 1):
        share = number * sampling.every_s / whole
        if not sampling.left_out(share):
            yield start + number * sampling.every_s, share


def _busy(training: Training, share: float) -> float:
    at = share * (training.seconds + 0.8) - 0.4
    return 1.0 if training.init_s <= at <= training.seconds else 0.0


def _wave(share: float, times: float) -> float:
    return math.sin(2 * math.pi * share * times)


def write(training: Training, directory: Path) -> Path:
    """The round's directory, made anew."""
    shutil.rmtree(directory, ignore_errors=True)
    for noderank, where in enumerate(training.hosts):
        folder = directory / f"{where['name']}_noderank{noderank}"
        folder.mkdir(parents=True)
        for rank in range(noderank * training.nproc, (noderank + 1) * training.nproc):
            text = "\n".join(lines(training, rank)) + "\n"
            (folder / f"rank{rank}.out.log").write_bytes(text.encode("utf-8", "surrogateescape"))
        if training.token:
            write_json(folder / MILESTONE_TIMES, seen(training, noderank))
        if training.sampling:
            _write_samples(training, training.sampling, noderank, folder)
    write_json(directory / "plan.json", plan(training))
    write_json(directory / "round.json", end(training))
    return directory


def _write_samples(training: Training, sampling: Sampling, noderank: int, folder: Path) -> None:
    for name, rows in (("host", host_rows), ("devices", device_rows)):
        text = "".join(f"{row}\n" for row in sampling.edit(name, [*rows(training, sampling, noderank)]))
        (folder / f"{name}.series.csv").write_text(text, encoding="utf-8")
    if sampling.report:
        write_json(folder / "monitors.json", sampling.report)


def write_json(path: Path, body: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
