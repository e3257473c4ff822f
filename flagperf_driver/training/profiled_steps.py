"""Profile a few steps after the measured ones."""

from __future__ import annotations

import time
from typing import Any, Callable

from flagperf_driver.training.checks.speed import endless
from flagperf_driver.training.profile import Profiler, Recording, record
from flagperf_driver.training.timeline import Timeline, Totals
from flagperf_driver.training.trainer import Trainer

HOST_STEPS = 3
"""Steps without a profiler, which would slow down the host."""
MOST_ACTIVITIES = 500_000
"""A profile has at most about so many kernels, copies and calls: with more of them in a step it has fewer steps."""


def profile(
    trainer: Trainer, profiler: Profiler | None, most: int, totals: Totals, beat: Callable[[], None]
) -> dict[str, Any] | None:
    """Train at most so many profiled steps and return their record; None on the ranks without a profiler.

    ``totals`` are those of the measured steps. An error of the profiler is the record's ``problem``: the measured
    figures stay.
    """
    steps, count, recording, problem = _Steps(trainer, beat), 0, Recording(), ""
    host_s = steps.host_time()
    try:
        # A profiler's first start takes long, so this step is not in the record.
        count = max(1, min(most, MOST_ACTIVITIES // max(1, steps.run(1, profiler).size)))
    except Exception as error:  # a vendor's profiler may raise anything
        problem = f"{type(error).__name__}: {error}"
    count = trainer.gather(count)[0]
    if count:
        try:
            recording = steps.run(count, profiler)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    if profiler is None:
        return None
    if problem or not recording.activities:
        return {"problem": problem or "the profiler recorded no kernel"}
    measured = len(totals.measured)
    waited = sum(totals.measured) - totals.measured_compute
    return {
        "step_time": sum(totals.measured) / measured,
        "input_wait": max(0.0, waited) / measured,
        "profiled_step_time": steps.seconds / count,
        "host_time": host_s,
        **record(recording, count),
    }


class _Steps:
    """Further steps of a training."""

    def __init__(self, trainer: Trainer, beat: Callable[[], None]) -> None:
        self._trainer, self._beat = trainer, beat
        self._batches = endless(trainer)
        self.seconds = 0.0
        """The time of the last profiled steps, without waiting for their input, by the marks of the timeline."""

    def host_time(self) -> float:
        """Return the shortest time of the host for a step, which begins when the device has nothing to do."""
        timeline = Timeline(self._trainer.marks, 0)
        return min(self._step(timeline) for _ in range(HOST_STEPS))

    def run(self, count: int, profiler: Profiler | None) -> Recording:
        """Run steps one behind the other, as the training does, and return what the profiler saw."""
        trainer, timeline = self._trainer, Timeline(self._trainer.marks, 0)
        trainer.synchronize()
        if profiler:
            profiler.start()
        timeline.resume()
        for _ in range(count):
            self._train(timeline)
        timeline.step(0)
        trainer.synchronize()
        recording = profiler.stop() if profiler else Recording()
        window = timeline.close()
        self.seconds = window.seconds - window.waiting
        trainer.losses(count)
        return recording

    def _step(self, timeline: Timeline) -> float:
        timeline.resume()
        self._trainer.synchronize()
        seconds = self._train(timeline)
        timeline.step(0)
        timeline.close()
        self._trainer.losses(1)
        return seconds

    def _train(self, timeline: Timeline) -> float:
        first = next(self._batches)
        begin = time.perf_counter()
        samples = self._trainer.step(first, self._batches, timeline)
        assert samples is not None, "the batches do not end"
        self._beat()
        return time.perf_counter() - begin
