"""The training loop with a trainer that needs no framework: when it logs, evaluates, stops and continues."""

from __future__ import annotations

import base64
import inspect
import io
import itertools
import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flagperf_driver import driver, perflog
from flagperf_driver.heartbeat import PHASES, Heartbeat
from flagperf_driver.training import expert_load, timeline
from flagperf_driver.training.checkpoint import CheckpointError, Checkpoints
from flagperf_driver.training.checkpoint_interval import CheckpointInterval, interval_s
from flagperf_driver.training.checks import replicas
from flagperf_driver.training.checks.drawn_steps import DrawnSteps, secret
from flagperf_driver.training.due import MAX_WINDOW
from flagperf_driver.training.evaluation import Loading
from flagperf_driver.training.loop import DataError, NonFiniteLoss, Training
from flagperf_driver.training.profile import Activity, Profiler, Recording, StepBytes
from flagperf_driver.training.profiled_steps import HOST_STEPS, MOST_ACTIVITIES
from flagperf_driver.training.progress import TrainingProgress
from flagperf_driver.training.steps import MOST_PIXELS, Drawings
from flagperf_driver.training.timeline import EventMarks, HostMarks, Marks, StepWindow, Timeline
from flagperf_driver.training.trainer import EvaluationError, RankEvaluation, Trainer
from flagperf_driver.training.weight_decay import without_decay
from tests.driver.frameworks.toy_data import case
from tests.helpers import recording
from tests.helpers.loop_figures import contradictions

BATCHES = 10
"""Batches in an epoch, of 32 samples each."""
THROUGHPUT: dict[str, Any] = {"throughput_only": True, "timing_warmup_steps": 2, "throughput_steps": 4}


class Clock:
    """Marks of a device that needs 1 s from each mark to the next."""

    name = "test clock"

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        self.now += 1.0
        return self.now

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [after - before for before, after in itertools.pairwise(marks)]


class Exchange:
    """What the ranks of a training exchange, each in its thread; all must exchange the same sort of values."""

    def __init__(self, ranks: int = 1) -> None:
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._values: list[Any] = [None] * ranks

    def gather(self, rank: int, sort: str, value: Any) -> list[Any]:
        self._values[rank] = sort, value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        assert all(other == sort for other, _ in values), f"rank {rank} exchanges {sort}: {values}"
        return [value for _, value in values]


class CountingTrainer:
    """Its weight grows by 1 with each batch; the accuracy is a thousandth of the weight."""

    def __init__(
        self,
        rank: driver.Rank,
        batches: int = BATCHES,
        nan_at: int | None = None,
        profiler: Profiler | None = None,
        exchange: Exchange | None = None,
        writing: Callable[[CountingTrainer], object] = lambda _: None,
        damaged_at: int | None = None,
        loads: Iterable[list[list[float]]] = (),
        any_ranks: bool = False,
        marks: Marks | None = None,
        share: RankEvaluation | None = None,
    ) -> None:
        self._loads, self._any_ranks = iter(loads), any_ranks
        self.progress = TrainingProgress()
        self.marks: Marks = marks or Clock()
        self.learning_rate = 0.0
        self.compiles = False
        self.repeater: Any = None
        self.step_bytes: Callable[[Callable[[], object]], StepBytes] | None = self._count_bytes
        self.weight = 0
        self.weights_digests: Callable[[], Mapping[str, str]] = lambda: {replicas.WHOLE: str(self.weight)}
        self.accumulation: int = rank.config.gradient_accumulation_steps
        self.epochs: list[tuple[int, int]] = []
        self.read_steps: list[int] = []
        self._window: list[float] = []
        self._batches, self._nan_at = batches, nan_at
        self.profiler_of_device = profiler
        self.stepped, self._writing = threading.Event(), writing
        self._rank, self._exchange = rank.world.rank, exchange or Exchange()
        self._damaged_at = damaged_at
        self._share = share
        self.summarized: list[list[Any]] = []

    def describe(self) -> Mapping[str, Any]:
        return {"parameters": 1, "any_ranks": self._any_ranks}

    def changed_at_rest(self) -> tuple[str, int] | None:
        return None

    def epoch(self, number: int, start: int) -> Iterator[int]:
        self.epochs.append((number, start))
        return iter(range(start, self._batches))

    def step(self, first: Any, more: Iterator[Any], timeline: Timeline) -> int | None:
        batches = list(itertools.islice(itertools.chain([first], more), self.accumulation))
        for _ in batches:
            timeline.begin()
            timeline.begin_backward()
            timeline.end()
        if len(batches) < self.accumulation:
            timeline.drop()
            return None
        self._exchange.gather(self._rank, "gradients", None)
        self.stepped.set()
        self.weight += self.accumulation + (self.progress.step + 1 == self._damaged_at)
        self.learning_rate = 0.5
        step = self.progress.step + 1
        self._window.append(math.nan if step == self._nan_at else 1.0 / step)
        return 32 * self.accumulation

    def losses(self, steps: int) -> list[float]:
        self.read_steps.append(steps)
        losses, self._window = self._window[-steps:], []
        return losses

    def step_figures(self) -> Mapping[str, float]:
        load = next(self._loads, None)
        return {} if load is None else expert_load.figures(load, self.total)

    def evaluate(self, beat: Callable[[], None]) -> RankEvaluation:
        beat()
        return self._share or RankEvaluation(sums=[float(self.weight), 1000.0])

    def summarize(self, results: list[Any]) -> dict[str, float]:
        self.summarized.append(results)
        return {"accuracy": results[0] / results[-1], "half": results[0] / results[-1] / 2}

    def total(self, values: Sequence[float]) -> list[float]:
        return [sum(column) for column in zip(*self._exchange.gather(self._rank, "totals", values), strict=True)]

    def gather(self, value: Any) -> list[Any]:
        return self._exchange.gather(self._rank, "values", value)

    def synchronize(self) -> None: ...

    def peak_memory(self) -> int | None:
        return 1024

    def profiler(self) -> Profiler | None:
        return self.profiler_of_device

    def _count_bytes(self, step: Callable[[], object]) -> StepBytes:
        step()
        if self._rank == 0 and self.profiler_of_device is UNCOUNTED:
            raise NotImplementedError("no rule for acme::fused")
        return StepBytes(64.0, None, 16.0)

    def threads(self) -> int:
        return 1

    def copy_state(self) -> Callable[[Path], None]:
        copied = str(self.weight)
        self.stepped.clear()

        def write(folder: Path) -> None:
            self._writing(self)
            if self._rank == 0:
                (folder / "weight").write_text(copied)

        return write

    def load_state(self, folder: Path) -> None:
        self.weight = int((folder / "weight").read_text())


OF_TRAINER = inspect.signature(CountingTrainer).parameters.keys()


class Run:
    """One training and its records; ``settings`` are those of the case and of the trainer."""

    def __init__(self, training: str = "run1 a", world: driver.World | None = None, **settings: Any) -> None:
        stream = io.StringIO()
        of_trainer = {name: settings.pop(name) for name in OF_TRAINER & settings.keys()}
        run_case = driver.RunCase.from_json({**case("pytorch", **settings), "training": training})
        rank = driver.Rank(run_case, world or driver.World(), perflog.PerfLog(0, stream), Heartbeat(None))
        self.trainer = CountingTrainer(rank, **of_trainer)
        trainer: Trainer = self.trainer
        self.error: Exception | None = None
        try:
            Training(rank, trainer).run()
        except (ArithmeticError, ValueError, RuntimeError) as error:
            self.error = error
        self.log = list(perflog.read_records(io.BytesIO(stream.getvalue().encode())))
        self.records = [(record.event, dict(record.value)) for record in self.log]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [value for name, value in self.records if name == event]

    @property
    def finished(self) -> dict[str, Any]:
        assert self.error is None, self.error
        (value,) = self.of("FINISHED")
        return value


def on_ranks(count: int, of_rank: Callable[[int], Mapping[str, Any]] = lambda _: {}, **settings: Any) -> list[Run]:
    """Train on so many ranks, each in its thread; ``of_rank``: the settings of one rank."""
    exchange = Exchange(count)

    def train(rank: int) -> Run:
        world = driver.World(rank, rank, count, count)
        return Run(world=world, exchange=exchange, **{**settings, **of_rank(rank)})

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(train, range(count)))


@pytest.mark.parametrize(
    ("settings", "reason", "steps"),
    [
        ({"max_steps": 7}, "max_steps", 7),
        ({"max_steps": 7, "eval_steps": 3, "target": 0.003}, "target", 3),
        ({"max_steps": 7, "eval_steps": 3, "target": 0.003, "also": {"half": 0.003}}, "target", 6),
        ({"max_steps": 7, "eval_steps": 3, "target": 0.003, "also": {"half": 0.004}}, "max_steps", 7),
        ({"max_steps": None, "max_epochs": 2, "eval_steps": None}, "max_epochs", 2 * BATCHES),
        ({"max_steps": None, "max_samples": 5 * 32}, "max_samples", 5),
        ({"max_steps": None, "max_samples": 5 * 32, "parity_samples": 3 * 32}, "parity", 3),
        ({"max_steps": None, "max_time_s": 0.0}, "deadline", 1),
        ({"throughput_only": True, "timing_warmup_steps": 2, "throughput_steps": 4}, "throughput", 6),
    ],
)
def test_a_training_stops_for_a_reason(settings: dict[str, Any], reason: str, steps: int) -> None:
    run = Run(**settings)
    assert (run.finished["stop_reason"], run.finished["steps"]) == (reason, steps)
    assert run.of("TRAIN_END") == [{"reason": reason}]
    assert run.finished["converged"] is (reason == "target")
    evaluated = [evaluation["step"] for evaluation in run.of("EVALUATE")]
    assert evaluated == [] if reason == "throughput" else evaluated[-1] == steps, "it ends with an evaluation"


def test_steps_have_their_samples_and_throughput_only_and_synthetic_data_never_converge() -> None:
    run = Run(max_steps=None, max_epochs=2, eval_steps=None)
    ends = [(end["step"], end["samples"], end["epoch"]) for end in run.of("STEP_END")]
    assert ends == [(1, 32, 1), (10, 320, 1), (20, 640, 2)]
    assert [end["epoch"] for end in run.of("EPOCH_END")] == [1, 2]
    assert [evaluation["step"] for evaluation in run.of("EVALUATE")] == [10, 20]
    assert Run(throughput_only=True, eval_steps=3).of("INIT_EVALUATION") == []
    late = Run(eval_start_steps=10, eval_at_start=False)
    assert late.of("INIT_EVALUATION") == []
    assert [evaluation["step"] for evaluation in late.of("EVALUATE")] == [12]
    settings: dict[str, Any] = {"target": 0.003, "eval_steps": 6}
    assert Run(**settings).finished["converged"] is True, "the control"
    assert Run(synthetic=True, **settings).finished["converged"] is False


def test_its_figures_agree_with_its_other_records(tmp_path: Path) -> None:
    """Also those of a training that continues from a checkpoint."""
    settings: dict[str, Any] = {"eval_steps": 4, "log_freq": 3, "max_steps": 25, "timing_warmup_steps": 2}
    settings |= {"checkpoint_dir": str(tmp_path), "checkpoint_steps": 7}
    first = Run(nan_at=18, marks=HostMarks(), **settings)
    assert isinstance(first.error, NonFiniteLoss)
    again, whole = (
        Run(marks=HostMarks(), **settings),
        Run(marks=HostMarks(), **{**settings, "checkpoint_dir": str(tmp_path / "b")}),
    )
    assert (bool(again.finished["resumed"]), bool(whole.finished["resumed"])) == (True, False)
    for run in (again, whole):
        assert (run.finished["steps"], run.finished["check_time"]) == (25, 0)
        assert contradictions(run.log, case("pytorch", **settings)["config"]) == []


# 200 steps of 64 samples in 20 ms, four evaluations of 0.5 s: it trains for 6 s, after 3 s.
WRONG: dict[str, dict[str, Any]] = {
    "raw_train_time": {"raw_train_time": 6.3},
    "init_time": {"init_time": 2.7},
    "e2e_time": {"e2e_time": 9.4},
    "train_no_eval_time": {"train_no_eval_time": 4.1},
    "eval_time": {"eval_time": 2.1},
    "pure_training_computing_time": {"pure_training_computing_time": 4.1},
    "p_whole": {"p_whole": 2140.0},
    "p_train": {"p_train": 3210.0},
    "step_time": {"pure_training_computing_time": 3.7},
    "input_wait": {"input_wait_time": 0.25},
    "throughput": {"samples": 12700},
    "step_time.mean": {"step_time": {"mean": 0.021, "p50": 0.02, "p90": 0.02, "p99": 0.02}},
    "step_time.p50": {"step_time": {"mean": 0.02, "p50": 0.045, "p90": 0.045, "p99": 0.045}},
    "p_core": {"p_core": 3500.0},
    "forward_time": {"forward_time": 0.021},
    "samples": {"samples": 12801},
    "measured_samples": {"measured_samples": 12481},
    "last step": {"steps": 201},
    "last samples": {"samples": 12799},
    "measured_steps": {"measured_steps": 196},
    "warmup_steps": {"warmup_steps": 4},
}


def contradicted(folder: Path, **wrong: Any) -> str:
    training = recording.Training("good", finished=lambda end: {**end, **wrong})
    (path,) = recording.write(training, folder).glob("*/rank0.out.log")
    with path.open("rb") as log:
        return "\n".join(contradictions(perflog.read_records(log), recording.CONFIG))


def test_a_log_that_agrees_with_itself_has_no_contradiction(tmp_path: Path) -> None:
    assert contradicted(tmp_path) == ""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_figure_is_contradicted(tmp_path: Path, name: str) -> None:
    assert f"{name} is " in contradicted(tmp_path, **WRONG[name])


def test_the_load_of_experts_is_logged_and_that_of_the_last_log_point_is_kept() -> None:
    run = Run(max_steps=10, loads=[[[8, 2], [5, 5]], [[6, 4], [5, 5]]])
    logged = [(end["expert_load"], end["expert_entropy"]) for end in run.of("STEP_END")]
    assert [load for load, _ in logged] == pytest.approx([1.6, 1.2, 1.2])
    assert 0.7 < logged[0][1] < logged[1][1] == logged[2][1] < 1
    assert (run.finished["expert_load"], run.finished["expert_entropy"]) == logged[2]
    assert Run().finished["expert_load"] is None, "without experts"


def test_a_training_may_go_on_at_its_target_and_has_converged(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eval_steps": 3, "target": 0.003, "max_steps": 9}
    assert Run(**settings).finished["steps"] == 3
    whole = Run(**settings, stop_at_target=False)
    assert (whole.finished["stop_reason"], whole.finished["converged"]) == ("max_steps", True)
    assert [evaluation["step"] for evaluation in whole.of("EVALUATE")] == [3, 6, 9]
    # Also after an interruption, and if the last evaluation is below the target: "lower" is reached by the first one.
    checkpoints: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "checkpoint_steps": 4, "direction": "lower"}
    first = Run(nan_at=6, log_freq=1, **settings, **checkpoints, stop_at_target=False)
    assert isinstance(first.error, NonFiniteLoss)
    second = Run(**settings, **checkpoints, stop_at_target=False)
    assert second.finished["converged"]
    # The last evaluation is logged again: its distance to the next one is checked.
    assert [evaluation["step"] for evaluation in second.of("EVALUATE")] == [3, 6, 9]
    assert second.of("EVALUATE")[0] == {**first.of("EVALUATE")[0], "time": 0.0}


def test_drawings_of_each_evaluation_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CountingTrainer.summarize

    def summarize(trainer: CountingTrainer, results: list[Any]) -> dict[str, Any]:
        return {**plain(trainer, results), "drawn": Drawings(1, 2, bytes([255, int(results[0])]))}

    monkeypatch.setattr(CountingTrainer, "summarize", summarize)
    run = Run(max_steps=3, eval_steps=3)
    sizes = {"name": "drawn", "rows": 1, "columns": 2}
    pixels = [base64.b64encode(bytes([255, steps])).decode() for steps in (0, 3)]
    logged = [{"step": 0, **sizes, "pixels": pixels[0]}, {"step": 3, **sizes, "pixels": pixels[1]}]
    assert run.of("DRAWINGS") == logged
    assert run.finished["final_metrics"].keys() == {"accuracy", "half"}


def test_records_come_in_order_and_throughputs_follow_from_them() -> None:
    assert [event for event, _ in Run(max_steps=12, eval_steps=6).records] == [
        "INIT_END", "INIT_EVALUATION", "TRAIN_START", "EPOCH_BEGIN", "STEP_BEGIN", "STEP_END", "STEP_END", "EVALUATE",
        "STEP_BEGIN", "STEP_END", "EPOCH_END", "EPOCH_BEGIN", "STEP_END", "EVALUATE", "TRAIN_END", "FINISHED",
    ]  # fmt: skip
    run = Run(max_steps=2500, log_freq=10**9, eval_steps=None, max_epochs=None, batches=3000)
    assert [end["step"] for end in run.of("STEP_END")] == [1, MAX_WINDOW, 2 * MAX_WINDOW, 2500]
    assert run.trainer.read_steps == [1, MAX_WINDOW - 1, MAX_WINDOW, 500]
    # A step of the test clock waits 1 s for input and computes for 2 s.
    run = Run(**THROUGHPUT)
    assert run.finished["p_core"] == pytest.approx(4 * 32 / (4 * 2.0))
    assert run.finished["input_wait_time"] == pytest.approx(6 * 1.0)
    assert run.finished["pure_training_computing_time"] == pytest.approx(6 * 2.0)
    assert run.finished["forward_time"] == pytest.approx(1.0)
    assert (run.finished["timing"], run.finished["measured_steps"]) == ("test clock", 4)


class CountedKernels:
    """A profiler that sees kernels of 1 us, and fails at one of its ends."""

    def __init__(self, kernels: int = 2, fails_at: int | None = None, starts: bool = True) -> None:
        self._seen = Recording([Activity("gemm", 1000 * at, 1000 * at + 1000, 1000) for at in range(kernels)])
        self._fails_at, self.ends, self._starts = fails_at, 0, starts

    def start(self) -> None:
        if not self._starts:
            raise PermissionError("no access to counters")

    def stop(self) -> Recording:
        self.ends += 1
        if self.ends == self._fails_at:
            raise OSError("no counters")
        return self._seen


UNCOUNTED = CountedKernels()
"""The profiler of a device whose bytes cannot be counted."""


def test_a_profile_follows_the_measured_steps_and_changes_none_of_their_figures() -> None:
    profiled = Run(**THROUGHPUT, profile_steps=7, profiler=CountedKernels())
    plain = Run(**THROUGHPUT, profile_steps=0, profiler=CountedKernels())
    profile = profiled.finished["profile"]
    assert "profile" not in plain.finished
    assert "profile" not in Run(max_steps=7, profiler=CountedKernels()).finished, "a training to the target"
    assert Run(**THROUGHPUT).finished.get("profile") is None, "no profiler"
    # The test clock's step waits 1 s for input and computes for 2 s.
    assert (profile["steps"], profile["step_time"], profile["input_wait"]) == (7, 3.0, 1.0)
    assert profile["profiled_step_time"] == 2.0
    assert profile["bytes"] == {"least": 64.0, "operations": None, "gradients": 16.0}
    assert profiled.trainer.weight == plain.trainer.weight + HOST_STEPS + 1 + 7 + 1
    by_clock = ("e2e_time", "init_time", "raw_train_time", "train_no_eval_time", "p_whole", "p_train", "windows_time")
    of_steps = [name for name in plain.finished if name not in by_clock]
    assert [profiled.finished[name] for name in of_steps] == [plain.finished[name] for name in of_steps]


def test_a_profiler_that_fails_at_its_second_end_leaves_the_figures() -> None:
    finished = Run(**THROUGHPUT, profiler=CountedKernels(fails_at=2)).finished
    assert finished["profile"] == {"problem": "OSError: no counters"}
    assert finished["measured_steps"] == 4
    uncounted = Run(**THROUGHPUT, profiler=UNCOUNTED).finished["profile"]
    assert (uncounted["bytes"], uncounted["no_bytes"]) == (None, "NotImplementedError: no rule for acme::fused")
    assert uncounted["kernels"]
    nothing = Run(**THROUGHPUT, profiler=CountedKernels(0)).finished
    assert nothing["profile"] == {"problem": "the profiler recorded no kernel"}


def test_a_profiled_step_that_fails_leaves_the_figures_of_a_single_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no memory left")

    monkeypatch.setattr("flagperf_driver.training.loop.profile", fail)
    finished = Run(**THROUGHPUT, profiler=CountedKernels()).finished
    assert (finished["profile"], finished["measured_steps"]) == ({"problem": "MemoryError: no memory left"}, 4)
    with pytest.raises(MemoryError):
        Run(**THROUGHPUT, profiler=CountedKernels(), world=driver.World(0, 0, 2, 2))


@pytest.mark.parametrize(
    ("profiler", "problem"),
    [
        (CountedKernels(starts=False), "PermissionError: no access to counters"),
        (CountedKernels(fails_at=1), "OSError: no counters"),
        (None, None),
        (CountedKernels(), None),
    ],
)
def test_all_ranks_train_the_same_steps_whatever_the_first_ones_profiler_does(
    profiler: CountedKernels | None, problem: str | None
) -> None:
    profilers = [profiler, CountedKernels()]
    first, second = on_ranks(2, lambda rank: {"profiler": profilers[rank]}, **THROUGHPUT)
    assert first.trainer.weight == second.trainer.weight
    assert second.finished["profile"] is None
    assert (first.finished["profile"] or {}).get("problem") == problem
    assert ("kinds" in (first.finished["profile"] or {})) is (profiler is not None and problem is None)


def test_a_profile_of_many_kernels_has_fewer_steps() -> None:
    finished = Run(**THROUGHPUT, profiler=CountedKernels(MOST_ACTIVITIES // 3)).finished
    assert finished["profile"]["steps"] == 3


class Ticks:
    """Device events whose time the test sets."""

    now, made = 0.0, 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        Ticks.made += 1

    def record(self) -> None:
        self.at = Ticks.now

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: Ticks) -> float:
        return (later.at - self.at) * 1e3


def test_device_events_separate_work_from_waiting() -> None:
    """Two windows of two steps of two micro-steps: each waits 1 s, then takes 4 s forward and 6 s backward."""
    line = Timeline(EventMarks(Ticks), warmup_steps=1)
    for _ in range(2):
        line.resume()
        for number in range(4):
            for passed, mark in ((1, line.begin), (4, line.begin_backward), (6, line.end)):
                Ticks.now += passed
                mark()
            if number % 2:
                line.step(3)
        Ticks.now += 1
        line.begin()
        line.drop()
        assert line.close() == StepWindow(steps=2, seconds=44.0, waiting=4.0, samples=6), (
            "without the dropped micro-step"
        )
        Ticks.now += 100  # the time between windows does not count
    totals = line.totals
    assert (totals.compute, totals.waiting) == (80.0, 8.0)
    assert (totals.measured_compute, totals.measured_samples) == (60.0, 9), "the first of four steps is warm-up"
    assert totals.step_time() == {"mean": 22.0, "p50": 22.0, "p90": 22.0, "p99": 22.0}
    assert totals.measured_forward == 24.0, "three measured steps of two forward passes"
    assert Ticks.made <= 15, "events are reused"


def test_a_pause_after_the_last_step_does_not_count_by_the_hosts_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 s to submit a step, a pause of 100 s, 3 s until the step is done."""
    host = SimpleNamespace(now=0.0)
    host.perf_counter = lambda: host.now

    class Slow(HostMarks):
        def seconds(self, marks: Sequence[float]) -> list[float]:
            host.now += 3
            return super().seconds(marks)

    line = Timeline(Slow(), warmup_steps=0)
    monkeypatch.setattr(timeline, "time", host)
    line.resume()
    line.begin()
    host.now += 5
    line.end()
    line.step(1)
    host.now += 100
    line.close()
    assert line.totals.by_host == 8.0


def test_ranks_with_other_weights_are_named_by_a_digest_of_every_name_and_value() -> None:
    def difference(digests: str, part: str = replicas.WHOLE) -> str:
        with pytest.raises(replicas.ReplicaError) as error:
            replicas.check([{"shard 7": "own"}, *({part: digest} for digest in digests)], 7)
        return str(error.value).partition(";")[0]

    replicas.check([{"shard 0": "a", "tensor 0": "c"}, {"shard 1": "b", "tensor 0": "c"}], 7)
    assert difference("aba") == "after step 7 the weights of rank 2 differ from those of ranks 1, 3"
    assert difference("ab") == "after step 7 the weights differ between ranks 1, 2"
    assert (
        difference("aab", "shard 0") == "after step 7 the weights (shard 0) of rank 3 differ from those of ranks 1, 2"
    )
    assert "of ranks 1, 2, 3, 4, 5, ... differ from those of ranks 7, 8" in difference("bcdefgaa")
    zeros: Any = np.zeros(3, dtype="float32")
    weights: list[dict[str, Any]] = [{"a": zeros}, {"b": zeros}, {"a": zeros + 1e-8}, {"a": zeros, "b": zeros}]
    assert len({replicas.digest(each) for each in weights}) == len(weights)
    assert replicas.digest({"a": zeros, "b": zeros + 1}) == replicas.digest({"b": zeros + 1, "a": zeros})


def test_a_changed_copy_of_the_weights_is_found_after_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DrawnSteps, "__contains__", lambda *_: False)

    def errors(every: int | None) -> list[str]:
        runs = on_ranks(3, lambda one: {"damaged_at": 5 if one == 2 else None}, replica_check_steps=every, max_steps=12)
        return [str(run.error).partition(";")[0] for run in runs]

    named = "the weights of rank 2 differ from those of ranks 0, 1"
    assert errors(4) == [f"after step 8 {named}"] * 3
    assert errors(5) == [f"after step 5 {named}"] * 3
    assert errors(None) == ["None"] * 3, "the control"


def test_a_damaged_copy_of_the_weights_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DrawnSteps, "__contains__", lambda *_: False)
    settings: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "checkpoint_steps": 4, "max_steps": 11}

    def results(damaged_at: int | None) -> list[str]:
        runs = on_ranks(2, lambda rank: {"damaged_at": None if rank else damaged_at}, **settings)
        return [str(run.error).partition(":")[0] for run in runs]

    (error,) = set(results(6))
    assert error.startswith("after step 8 the weights differ between ranks 0, 1")
    assert [path.name for path in tmp_path.glob("*/step*")] == ["step4"]
    assert results(None) == ["None"] * 2, "the control continues from step 4"


def test_steps_are_drawn_from_a_key() -> None:
    def drawn(key: str, share: float = 0.0) -> list[int]:
        steps = DrawnSteps(key, 25, share)
        return [step for step in range(1, 5001) if step in steps]

    steps = drawn("key")
    gaps = [after - before for before, after in itertools.pairwise([0, *steps])]
    assert 1 <= min(gaps) <= 5, "a step may be drawn soon after another one"
    assert 45 <= max(gaps) <= 50
    assert steps == drawn("key") != drawn("other")
    grown = drawn("key", share=1.0)
    assert len(grown) < len(steps) / 5
    assert max(grown) > 1000
    assert secret() != secret()


def test_a_loss_that_is_not_finite_and_an_epoch_without_a_whole_step_are_errors() -> None:
    run = Run(max_steps=12, nan_at=5, log_freq=6, eval_steps=None)
    assert isinstance(run.error, NonFiniteLoss)
    assert "the loss of step 5 is nan on rank 0 (precision fp32, learning rate 0.5)" in str(run.error)
    assert run.of("FINISHED") == []
    assert isinstance(Run(batches=3, gradient_accumulation_steps=4).error, DataError)
    assert Run(batches=5, gradient_accumulation_steps=4, max_steps=3).finished["epochs"] == 2


def test_an_interrupted_training_continues_and_logs_the_same_points_as_an_undisturbed_one(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_steps": 4, "eval_steps": 6, "log_freq": 5, "max_steps": 22}
    whole = Run(**settings, checkpoint_dir=str(tmp_path / "whole"))
    first = Run(nan_at=17, **settings, checkpoint_dir=str(tmp_path))
    assert [checkpoint["step"] for checkpoint in first.of("CHECKPOINT")] == [4, 8, 12, 16]
    second = Run(**settings, checkpoint_dir=str(tmp_path))

    def points(run: Run, event: str, names: tuple[str, ...]) -> list[tuple[float, ...]]:
        return [tuple(value[name] for name in names) for value in run.of(event) if value["step"] > 16]

    for event, names in (("STEP_END", ("step", "samples", "loss")), ("EVALUATE", ("step", "accuracy"))):
        assert points(second, event, names) == points(whole, event, names)
    assert second.of("STEP_BEGIN")[0] == {"step": 17}, "the readers' first step"
    assert second.trainer.epochs == [(1, 6), (2, 0)], "the seventh batch of the second epoch, then the third epoch"
    assert second.finished["resumed"]["step"] == 16
    for name in ("final_loss", "samples", "epochs"):
        assert second.finished[name] == whole.finished[name]
    assert second.trainer.weight == whole.trainer.weight == 22
    assert [path.suffixes for path in tmp_path.glob("toy*")] == [[".finished"]]


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "checkpoint_steps": 4, "eval_steps": None}
    Run(nan_at=6, log_freq=1, **settings)
    (complete,) = tmp_path.glob("*/step4")
    begun = complete.with_name("step8.begun")
    begun.mkdir()
    error = Run(seed=7, **settings).error
    assert isinstance(error, CheckpointError)
    assert "seed is 42, expected 7" in str(error)
    error = Run(training="run2 b", **settings).error
    assert isinstance(error, CheckpointError)
    assert "belongs to another training: training is 'run1 a', expected 'run2 b'. Remove it" in str(error)
    assert begun.exists(), "the other training may be writing it"
    assert [end["step"] for end in Run(max_steps=8, **settings).of("STEP_END")][-1] == 8, "the control"


def test_other_ranks_continue_a_training_with_the_same_samples_in_a_step(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "checkpoint_steps": 4, "eval_steps": None}
    first = on_ranks(4, nan_at=6, log_freq=1, train_batch_size=32, **settings)
    assert isinstance(first[0].error, NonFiniteLoss)
    settings |= {"gradient_accumulation_steps": 2, "batches": 2 * BATCHES}
    others = on_ranks(2, train_batch_size=32, max_steps=12, **settings)
    assert "written on 4 ranks; expected 2, because the order of this suite's samples" in str(others[0].error)
    smaller = on_ranks(2, train_batch_size=16, max_steps=12, any_ranks=True, **settings)
    assert "samples of a step is 128, expected 64" in str(smaller[0].error)
    same = on_ranks(2, train_batch_size=32, max_steps=12, any_ranks=True, **settings)
    for run in same:
        assert run.trainer.epochs == [(0, 2 * 4), (1, 0)], "after four steps of two batches"
        assert (run.finished["resumed"]["step"], run.finished["resumed"]["ranks"]) == (4, 4)
        assert run.finished["samples"] == 12 * 128


def test_a_rank_is_not_training_while_it_saves_or_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[tuple[int, str]] = []
    monkeypatch.setattr(Heartbeat, "beat", lambda _, step, phase: beats.append((step, PHASES[phase])))
    Run(checkpoint_dir=str(tmp_path), checkpoint_steps=3, eval_steps=2, eval_at_start=False, max_steps=5)
    assert [beat for beat, _ in itertools.groupby(beats) if beat[0] in (2, 3)] == [
        *((2, phase) for phase in ("training", "evaluation", "training")),
        *((3, phase) for phase in ("training", "checkpoint", "training")),
    ]


def test_the_weights_that_reached_the_target_are_saved(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eval_steps": 3, "target": 0.003, "max_steps": 9, "checkpoint_dir": str(tmp_path)}

    def kept(**others: Any) -> tuple[Run, list[str]]:
        run = Run(**settings, **others)
        return run, [path.name for path in tmp_path.glob("*.finished/*")]

    assert kept()[1] == ["step3"], "a folder is enough"
    run, names = kept(checkpoint_steps=2)
    assert (run.finished["stop_reason"], names) == ("target", ["step3"])
    (folder,) = tmp_path.glob("*.finished/step3")
    assert (folder / "weight").read_text() == "3"
    stored = json.loads((folder / "training.json").read_text())["progress"]
    assert stored["train_time"] == run.finished["raw_train_time"]
    assert stored["save_time"] == run.finished["save_time"], "saving after the training is no part of its time"
    assert [value["step"] for value in run.of("CHECKPOINT")] == [2, 3]
    assert kept(failure_interval_s=1e12)[1] == ["step3"]
    assert kept(checkpoint_steps=2, stop_at_target=False)[1] == ["step8"], "the control: the end at max_steps"


def test_a_training_that_ran_out_of_time_keeps_its_checkpoint(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "checkpoint_steps": 4, "eval_steps": None}
    Run(nan_at=6, log_freq=1, **settings)
    (file,) = tmp_path.glob("*/step4/training.json")
    stored = json.loads(file.read_text())
    stored["progress"]["train_time"] = 3600.0
    file.write_text(json.dumps(stored))
    late = Run(max_time_s=3600.0, **settings).finished
    assert (late["resumed"]["step"], late["steps"], late["stop_reason"]) == (4, 5, "deadline")
    assert [path.name for path in tmp_path.glob("*/*")] == ["step4"]
    assert Run(max_time_s=7200.0, **settings).finished["stop_reason"] == "max_steps", "the control"


def test_a_training_goes_on_while_its_checkpoint_is_written(tmp_path: Path) -> None:
    went_on: list[bool] = []
    run = Run(
        checkpoint_dir=str(tmp_path), checkpoint_steps=4, max_steps=6,
        writing=lambda trainer: went_on.append(trainer.stepped.wait(60)),
    )  # fmt: skip
    assert went_on == [True]
    assert run.finished["save_time"] >= run.finished["save_pause"] > 0
    assert run.finished["save_write_time"] > 0
    (checkpoint,) = run.of("CHECKPOINT")
    assert (checkpoint["step"], checkpoint["pause"]) == (4, run.finished["save_pause"])
    complete = next(tmp_path.glob("*/step4"))
    assert checkpoint["bytes"] == sum(path.stat().st_size for path in complete.iterdir())
    assert next(tmp_path.glob("*/step4/weight")).read_text() == "4", "the state of the step, not that of the writing"


def test_the_interval_between_checkpoints_follows_from_their_cost_and_the_time_between_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interval_s(4.0, 225_000.0) == pytest.approx(1338, abs=1)
    assert interval_s(4.0, 1.0) == 0.0, "a failure before the checkpoint is complete"
    interval = CheckpointInterval(225_000.0, 100)
    assert not interval.is_due(149, 7.0)
    assert interval.is_due(150, 7.0), "the first one, after 50 steps"
    interval.saved(4.0, 20.0)
    assert not interval.is_due(999, 20.0 + 1330)
    assert interval.is_due(999, 20.0 + 1340)
    assert not CheckpointInterval(None).is_due(999, 1e9)

    def saved(failure_interval_s: float, **settings: Any) -> list[list[int]]:
        runs = on_ranks(
            2, batches=9999, max_steps=120, failure_interval_s=failure_interval_s, eval_steps=None,
            checkpoint_dir=str(tmp_path / str(failure_interval_s)), **settings,
        )  # fmt: skip
        return [[value["step"] for value in run.of("CHECKPOINT")] for run in runs]

    assert saved(1e12) == [[50], []], "the first rank logs and decides"
    monkeypatch.setattr(Checkpoints, "is_writing", property(lambda _: False))
    assert saved(1e-9)[0] == list(range(50, 120, 10))
    assert saved(3e-9, checkpoint_steps=90)[0] == [90]


@pytest.mark.parametrize(("killed_at", "resumed_from"), [(4, None), (8, 4), (12, 8)])
def test_a_kill_in_a_checkpoint_loses_only_that_one(tmp_path: Path, killed_at: int, resumed_from: int | None) -> None:
    settings: dict[str, Any] = {
        "checkpoint_dir": str(tmp_path), "checkpoint_steps": 4, "eval_steps": None, "max_steps": 16,
    }  # fmt: skip
    copies = itertools.count(4, 4)

    def kill(_: CountingTrainer) -> None:
        if next(copies) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            Run(**settings, writing=kill)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert len(list(tmp_path.glob(f"*/step{killed_at}.begun"))) == 1
    second = Run(**settings)
    assert second.finished["resumed"].get("step") == resumed_from
    assert second.trainer.weight == 16
    assert [path.name for path in tmp_path.glob("*/*")] == ["step12"], "the last one; what was begun is removed"


def test_a_start_that_was_given_up_saves_nothing_over_a_later_one(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "checkpoint_steps": 4, "max_steps": 12}
    tokens: list[str] = []

    def later_start(_: CountingTrainer) -> None:
        (owner,) = tmp_path.glob("*.owner")
        tokens.append(owner.read_text())
        if len(tokens) > 1:
            owner.write_text("later")

    first = Run(**settings, writing=later_start)
    assert tokens == ["toy", "toy"]
    assert isinstance(first.error, CheckpointError)
    assert "is of a later start, which continues this training; this one must end" in str(first.error)
    assert [path.name for path in tmp_path.glob("*/step?")] == ["step4"]
    assert Run(**settings).finished["resumed"]["step"] == 4, "the control"


def test_a_start_that_was_given_up_leaves_the_folder_to_the_later_one_at_its_end(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "checkpoint_steps": 4, "max_steps": 3}

    def later_start() -> Iterator[list[list[float]]]:
        (owner,) = tmp_path.glob("*.owner")
        owner.write_text("later")
        owner.with_suffix("").joinpath("step2").mkdir(parents=True)
        yield [[1.0, 1.0]]

    assert isinstance(Run(**settings, loads=later_start()).error, CheckpointError)
    (later,) = tmp_path.glob("*/step2")
    assert later.parent.suffix == "", "that of a finished training has another name"
    shutil.rmtree(later.parent)
    assert Run(**settings).finished["steps"] == 3
    assert list(tmp_path.iterdir()) == [], "the control leaves no owner"


def test_a_checkpoint_that_cannot_be_written_ends_the_training(tmp_path: Path) -> None:
    def full(_: CountingTrainer) -> None:
        raise OSError(28, "No space left on device")

    settings: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "checkpoint_steps": 4, "eval_steps": None}
    run = Run(**settings, max_steps=12, writing=full)
    assert isinstance(run.error, CheckpointError)
    assert "could not be written: [Errno 28] No space left on device" in str(run.error)
    assert run.of("FINISHED") == []
    diverged = Run(**settings, max_steps=12, nan_at=5, log_freq=1, writing=full)
    assert isinstance(diverged.error, NonFiniteLoss), "the first error is the one to report"


def test_a_parameter_that_no_name_contains_is_an_error() -> None:
    config = driver.Config({"no_decay": ["2.weight"], "weight_decay": 0.1, "decay_vectors": False})
    with pytest.raises(ValueError, match=r"no_decay: no parameter's name contains '2\.weight'"):
        without_decay({"1.weight": 2}, config)


@pytest.mark.parametrize("sizes", [(0, 2), (3, 1), (-1, -2), (2, 2)])
def test_drawings_must_be_whole_and_small(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected whole drawings"):
        Drawings(*sizes, b"" if sizes == (2, 2) else b"\0\1\2\3")
    with pytest.raises(ValueError, match="at most 16,384 pixels"):
        Drawings(1, 1, bytes(MOST_PIXELS + 1))


def evaluated(*shares: RankEvaluation, **settings: Any) -> list[Run]:
    return on_ranks(len(shares), lambda rank: {"share": shares[rank]}, max_steps=1, **settings)


@pytest.mark.parametrize(
    ("shares", "joined"),
    [
        ([RankEvaluation([1.0, 2.0]), RankEvaluation(), RankEvaluation([3.0, 4.0])], [4.0, 6.0]),
        ([RankEvaluation(), RankEvaluation([3.0, 4.0])], [3.0, 4.0]),
        ([RankEvaluation(predictions=[1, 2]), RankEvaluation(), RankEvaluation(predictions=[3])], [1, 2, 3]),
    ],
)
def test_sums_and_predictions_of_all_ranks_are_joined(shares: list[RankEvaluation], joined: list[float]) -> None:
    runs = evaluated(*shares)
    assert runs[0].trainer.summarized[-1] == joined
    assert [run.finished["final_metrics"]["accuracy"] for run in runs] == [joined[0] / joined[-1]] * len(shares)


def test_loading_is_not_the_models_time() -> None:
    """The test clock needs 1 s from mark to mark: of six marks each batch and the end have two."""
    loading = Loading([1, 2], Clock())
    loading.by_host = 1e9
    assert list(loading) == [1, 2]
    assert loading.seconds() == 3.0
    loading.by_host = 2.0
    assert loading.seconds() == 2.0, "at most the time by the host's clock"


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([RankEvaluation(), RankEvaluation()], "no rank got an evaluation batch"),
        ([RankEvaluation([1.0]), RankEvaluation([1.0, 2.0])], "returned 2 sums on rank 1 and 1 sums on another rank"),
        ([RankEvaluation([1.0]), RankEvaluation(predictions=[1])], "returned predictions on rank 1 and 1 sums on"),
        ([RankEvaluation([1.0], [1])], "returned sums for some batches and predictions for others"),
        ([RankEvaluation([1.0])], "summarize() returned accuracy, half; expected also 'mask', which has a target in"),
        ([RankEvaluation(predictions=[1])], "summarize() returned accuracy, half; expected also 'mask', which"),
    ],
)
def test_an_evaluation_without_a_result_is_an_error(shares: list[RankEvaluation], message: str) -> None:
    for run in evaluated(*shares, also={"mask": 0.5}):
        assert isinstance(run.error, EvaluationError)
        assert message in str(run.error)
