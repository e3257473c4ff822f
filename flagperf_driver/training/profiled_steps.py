"""Profile a few steps after the measured ones."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import asdict
from typing import Any, Callable, Iterator

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

    All ranks train the same steps, and the first one has a profiler. ``totals`` are those of the measured steps.
    An error of the profiler is the record's ``problem``: the steps go on, and the measured figures stay.
    """
    steps, count = _Steps(trainer, profiler, beat), 0
    host_s = steps.host_time()
    # A profiler's first start takes long, so this step is not in the record.
    recording = steps.run(1)
    with steps.profiler_errors():
        count = max(1, min(most, MOST_ACTIVITIES // max(1, recording.size)))
    count = trainer.gather(0 if steps.problem else count)[0]
    moved: dict[str, Any] = {}
    if count:
        recording = steps.run(count)
        moved = steps.bytes()
    if profiler is None:
        return None
    seen: dict[str, Any] = {}
    with steps.profiler_errors():
        seen = record(recording, max(1, count))
    if steps.problem or not seen["kernels"]:
        return {"problem": steps.problem or "the profiler recorded no kernel"}
    measured = len(totals.measured)
    waited = sum(totals.measured) - totals.measured_compute
    return {
        "step_time": sum(totals.measured) / measured,
        "input_wait": max(0.0, waited) / measured,
        "profiled_step_time": steps.seconds / count,
        "host_time": host_s,
        **moved,
        **seen,
    }


class _Steps:
    """Further steps of a training."""

    def __init__(self, trainer: Trainer, profiler: Profiler | None, beat: Callable[[], None]) -> None:
        self._trainer, self._profiler, self._beat = trainer, profiler, beat
        self._batches = itertools.chain.from_iterable(trainer.epoch(epoch, 0) for epoch in itertools.count())
        self.seconds = 0.0
        """The time of the last profiled steps, without waiting for their input, by the marks of the timeline."""
        self.problem = ""
        """The profiler's first error, after which it is not used."""

    @contextlib.contextmanager
    def profiler_errors(self) -> Iterator[None]:
        """Keep an error of the profiler in ``problem``."""
        try:
            yield
        except Exception as error:  # a vendor's profiler may raise anything
            self.problem = self.problem or f"{type(error).__name__}: {error}"

    def host_time(self) -> float:
        """Return the shortest time of the host for a step, which begins when the device has nothing to do."""
        timeline = Timeline(self._trainer.marks, 0)
        return min(self._step(timeline) for _ in range(HOST_STEPS))

    def bytes(self) -> dict[str, Any]:
        """Return the bytes of a step, or why they are unknown: all ranks count them, and fail alike."""
        if self._trainer.step_bytes is None:
            return {}
        try:
            counted = self._trainer.step_bytes(lambda: self._step(Timeline(self._trainer.marks, 0)))
        except Exception as error:  # a vendor's operators may not support the counting
            return {"bytes": None, "no_bytes": f"{type(error).__name__}: {error}"}
        return {"bytes": asdict(counted)}

    def run(self, count: int) -> Recording:
        """Run steps one behind the other, as the training does, and return what the profiler saw."""
        trainer, profiler, timeline = self._trainer, self._profiler, Timeline(self._trainer.marks, 0)
        recording = Recording()
        trainer.synchronize()
        if profiler:
            with self.profiler_errors():
                profiler.start()
        timeline.resume()
        for _ in range(count):
            self._train(timeline)
        timeline.step(0)
        trainer.synchronize()
        if profiler and not self.problem:
            with self.profiler_errors():
                recording = profiler.stop()
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
