"""The training loop: every suite of every framework runs through it. Read ``Training`` from top to bottom."""

from __future__ import annotations

import base64
import contextlib
import functools
import math
import statistics
import time
from dataclasses import asdict
from typing import Any, Callable, Iterator

from flagperf_driver import events, heartbeat
from flagperf_driver.driver import Rank
from flagperf_driver.logged_step import STEP_FIGURES
from flagperf_driver.training.checkpoint import CheckpointError, Checkpoints
from flagperf_driver.training.checkpoint_interval import CheckpointInterval
from flagperf_driver.training.checks import replicas
from flagperf_driver.training.checks.drawn_steps import secret
from flagperf_driver.training.due import Due
from flagperf_driver.training.evaluation import ModelTime, evaluate
from flagperf_driver.training.profiled_steps import profile
from flagperf_driver.training.progress import OF_ONE_RANK, LastEvaluation
from flagperf_driver.training.saved_states import SavedStates
from flagperf_driver.training.steps import Drawings
from flagperf_driver.training.timeline import StepWindow, Timeline
from flagperf_driver.training.trainer import Trainer


class NonFiniteLoss(ArithmeticError):
    """The loss is NaN or infinite."""


class DataError(ValueError):
    """The training data have too few batches."""


class Training:
    """One rank's training, from building its parts to FINISHED."""

    def __init__(self, rank: Rank, trainer: Trainer) -> None:
        self.rank, self.trainer, self.config = rank, trainer, rank.config
        self.log: Callable[..., None] = rank.log
        self._due = Due.of(rank.config, throughput_only=rank.case.throughput_only or rank.config.throughput_only)
        self.progress = trainer.progress
        self.last_evaluation = LastEvaluation()
        self._evaluated = ModelTime()
        self.timeline = Timeline(trainer.marks, self.config.timing_warmup_steps)
        self._accumulation = self.config.gradient_accumulation_steps
        self._step_figures: dict[str, float | None] = dict.fromkeys(STEP_FIGURES)
        self._resumed: dict[str, Any] = {}
        self._checkpoints = Checkpoints(rank, trainer, enabled=not self._due.throughput_only)
        self._states = SavedStates(rank)
        self._save_is_due = self._state_is_due = False
        self._state_pauses: list[float] = []
        # The closed windows since the last log point, each with the losses of its steps.
        self._closed: list[tuple[StepWindow, list[float]]] = []
        draws = f"{rank.case.token}/{trainer.gather(secret())[0]}/replicas"
        self._replica_steps = replicas.ReplicaSteps(draws, self.config.replica_check_steps)
        # An error of these hooks must appear before the training, not after it.
        trainer.peak_memory()
        self._profiler = trainer.profiler()

    # -- the training, in order --------------------------------------------------------------------------

    def run(self) -> None:
        described = self.trainer.describe()
        self.log(events.INIT_END, described)
        self._resume(any_ranks=bool(described["any_ranks"]))
        self._first_step = self.progress.step + 1
        self._interval = CheckpointInterval(self._due.failure_interval_s, self.progress.step)
        try:
            self._run()
        except Exception:
            # What was saved before an error is kept, and the error is the one to report.
            with contextlib.suppress(CheckpointError):
                self._checkpoints.wait()
            raise

    def _run(self) -> None:
        if self.config.eval_at_start and not self._due.throughput_only and not self.progress.step:
            self._evaluate(events.INIT_EVALUATION)
        self._save_first_state()
        self.trainer.synchronize()
        self._begin = time.perf_counter()
        self._states.start()
        self._init_time = self.rank.age()
        self.log(events.TRAIN_START)
        if self.last_evaluation.step > 0:
            # Its time belongs to the part before the checkpoint.
            self._log_evaluation(events.EVALUATE, 0.0)
        reason = self._train()
        if self.last_evaluation.step != self.progress.step and not self._due.throughput_only and reason != "target":
            self._evaluate(events.EVALUATE)
        self.trainer.synchronize()
        self.progress.train_time = self._elapsed()
        self.log(events.TRAIN_END, {"reason": reason})
        self._beat(heartbeat.CHECKPOINT)
        if reason == "target" and self._checkpoints.enabled:
            self._checkpoint(self.progress.train_time)
        self._states.end()
        if self._states.folder and not self._states.is_saved(self.progress.step):
            self._checkpoint(self.progress.train_time, self._states)
        self._checkpoints.wait()
        if reason != "deadline":
            # After a deadline the checkpoint is kept, so that a later run can continue the training.
            self._checkpoints.finish()
        self._beat(heartbeat.TRAIN)
        finished = self._finished(reason)
        # Last: a profiler may slow down later steps.
        if self._due.throughput_only and self.config.profile_steps and self.timeline.totals.measured:
            finished["profile"] = self._profile()
        self.log(events.FINISHED, {**finished, "e2e_time": self.rank.age()})

    def _train(self) -> str:
        """Train epoch by epoch and return the reason for the end."""
        self.timeline.resume()
        while True:
            epoch = self.progress.epoch + 1
            order = self._order(epoch)
            self.log(events.EPOCH_BEGIN, {"epoch": epoch, **({} if order is None else {"order": order})})
            number = self.progress.epoch if order is None else order
            batches = self.trainer.epoch(number, self.progress.position * self._accumulation)
            first = self.progress.step
            while self._step(batches):
                reason = self._between_steps()
                if reason:
                    return reason
            if self.progress.step == first and not self.progress.position:
                raise DataError(
                    "the training data have too few batches for one step per epoch on this rank: "
                    f"a step needs {self._accumulation} batch(es) of {self.config.train_batch_size}"
                )
            reason = self._epoch_end(epoch)
            if reason:
                return reason

    def _order(self, epoch: int) -> int | None:
        """Return the number that the data of an epoch follow from, which the agent gives; None: their epoch's."""
        if self._states.folder is None:
            return None
        given: int = self.trainer.gather(self._states.order(epoch))[0]
        return given

    def _step(self, batches: Iterator[Any]) -> bool:
        """Run one optimizer step; return False if the epoch has too few batches left."""
        first = next(batches, None)
        if first is None:
            return False
        number = self.progress.step + 1
        if number in (self._first_step, self.progress.next_log):
            self.log(events.STEP_BEGIN, {"step": number})
        samples = self.trainer.step(first, batches, self.timeline)
        if samples is None:
            return False
        self.timeline.step(samples)
        self.progress.step = number
        self.progress.position += 1
        self._beat(heartbeat.TRAIN)
        return True

    def _beat(self, phase: int) -> None:
        self.rank.heartbeat.beat(self.progress.step, phase)

    def _profile(self) -> dict[str, Any] | None:
        """Train further steps on all ranks, and return the profile of the first rank; None on the others."""
        of_rank = None if self.rank.world.rank else self._profiler
        if not self.trainer.gather(of_rank is not None)[0]:
            return None
        beat = functools.partial(self._beat, heartbeat.TRAIN)
        try:
            return profile(self.trainer, of_rank, self.config.profile_steps, self.timeline.totals, beat)
        except Exception as error:  # such as too little memory: the figures are measured
            if self.rank.world.world_size > 1:
                raise  # the other ranks would wait for this one
            return {"problem": f"{type(error).__name__}: {error}"}

    # -- between two steps: logging, evaluation and checkpoints --------------------------------------------

    def _between_steps(self) -> str | None:
        """Check, log, evaluate and save when it is time; return the reason to stop, or None."""
        step = self.progress.step
        checked = self.rank.world.world_size > 1 and step in self._replica_steps
        if checked:
            self._check_replicas()
        evaluates, saves, ends = self._due.evaluates(step), self._due.saves(step), self._due.ends(step)
        if not (evaluates or saves or ends or step == self.progress.next_log):
            return None
        reason = self._log_point()
        if evaluates and self._evaluate(events.EVALUATE):
            reason = "target"
        elif (saves or self._save_is_due) and not ends:
            if self.rank.world.world_size > 1 and not checked:
                # No start must continue from a damaged copy, which all ranks would then hold.
                self._check_replicas()
            self._save()
        if self._state_is_due and not (reason or ends or self._states.is_saved(step)):
            self._save_state()
        self.timeline.resume()
        return reason or (self._due.end_reason if ends else None)

    def _epoch_end(self, epoch: int) -> str | None:
        evaluates, ends = self._due.evaluates_epoch(self.progress.step), epoch == self._due.max_epochs
        reason = self._log_point() if evaluates or ends else None
        self.progress.epoch, self.progress.position = epoch, 0
        self.log(events.EPOCH_END, {"epoch": epoch})
        if evaluates and self.last_evaluation.step != self.progress.step and self._evaluate(events.EVALUATE):
            reason = "target"
        if evaluates or ends:
            self.timeline.resume()
        return reason or ("max_epochs" if ends else None)

    def _check_replicas(self) -> None:
        """Raise an error if a rank's weights are damaged; the time of the check is in no window."""
        self._close_window()
        with self._apart("check_time"):
            own = self.trainer.weights_digests(), self.trainer.changed_at_rest()
            digests, changes = zip(*self.trainer.gather(own))
            replicas.check(digests, self.progress.step)
            replicas.check_at_rest(changes)
        self.timeline.resume()

    def _close_window(self) -> None:
        """Wait for the device, and read the times and losses of the steps since the last window."""
        if self.timeline.open_steps:
            window = self.timeline.close()
            self._closed.append((window, self.trainer.losses(window.steps)))

    def _log_point(self) -> str | None:
        """Wait for the device, check the loss and log a step."""
        self._close_window()
        if not self._closed:
            return None
        window = StepWindow.joined([window for window, _ in self._closed])
        losses = [loss for _, losses in self._closed for loss in losses]
        self._closed = []
        late = self.config.max_time_s is not None and self._elapsed() >= self.config.max_time_s
        due = self.rank.world.rank == 0 and self._checkpoint_is_due()
        asked = self._states.is_due(self._state_pauses)
        values = [sum(losses) / window.steps, window.samples, late, due, asked]
        loss, samples, late_ranks, due_ranks, asked_ranks = self.trainer.total(values)
        self._save_is_due, self._state_is_due = due_ranks > 0, asked_ranks > 0
        progress = self.progress
        progress.samples += int(samples)
        progress.loss = loss / self.rank.world.world_size
        self._check_finite(losses)
        self._checkpoints.wait(only_if_complete=True)
        progress.next_log = self._due.next_log(progress.step, progress.samples, samples / window.steps)
        self._step_figures.update(self.trainer.step_figures())
        self.log(
            events.STEP_END,
            {
                "step": progress.step,
                "epoch": progress.epoch + 1,
                "samples": progress.samples,
                "loss": progress.loss,
                "learning_rate": self.trainer.learning_rate,
                "step_time": window.seconds / window.steps,
                "throughput": samples / window.seconds if window.seconds else None,
                "input_wait": window.waiting,
                **self._step_figures,
            },
        )
        if self._due.max_samples and progress.samples >= self._due.max_samples:
            return self._due.samples_reason
        return "deadline" if late_ranks else None

    def _check_finite(self, losses: list[float]) -> None:
        if math.isfinite(self.progress.loss):
            return
        first, last = self.progress.step - len(losses) + 1, self.progress.step
        bad = [(step, loss) for step, loss in enumerate(losses, first) if not math.isfinite(loss)]
        loss = (
            f"the loss of step {bad[0][0]} is {bad[0][1]} on rank {self.rank.world.rank}"
            if bad
            else f"the loss of a step from {first} to {last} is {self.progress.loss} on another rank"
        )
        raise NonFiniteLoss(
            f"{loss} (precision {self.config.precision}, learning rate {self.trainer.learning_rate:g}): "
            "the training has diverged, or a batch contains NaN or infinity"
        )

    @contextlib.contextmanager
    def _apart(self, part: str, phase: int = heartbeat.TRAIN) -> Iterator[None]:
        """Add the time of this block to a named part of the training's time, a field of ``progress``.

        No window is open meanwhile: a log point comes before the block, and ``timeline.resume`` after it. In another
        phase than the training the ranks of other hosts do not judge whether a host is lost.
        """
        assert not self.timeline.open_steps, f"{part} is not the time of steps"
        self.trainer.synchronize()
        begin = time.perf_counter()
        self._beat(phase)
        yield
        self.trainer.synchronize()
        self._beat(heartbeat.TRAIN)
        setattr(self.progress, part, getattr(self.progress, part) + time.perf_counter() - begin)

    def _evaluate(self, event: str) -> bool:
        """Evaluate and log; return True if the training ends because all targets are reached.

        Synthetic data never reach a target.
        """
        step, part = self.progress.step, "eval_time" if event == events.EVALUATE else "init_eval_time"
        before: float = getattr(self.progress, part)
        beat = functools.partial(self._beat, heartbeat.EVALUATE)
        model_time = self._evaluated if event == events.EVALUATE else ModelTime()
        with self._apart(part, heartbeat.EVALUATE):
            found = evaluate(self.trainer, self.rank.world.rank, self.rank.case.metric.values, beat, model_time)
        metrics, seconds = found.metrics, getattr(self.progress, part) - before
        self.last_evaluation = LastEvaluation(step, self.progress.samples, metrics)
        self._log_evaluation(event, seconds)
        for name, drawings in found.drawings.items():
            self._log_drawings(name, drawings)
        case = self.rank.case
        reached = event == events.EVALUATE and not case.synthetic and case.metric.reached_by(metrics)
        self.progress.converged |= reached
        return reached and bool(self.config.stop_at_target)

    def _log_evaluation(self, event: str, seconds: float) -> None:
        last = self.last_evaluation
        self.log(event, {"step": last.step, "samples": last.samples, "time": seconds, **last.metrics})

    def _log_drawings(self, name: str, drawings: Drawings) -> None:
        pixels = base64.b64encode(drawings.pixels).decode("ascii")
        sizes = {"rows": drawings.rows, "columns": drawings.columns}
        self.log(events.DRAWINGS, {"step": self.progress.step, "name": name, **sizes, "pixels": pixels})

    # -- checkpoints, and the end -----------------------------------------------------------------------

    def _save(self) -> None:
        elapsed = self._elapsed()
        with self._apart("save_time", heartbeat.CHECKPOINT):
            self._checkpoint(elapsed)
        self._interval.saved(self._checkpoints.pauses[-1], time.perf_counter())

    def _save_first_state(self) -> None:
        """Save the state with which this start begins, before its time is measured."""
        if self._states.folder is None:
            return
        if self.rank.world.rank == 0:
            self._states.begin()
        self.trainer.gather(None)
        self._checkpoint(self.progress.train_time, self._states)
        self._checkpoints.wait()
        self._checkpoints.pauses.clear()
        self._checkpoints.write_times.clear()

    def _save_state(self) -> None:
        """Save a state for the replay; no other write of a checkpoint may delay it."""
        elapsed, before = self._elapsed(), self.progress.save_time
        with self._apart("save_time", heartbeat.CHECKPOINT):
            self._checkpoint(elapsed, self._states)
        self._state_pauses.append(self.progress.save_time - before)

    def _checkpoint(self, train_time: float, states: SavedStates | None = None) -> None:
        """Copy the state after so many seconds of training, and begin to write it."""
        totals, state = self.timeline.totals, {**asdict(self.progress), "train_time": train_time}
        state["compute_time"] += totals.compute
        state["input_wait_time"] += totals.waiting
        state.update(zip(OF_ONE_RANK, map(int, self.trainer.total([state[name] for name in OF_ONE_RANK]))))
        self._checkpoints.save(state, asdict(self.last_evaluation), states)

    def _elapsed(self) -> float:
        """Return the seconds of training, also before it was resumed."""
        return self.progress.train_time + time.perf_counter() - self._begin

    def _checkpoint_is_due(self) -> bool:
        """Return True if the interval is over and the last checkpoint is written: two must not overlap."""
        return not self._checkpoints.is_writing and self._interval.is_due(self.progress.step, time.perf_counter())

    def _resume(self, *, any_ranks: bool) -> None:
        """Continue from the checkpoint, if one exists; ``any_ranks``: also from that of another number of ranks."""
        loaded = self._checkpoints.load(any_ranks=any_ranks)
        if loaded is None:
            return
        progress, evaluation, ranks = loaded
        self._resumed, self.last_evaluation = {**progress, "ranks": ranks}, LastEvaluation(**evaluation)
        self.progress.set(progress)
        if self.rank.world.rank:
            # The first rank keeps the sums over all ranks.
            self.progress.set(dict.fromkeys(OF_ONE_RANK, 0))

    def _finished(self, reason: str) -> dict[str, Any]:
        progress, totals = self.progress, self.timeline.totals
        counts = [totals.measured_samples, progress.tokens, progress.full_tokens, progress.computed_tokens]
        measured, tokens, full, computed = map(int, self.trainer.total(counts))
        whole, training = progress.train_time, progress.train_time - progress.eval_time
        step_time = totals.step_time()
        compiled = self.trainer.compiles and step_time is not None
        return {
            "init_time": self._init_time,
            "raw_train_time": whole,
            "train_no_eval_time": training,
            "pure_training_computing_time": progress.compute_time + totals.compute,
            "converged": progress.converged and not self._due.throughput_only,
            "stop_reason": reason,
            "final_loss": self.progress.loss,
            "final_metrics": self.last_evaluation.metrics,
            "steps": progress.step,
            "samples": progress.samples,
            "epochs": progress.epoch,
            **throughputs(progress.samples, whole, training, measured, totals.measured_compute),
            "timing": self.timeline.marks.name,
            "warmup_steps": self.config.timing_warmup_steps,
            "measured_steps": len(totals.measured),
            "measured_samples": measured,
            "padding_share": 1 - tokens / computed if computed else None,
            "token_share": tokens / full if full else None,
            **self._step_figures,
            "step_time": step_time,
            "forward_time": totals.forward_time(),
            "input_wait_time": progress.input_wait_time + totals.waiting,
            "windows_time": totals.by_host,
            "resumed": self._resumed,
            "eval_time": progress.eval_time,
            "eval_model_time": self._evaluated.seconds,
            "eval_samples": self._evaluated.samples,
            "check_time": progress.check_time,
            "save_time": progress.save_time,
            "save_pause": _mean(self._checkpoints.pauses),
            "save_write_time": _mean(self._checkpoints.write_times),
            "compile_time": max(0.0, totals.first_step - step_time["p50"]) if compiled and step_time else None,
            "peak_memory_bytes": self.trainer.peak_memory(),
            "threads": self.trainer.threads(),
        }


def throughputs(
    samples: int, whole_s: float, training_s: float, measured_samples: int, computing_s: float
) -> dict[str, float | None]:
    """Return samples per second of the whole time, of the time without evaluation, and of the measured steps.

    The measured steps exclude the warm-up; their time excludes waiting for input.
    """
    return {
        "p_whole": _rate(samples, whole_s),
        "p_train": _rate(samples, training_s),
        "p_core": _rate(measured_samples, computing_s),
    }


def _mean(times: list[float]) -> float | None:
    return statistics.fmean(times) if times else None


def _rate(samples: int, seconds: float) -> float | None:
    return samples / seconds if samples and seconds > 0 else None
