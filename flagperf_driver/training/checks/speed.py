"""The time of a step with the suite's own steps, for the factor of a vendor's steps."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Iterator

from flagperf_driver.training.timeline import Timeline
from flagperf_driver.training.trainer import Trainer

WARM_UP, MEASURED = 3, 10
"""Steps with the suite's own steps."""


def own_step_time(own: Trainer, beat: Callable[[], None]) -> float:
    """Return the mean seconds of a step of this rank without waiting for input."""
    timeline = Timeline(own.marks, WARM_UP)
    batches = endless(own)
    for _ in range(WARM_UP + MEASURED):
        # A window for each step: no step is queued behind another one.
        timeline.resume()
        samples = own.step(next(batches), batches, timeline)
        assert samples is not None, "the batches do not end"
        timeline.step(samples)
        own.losses(timeline.close().steps)
        beat()
    return timeline.totals.measured_compute / MEASURED


def endless(trainer: Trainer) -> Iterator[Any]:
    """Yield the batches of epoch after epoch."""
    for epoch in itertools.count():
        yield from trainer.epoch(epoch, 0)
