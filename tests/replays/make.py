"""Make the replays: small round directories, good and bad, as a round leaves them.

Run ``python tests/replays/make.py`` from the repository's root after a change of the log's format; the
files are the same every time. Each replay's ``expected.json`` names the verdicts that must fail of it.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from flagperf_driver import events, perflog  # noqa: E402

START_MS = 1_700_000_000_000
BATCH = 32
LOG_EVERY = 10
EVAL_EVERY = 50
STEP_S = 0.02
EVAL_S = 0.5
INIT_S = 2.5
Json = dict[str, Any]
Entry = tuple[float, str, Json]


@dataclass(frozen=True)
class Training:
    """A training as one would like it; each replay says where it differs."""

    name: str
    nproc: int = 1
    steps: int = 200
    target: float | None = 0.9
    last: float = 0.93
    loss_at: Callable[[int], float] = lambda step: 2.3 * math.exp(-step / 80) + 0.1
    converged: bool | None = None
    synthetic: bool = False
    throughput_only: bool = False
    state: str = "finished"
    fault: Json | None = None
    exits: tuple[Json, ...] = ()
    edit: Callable[[int, list[Entry]], list[Entry]] = lambda rank, entries: entries
    text: Callable[[int, list[str]], list[str]] = lambda rank, lines: lines
    finished: Callable[[Json], Json] = lambda value: value
    direction: str = "higher"
    unconverged: tuple[str, ...] = ()
    """The verdicts of ``converges`` that must fail: written here by hand, never computed."""
    unsound: tuple[str, ...] = ()
    """The same of ``throughput``."""

    def accuracy(self, step: int) -> float:
        return round(self.last * (1 - math.exp(-step / 40)), 4)


def entries(training: Training) -> Iterator[Entry]:
    """The events of one rank with the seconds since its start."""
    per_step = BATCH * training.nproc
    yield 0.0, events.INIT_START, {}
    yield INIT_S, events.INIT_END, _init_end(training)
    now, evals = INIT_S, 0
    if not training.throughput_only:
        evals, now = 1, now + EVAL_S
        untrained = {"step": 0, "samples": 0, "time": EVAL_S, "top1": 0.1}
        yield now, events.INIT_EVALUATION, untrained
    yield now, events.TRAIN_START, {}
    start = now
    accuracy = 0.1
    for step in range(1, training.steps + 1):
        now += STEP_S
        if step == 1:
            yield now, events.STEP_BEGIN, {"step": 1}
        if step % LOG_EVERY == 0:
            yield now, events.STEP_END, _step_end(training, step, per_step)
        if step % EVAL_EVERY == 0 and not training.throughput_only:
            evals, now, accuracy = evals + 1, now + EVAL_S, training.accuracy(step)
            yield (
                now,
                events.EVALUATE,
                {"step": step, "samples": step * per_step, "time": EVAL_S, "top1": accuracy},
            )
    yield now, events.TRAIN_END, {"reason": _reason(training)}
    yield now + 0.1, events.FINISHED, training.finished(_finished(training, now + 0.1, now - start, accuracy))


def _init_end(training: Training) -> Json:
    return {
        "init_time": INIT_S,
        "parameters": 123456,
        "device": "a processor",
        "framework_version": "2.9.1",
        "libraries": {"somelib": "1.2.3"},
        "precision": "fp32",
        "world_size": training.nproc,
        "replaced": [],
        "compile": False,
    }


def _step_end(training: Training, step: int, per_step: int) -> Json:
    return {
        "step": step,
        "epoch": 1 + step // 100,
        "samples": step * per_step,
        "loss": round(training.loss_at(step), 5),
        "learning_rate": 0.001,
        "step_time": STEP_S,
        "throughput": per_step / STEP_S,
        "input_wait": 0.01,
    }


def _finished(training: Training, now: float, train: float, accuracy: float) -> Json:
    per_step, measured = BATCH * training.nproc, training.steps - 5
    samples = training.steps * per_step
    evals = 0.0 if training.throughput_only else EVAL_S * (training.steps // EVAL_EVERY)
    waited = 0.001 * training.steps
    no_eval = train - evals
    converged = training.converged
    if converged is None:
        converged = not training.throughput_only and training.target is not None and accuracy >= training.target
    return {
        "e2e_time": round(now, 4),
        "init_time": INIT_S,
        "raw_train_time": round(train, 4),
        "train_no_eval_time": round(no_eval, 4),
        "pure_training_computing_time": round(no_eval - waited, 4),
        "converged": converged,
        "stop_reason": _reason(training),
        "final_loss": round(training.loss_at(training.steps), 5),
        "final_metrics": {} if training.throughput_only else {"top1": accuracy},
        "samples": samples,
        "steps": training.steps,
        "epochs": 2,
        "p_whole": samples / train,
        "p_train": samples / no_eval,
        "p_core": samples / (no_eval - waited),
        "timing": "host clock",
        "warmup_steps": 5,
        "measured_steps": measured,
        "measured_samples": measured * per_step,
        "step_time": {"mean": STEP_S, "p50": STEP_S, "p90": STEP_S * 1.1, "p99": STEP_S * 1.3},
        "input_wait_time": waited,
        "eval_time": evals,
        "compile_time": 0.0,
        "peak_memory_bytes": 300 * 2**20,
        "threads": 1,
    }


def _reason(training: Training) -> str:
    if training.throughput_only:
        return "throughput"
    reached = training.target is not None and training.accuracy(training.steps) >= training.target
    return "target" if reached else "max_steps"


def lines(training: Training, rank: int) -> list[str]:
    found = [
        perflog.format_record(perflog.Record(event, value, START_MS + round(at * 1000), rank, "loop.py", 100))
        for at, event, value in training.edit(rank, list(entries(training)))
    ]
    return training.text(rank, ["a library says hello", *found])


def plan(training: Training) -> Json:
    case = f"toy:pytorch:CPU:1:{training.nproc}:1"
    return {
        "schema": 1, "case": case, "model": "toy", "framework": "pytorch", "vendor": "cpu", "hardware": "CPU",
        "nnodes": 1, "nproc": training.nproc, "round": 1, "seed": 42, "scale": "small",
        "synthetic": training.synthetic, "throughput_only": training.throughput_only,
        "metric": {
            "name": "top1", "direction": training.direction, "unit": "fraction", "target": training.target,
        },
        "sample_unit": "images", "device": "cpu", "backend": "gloo", "torch_plugin": None, "data_dir": None,
        "extern": None,
        "config": {"train_batch_size": BATCH, "gradient_accumulation_steps": 1, "learning_rate": 0.001},
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
            {"name": "localhost", "address": "127.0.0.1", "noderank": 0, "devices": [*range(training.nproc)]},
        ],
        "runtime": "venv", "python": "3.11", "launcher": "env",
        "fingerprint": {"key": f"key-{training.nproc}", "one_card_key": "key-1"}, "argv": {}, "manifest": [],
    }  # fmt: skip


def end(training: Training) -> Json:
    good = {"code": 0, "signal": None, "cause": None}
    exits = training.exits or (good,) * training.nproc
    ranks = [{"rank": rank, **ended} for rank, ended in enumerate(exits)]
    return {
        "schema": 1,
        "state": training.state,
        "fault": training.fault,
        "started_ms": START_MS - 500,
        "ended_ms": START_MS + 12_000,
        "hosts": [{"name": "localhost", "noderank": 0, "ranks": ranks}],
    }


def _files(training: Training) -> dict[str, Json]:
    expected = {"converges": list(training.unconverged), "throughput": list(training.unsound)}
    return {"plan.json": plan(training), "round.json": end(training), "expected.json": expected}


def write(training: Training, into: Path) -> Path:
    """The replay's directory, made anew."""
    directory = into / training.name
    shutil.rmtree(directory, ignore_errors=True)
    logs = directory / "localhost_noderank0"
    logs.mkdir(parents=True)
    for name, body in _files(training).items():
        (directory / name).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    for rank in range(training.nproc):
        text = "\n".join(lines(training, rank)) + "\n"
        (logs / f"rank{rank}.out.log").write_bytes(text.encode("utf-8", "surrogateescape"))
    return directory


def until(step: int, *extra: Entry) -> Callable[[list[Entry]], list[Entry]]:
    """The events before this step's, and others after them."""

    def cut(found: list[Entry]) -> list[Entry]:
        kept: list[Entry] = []
        for entry in found:
            if entry[2].get("step", 0) >= step or entry[1] in (events.TRAIN_END, events.FINISHED):
                break
            kept.append(entry)
        return [*kept, *extra]

    return cut


def only(rank: int, change: Callable[[list[Any]], list[Any]]) -> Callable[[int, list[Any]], list[Any]]:
    return lambda this, found: change(found) if this == rank else found


def every(change: Callable[[list[Any]], list[Any]]) -> Callable[[int, list[Any]], list[Any]]:
    return lambda this, found: change(found)


def mangled(found: list[str]) -> list[str]:
    """What a full disk, two writers and a chatty library do to a log."""
    third = next(i for i, line in enumerate(found) if '"step": 30' in line)
    merged = found[third][:60] + found[third + 1]
    noise = [
        '[PerfLog] {"event": "STEP_END", "value": {"step": 9',
        "\x00\x01 not text \udcff",
        "[PerfLog] null",
    ]
    head, rest = found[:third], found[third + 2 :]
    prefixed = [f"[rank0]: {line}" if '"step": 60' in line else line for line in rest]
    return [*head, merged, *noise, "progress 50%\rprogress 60%", *prefixed]


STOPPED = {"code": None, "signal": "SIGTERM", "cause": "stopped"}
GOOD = {"code": 0, "signal": None, "cause": None}
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "run_pretraining.py", line 3, in <module>',
    "    import something_missing",
    "ModuleNotFoundError: No module named 'something_missing'",
]


def _fault(kind: str, rank: int, sentence: str, last_lines: Iterable[str] = ()) -> Json:
    return {
        "kind": kind,
        "host": "localhost",
        "rank": rank,
        "sentence": sentence,
        "last_lines": list(last_lines),
    }


def _crashed() -> Training:
    failed = (
        2.6,
        events.FAILED,
        {"type": "ModuleNotFoundError", "error": "No module named 'something_missing'"},
    )
    return Training(
        "crashed_rank",
        unconverged=("finished",),
        unsound=("finished",),
        nproc=2,
        state="failed",
        fault=_fault("crash", 1, "rank 1 ended with exit code 1", TRACEBACK),
        exits=(STOPPED, {"code": 1, "signal": None, "cause": "crash"}),
        edit=lambda rank, found: [found[0], failed] if rank == 1 else found[:2],
        text=only(1, lambda found: [*found, *TRACEBACK]),
    )


TRAININGS = [
    Training("converged_1x1"),
    Training("converged_1x2", nproc=2),
    Training("missed_target", unconverged=("target",), last=0.88),
    Training(
        "nan_loss",
        unconverged=("loss_finite",),
        loss_at=lambda step: math.nan if step >= 120 else 2.3 * math.exp(-step / 80),
        finished=lambda value: {**value, "final_loss": math.nan},
    ),
    Training("nan_metric", unconverged=("target",), last=math.nan),
    Training(
        "missing_finished",
        unconverged=("finished",),
        unsound=("finished",),
        nproc=2,
        state="failed",
        fault=_fault("unfinished", 1, "rank 1 ended without a FINISHED line"),
        edit=only(1, lambda found: [entry for entry in found if entry[1] != events.FINISHED]),
        text=only(1, lambda found: [*found, "terminate called without an active exception"]),
    ),
    _crashed(),
    Training(
        "killed_rank",
        unconverged=("finished",),
        unsound=("finished",),
        nproc=2,
        state="failed",
        fault=_fault("crash", 1, "rank 1 was killed by SIGKILL (out of memory, or somebody's kill -9)"),
        exits=(STOPPED, {"code": None, "signal": "SIGKILL", "cause": "crash"}),
        edit=every(until(80)),
    ),
    Training(
        "hang",
        unconverged=("finished",),
        unsound=("finished",),
        nproc=2,
        state="failed",
        fault=_fault("hang", 0, "rank 0 made no progress for 300 s at step 70: it hangs"),
        exits=({"code": None, "signal": "SIGKILL", "cause": "hang"}, STOPPED),
        edit=every(until(80)),
    ),
    Training("synthetic", unconverged=("real_data",), synthetic=True),
    Training("throughput_only", unconverged=("real_data", "target"), throughput_only=True, steps=55, target=0.9),
    Training("mangled_log", text=every(mangled)),
    Training("claims_too_much", unconverged=("target", "agrees"), last=0.88, converged=True),
    Training(
        "too_few_steps",
        unconverged=("real_data", "target"),
        unsound=("measured_steps",),
        steps=10,
        throughput_only=True,
    ),
    Training(
        "samples_amiss",
        unsound=("samples",),
        finished=lambda value: {**value, "samples": value["samples"] // 2},
    ),
    Training("faster_than_light", unsound=("mfu",), finished=lambda value: {**value, "p_core": 2e9}),
    Training("p_core_missing", unsound=("p_core",), finished=lambda value: {**value, "p_core": None}),
    Training(
        "interrupted",
        unconverged=("finished",),
        unsound=("finished",),
        state="interrupted",
        exits=(STOPPED,),
        edit=every(until(80)),
    ),
]


def main() -> None:
    for training in TRAININGS:
        print(write(training, HERE))


if __name__ == "__main__":
    main()
