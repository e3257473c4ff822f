"""The training loop: every PyTorch suite runs through it. Read ``Training`` from top to bottom."""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Iterator

import torch

from flagperf_driver import driver, events, heartbeat
from flagperf_driver.driver import Rank
from flagperf_driver.pytorch import checkpoint, distributed
from flagperf_driver.pytorch.clock import Timeline
from flagperf_driver.pytorch.evaluation import evaluate
from flagperf_driver.pytorch.feed import epoch_batches
from flagperf_driver.pytorch.hooks import forward, plug_in, versions
from flagperf_driver.pytorch.parts import Parts, build, context, description, with_vendor
from flagperf_driver.pytorch.steps import Context, Steps
from flagperf_driver.pytorch.throughput import throughputs
from flagperf_driver.pytorch.training_progress import Evaluated, TrainingProgress

LONGEST_WINDOW = 1000
"""Steps between two log points at most, whatever log_freq says: what is not looked at must be kept."""


class NonFiniteLoss(ArithmeticError):
    """The loss is NaN or infinite: what follows would be no training."""


class DataError(ValueError):
    """The training data cannot be trained on as they are."""


def main(steps: Steps) -> None:
    """Train this process's rank, and end the process."""
    suite_dir = Path(sys.argv[0]).resolve().parent
    driver.run(functools.partial(_run, steps, suite_dir))
    _leave()


def _run(steps: Steps, suite_dir: Path, rank: Rank) -> None:
    rank.heartbeat.beat(0, heartbeat.INIT)
    case, world = rank.case, rank.world
    hooks, device = plug_in(case, world)
    with distributed.joined(case.backend, device, world.world_size, rank.config.init_timeout_s):
        training = Training(rank, context(rank, device, suite_dir, hooks), with_vendor(steps, case.extern), own=steps)
        training.run()
    rank.heartbeat.beat(training.progress.step, heartbeat.DONE)


def _leave() -> None:
    """Skip the interpreter's teardown, which takes longer than all else here; loader processes end first."""
    for child in multiprocessing.active_children():
        child.terminate()
        child.join(5)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Training:
    """One rank's training, from its parts to FINISHED."""

    def __init__(self, rank: Rank, ctx: Context, steps: Steps, own: Steps | None = None) -> None:
        self.rank, self.ctx, self.steps, self.config = rank, ctx, steps, ctx.config
        self.log = rank.log
        self._own = own or steps  # by which it is measured, whatever the vendor's steps are
        self.for_throughput = rank.case.throughput_only or self.config.throughput_only
        self.parts: Parts = build(ctx, steps, self._own)
        self.progress = TrainingProgress()
        self.evaluated = Evaluated()
        self.timeline = Timeline(ctx.hooks.events(ctx.device), self.config.timing_warmup_steps)
        self._autocast = forward(ctx.hooks, self.config.precision, ctx.device)
        # Looked up at every step, so not through the config.
        self._accumulation = self.config.gradient_accumulation_steps
        self._max_norm = self.config.max_grad_norm
        self._eval_steps: int = self.config.eval_steps or 0
        self._checkpoint_steps: int = 0 if self.for_throughput else self.config.checkpoint_steps or 0
        self._max_samples, self._samples_reason = self._sample_limit()
        # One place for each step of a window, on the device.
        self._window = max(1, min(self.config.log_freq, LONGEST_WINDOW))
        self._losses = torch.zeros(self._window, device=ctx.device).unbind()
        self._loss = math.nan
        self._rate = 0.0
        self._resumed: dict[str, Any] = {}
        self._next_log = 1
        self._last_step = self._step_limit()
        ctx.hooks.memory(ctx.device)  # what is wrong with it is told now, not after days
        self._trained = [parameter for group in self.parts.optimizer.param_groups for parameter in group["params"]]

    # -- the story ---------------------------------------------------------------------------------------

    def run(self) -> None:
        told = description(self.ctx, self.parts)
        told["libraries"].update(versions(self.rank.case.modules))
        self.log(events.INIT_END, {**told, "replaced_hooks": self.ctx.hooks.replaced})
        random_state = self._resume()
        if self.config.eval_at_start and not self.for_throughput and not self.progress.step:
            self._evaluate(events.INIT_EVALUATION)
        self.ctx.hooks.synchronize(self.ctx.device)
        self._begin = time.perf_counter()
        self._init_time = self.rank.age()
        self.log(events.TRAIN_START)
        reason = self._train(random_state)
        if self.evaluated.step != self.progress.step and not self.for_throughput and reason != "target":
            self._evaluate(events.EVALUATE)
        self.ctx.hooks.synchronize(self.ctx.device)
        self.progress.train_time += time.perf_counter() - self._begin
        self.log(events.TRAIN_END, {"reason": reason})
        if not self.for_throughput and reason != "deadline":
            # A training that ran out of time goes on from its checkpoint when it is started again.
            checkpoint.finish(self.rank)
        self.log(events.FINISHED, self._finished(reason))

    def _train(self, random_state: dict[str, Any] | None) -> str:
        """Epoch after epoch; gives the reason for the end."""
        self.timeline.resume()
        while True:
            epoch = self.progress.epoch + 1
            self.log(events.EPOCH_BEGIN, {"epoch": epoch})
            batches = self._epoch(random_state)
            random_state = None
            first = self.progress.step
            while self._step(batches):
                reason = self._look_up()
                if reason:
                    return reason
            if self.progress.step == first and not self.progress.position:
                raise DataError(
                    "the training data give no whole step in an epoch on this rank: "
                    f"one needs {self._accumulation} batch(es) of {self.config.train_batch_size}"
                )
            reason = self._epoch_end(epoch)
            if reason:
                return reason

    def _step(self, batches: Iterator[Any]) -> bool:
        """One optimizer step; False where the epoch has no whole one left."""
        ctx, steps, parts, timeline = self.ctx, self.steps, self.parts, self.timeline
        number = self.progress.step + 1
        slot = self._losses[timeline.open_steps]
        samples = 0
        for micro in range(1, self._accumulation + 1):
            batch = next(batches, None)
            if batch is None:
                parts.optimizer.zero_grad(set_to_none=True)
                timeline.drop()
                return False
            if micro == 1 and number == self._next_log:
                self.log(events.STEP_BEGIN, {"step": number})
            timeline.begin()
            last = micro == self._accumulation
            with _NOTHING if last else distributed.unsynchronized(parts.model):
                with self._autocast:
                    loss = steps.calculate_loss(ctx, parts.model, batch)
                timeline.turn()
                if self._accumulation > 1:
                    loss = loss / self._accumulation
                steps.backward(ctx, loss, parts.scaler)
            slot.copy_(loss.detach()) if micro == 1 else slot.add_(loss.detach())
            samples += steps.count_samples(ctx, batch)
            if last:
                self._update()
            timeline.end()
        timeline.step(samples)
        self.progress.step = number
        self.progress.position += self._accumulation
        self.rank.heartbeat.beat(number, heartbeat.TRAIN)
        return True

    def _update(self) -> None:
        """Let the optimizer use the gradients."""
        optimizer, scaler = self.parts.optimizer, self.parts.scaler
        if self._max_norm is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(self._trained, self._max_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)
        self._rate = optimizer.param_groups[0]["lr"]
        self.parts.scheduler.step()

    # -- looking up: what is done between two steps, at few of them ----------------------------------------

    def _look_up(self) -> str | None:
        """Log, evaluate and save where it is time; gives the reason to stop, if there is one."""
        step = self.progress.step
        evaluates = self._eval_steps > 0 and step % self._eval_steps == 0 and self._may_evaluate()
        saves = self._checkpoint_steps > 0 and step % self._checkpoint_steps == 0
        ends = self._last_step is not None and step >= self._last_step
        if not (evaluates or saves or ends or step == self._next_log):
            return None
        reason = self._log_point()
        if evaluates and self._evaluate(events.EVALUATE):
            reason = "target"
        elif saves and not ends:
            self._save()
        self.timeline.resume()
        return reason or (self._limit_reason() if ends else None)

    def _epoch_end(self, epoch: int) -> str | None:
        evaluates = self.config.eval_steps is None and self._may_evaluate()
        ends = epoch == self.config.max_epochs and not self.for_throughput
        reason = self._log_point() if evaluates or ends else None
        self.progress.epoch, self.progress.position = epoch, 0
        self.log(events.EPOCH_END, {"epoch": epoch})
        if evaluates and self.evaluated.step != self.progress.step and self._evaluate(events.EVALUATE):
            reason = "target"
        if evaluates or ends:
            self.timeline.resume()
        return reason or ("max_epochs" if ends else None)

    def _log_point(self) -> str | None:
        """Wait for the device, check the loss, tell; the only place where ranks agree on anything."""
        if not self.timeline.open_steps:
            return None
        window = self.timeline.close()
        losses = torch.stack(self._losses[: window.steps]).tolist()
        elapsed = time.perf_counter() - self._begin
        late = self.config.max_time_s is not None and elapsed >= self.config.max_time_s
        loss, samples, someone_late = distributed.total(
            [sum(losses) / window.steps, window.samples, late], self.ctx.device
        )
        progress = self.progress
        progress.samples += int(samples)
        self._loss = loss / self.ctx.world_size
        self._check_finite(losses)
        self._plan_next_log(samples / window.steps)
        self.log(
            events.STEP_END,
            {
                "step": progress.step,
                "epoch": progress.epoch + 1,
                "samples": progress.samples,
                "loss": self._loss,
                "learning_rate": self._rate,
                "step_time": window.seconds / window.steps,
                "throughput": samples / window.seconds if window.seconds else None,
                "input_wait": window.waiting,
            },
        )
        if self._max_samples and progress.samples >= self._max_samples:
            return self._samples_reason
        return "deadline" if someone_late else None

    def _plan_next_log(self, samples_per_step: float) -> None:
        """At the next multiple of log_freq, or sooner where max_samples will be reached sooner."""
        step, every = self.progress.step, self._window
        ahead = every - step % every
        if self._max_samples and samples_per_step:
            left = (self._max_samples - self.progress.samples) / samples_per_step
            ahead = min(ahead, max(1, math.ceil(left)))
        self._next_log = step + ahead

    def _check_finite(self, losses: list[float]) -> None:
        if math.isfinite(self._loss):
            return
        first, last = self.progress.step - len(losses) + 1, self.progress.step
        bad = [(step, loss) for step, loss in enumerate(losses, first) if not math.isfinite(loss)]
        what = (
            f"the loss of step {bad[0][0]} is {bad[0][1]} on rank {self.ctx.rank}"
            if bad
            else f"the loss of a step from {first} to {last} is {self._loss} on another rank"
        )
        raise NonFiniteLoss(
            f"{what} (precision {self.config.precision}, learning rate {self._rate:g}): the training has "
            "diverged, or a batch holds what is no number"
        )

    def _may_evaluate(self) -> bool:
        return not self.for_throughput and self.progress.step >= self.config.eval_start_steps

    def _evaluate(self, event: str) -> bool:
        """Whether the target is reached; a training on synthetic data reaches none."""
        self.ctx.hooks.synchronize(self.ctx.device)
        begin = time.perf_counter()
        step = self.progress.step
        beat = functools.partial(self.rank.heartbeat.beat, step, heartbeat.EVALUATE)
        metrics = evaluate(self.ctx, self._own, self.parts.model, self.parts.eval_data, beat)
        seconds = time.perf_counter() - begin
        if event == events.EVALUATE:
            self.progress.eval_time += seconds
        self.evaluated = Evaluated(step, metrics)
        self.log(event, {"step": step, "samples": self.progress.samples, "time": seconds, **metrics})
        return self._reached() and event == events.EVALUATE

    def _reached(self) -> bool:
        metric = self.rank.case.metric
        value = self.evaluated.metrics.get(metric.name, math.nan)
        return metric.reached(value) and not self.ctx.synthetic

    # -- where it begins and ends ----------------------------------------------------------------------------

    def _step_limit(self) -> int | None:
        if self.for_throughput:
            return int(self.config.timing_warmup_steps + self.config.throughput_steps)
        limit: int | None = self.config.max_steps
        return limit

    def _sample_limit(self) -> tuple[int | None, str]:
        """After how many samples the training ends, and the reason that it gives then."""
        if self.for_throughput:
            return None, ""
        limits = [(self.config.parity_samples, "parity"), (self.config.max_samples, "max_samples")]
        return min((limit for limit in limits if limit[0]), default=(None, ""))

    def _limit_reason(self) -> str:
        return "throughput" if self.for_throughput else "max_steps"

    def _epoch(self, random_state: dict[str, Any] | None) -> Iterator[Any]:
        """Give this epoch's batches from where the training stands, as many as every rank has."""
        progress = self.progress
        batches = epoch_batches(self.ctx, self.steps, self.parts.train_data, progress.epoch, progress.position)
        if random_state is not None:
            checkpoint.restore_random(random_state, self.ctx.device)
        return batches

    def _save(self) -> None:
        state = asdict(self.progress)
        totals = self.timeline.totals
        state["train_time"] += time.perf_counter() - self._begin
        state["compute_time"] += totals.compute
        state["input_wait_time"] += totals.waiting
        checkpoint.save(self.rank, self.parts, self.ctx.device, state)

    def _resume(self) -> dict[str, Any] | None:
        """Go on from the checkpoint, if there is one; gives the random state to begin with."""
        found = None if self.for_throughput else checkpoint.load(self.rank, self.parts)
        if found is None:
            return None
        random_state: dict[str, Any] = found.pop("random")
        self.progress, self._resumed = TrainingProgress(**found), found
        self._next_log = self.progress.step + 1
        return random_state

    def _finished(self, reason: str) -> dict[str, Any]:
        progress, totals = self.progress, self.timeline.totals
        measured = int(distributed.total([totals.measured_samples], self.ctx.device)[0])
        whole, training = progress.train_time, progress.train_time - progress.eval_time
        step_time = totals.step_time()
        compiled = self.config.compile and step_time is not None
        return {
            "e2e_time": self.rank.age(),
            "init_time": self._init_time,
            "raw_train_time": whole,
            "train_no_eval_time": training,
            "pure_training_computing_time": progress.compute_time + totals.compute,
            "converged": self._reached() and not self.for_throughput,
            "stop_reason": reason,
            "final_loss": self._loss,
            "final_metrics": self.evaluated.metrics,
            "steps": progress.step,
            "samples": progress.samples,
            "epochs": progress.epoch,
            **throughputs(progress.samples, whole, training, measured, totals.measured_compute),
            "timing": self.timeline.marks.name,
            "warmup_steps": self.config.timing_warmup_steps,
            "measured_steps": len(totals.measured),
            "measured_samples": measured,
            "step_time": step_time,
            "forward_time": totals.measured_forward / len(totals.measured) if totals.measured else None,
            "input_wait_time": progress.input_wait_time + totals.waiting,
            "windows_time": totals.by_host,
            "resumed": self._resumed,
            "eval_time": progress.eval_time,
            "compile_time": max(0.0, totals.first_step - step_time["p50"]) if compiled and step_time else None,
            "peak_memory_bytes": self.ctx.hooks.memory(self.ctx.device),
            "threads": torch.get_num_threads(),
        }


_NOTHING = contextlib.nullcontext()
