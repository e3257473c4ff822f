"""Which part of the difference between two runs their machines explain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.limits import StepLimits, StepWork, of_step, rates_of
from pytest_flagperf.results.measured.outcome import Outcome

_EQUAL = 0.02
"""Steps that differ by less are equal."""


def explained(old: StepLimits, new: StepWork, measurements: Iterable[Outcome]) -> str:
    """Return which part of the difference between two steps their machines explain; empty if it is unknown.

    ``measurements`` are of the new step's machine. The machines explain how the largest limit of the old step's work
    differs between them.
    """
    moved = of_step(old.work, rates_of(replace(new, precision=old.work.precision), measurements))
    common = [name for name in old.times if moved and name in moved.times]
    if moved is None or not common:
        return ""
    # A batch of another size changes the step, and no machine does.
    scale = old.work.samples / new.samples
    before, after = old.work.seconds, new.seconds * scale
    limits = [max(times[name] for name in common) for times in (old.times, moved.times)]
    binds = max(common, key=lambda name: old.times[name])
    difference, by_machine = after - before, limits[1] - limits[0]
    text = (
        f"a step of as many samples takes {_change(before, after)}; "
        f"its limit by {binds} on the measured machines is {_change(*limits)}"
    )
    is_same_machine = abs(by_machine) < _EQUAL * before
    if abs(difference) < _EQUAL * before:
        return "" if is_same_machine else f"{text}: the steps are equal"
    if is_same_machine:
        return f"{text}: the machines explain nothing of the difference"
    if by_machine * difference < 0:
        return f"{text}: the machines differ the other way"
    share = min(by_machine / difference, 1.0)
    return f"{text}: the machines explain {quantity(share, 'share', 3)} of the difference"


def _change(before: float, after: float) -> str:
    return f"{quantity(after, 's')} instead of {quantity(before, 's')}"
