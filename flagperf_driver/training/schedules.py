"""Learning-rate schedules: a warm-up, then the schedule that the config names."""

from __future__ import annotations

import math
from typing import Any, Callable

Factor = Callable[[int], float]
"""Returns the share of the configured learning rate for step 1, 2, ..."""

KINDS = ("constant", "linear", "cosine", "step", "milestones", "inverse_sqrt")


class ScheduleError(ValueError):
    """The config's schedule is incomplete, or does not fit the data."""


def factor(config: Any, steps_per_epoch: int | None = None) -> Factor:
    """Return the function that computes each step's share of the configured learning rate."""
    found = problems(config)
    if found:
        raise ScheduleError("; ".join(found))
    warmup = _steps(config.lr_warmup, config.lr_warmup_unit or config.lr_unit, steps_per_epoch)
    first = config.lr_warmup_from
    after = _after_warmup(config, warmup, steps_per_epoch)

    def both(step: int) -> float:
        return first + (1.0 - first) * step / warmup if step <= warmup else after(step)

    return both


def problems(config: Any) -> list[str]:
    """Return what is wrong with the schedule of a config."""
    kind, found = config.lr_schedule, []
    if kind not in KINDS:
        return ["lr_schedule={!r}: unknown schedule; choose from {}".format(kind, ", ".join(KINDS))]
    if kind in ("linear", "cosine") and not (config.lr_decay or config.max_steps or config.max_epochs):
        found.append(f"lr_schedule={kind!r} needs an end; set lr_decay, max_steps or max_epochs")
    if kind == "step" and not config.lr_step:
        found.append("lr_schedule='step' needs lr_step, the length of each learning rate")
    if kind == "inverse_sqrt" and not config.lr_warmup:
        found.append("lr_schedule='inverse_sqrt' needs lr_warmup: the learning rate falls from the end of the warm-up")
    if kind == "milestones":
        found += _milestone_problems(config.lr_milestones)
    for name in ("lr_warmup_from", "lr_floor"):
        if not 0 <= getattr(config, name) <= 1:
            found.append(f"{name} is {getattr(config, name)!r}; expected a share of learning_rate, 0 to 1")
    return found


def _milestone_problems(milestones: Any) -> list[str]:
    expected = "expected [[when, share of learning_rate], ...] with rising times, as in [[30, 0.1], [60, 0.01]]"
    pairs = [pair for pair in milestones or [] if isinstance(pair, (list, tuple)) and len(pair) == 2]
    times = [when for when, _ in pairs]
    if not pairs or len(pairs) != len(milestones) or any(late <= early for early, late in zip(times, times[1:])):
        return [f"lr_milestones is {milestones!r}; {expected}"]
    return []


def _after_warmup(config: Any, warmup: int, steps_per_epoch: int | None) -> Factor:
    kind, floor = config.lr_schedule, config.lr_floor
    if kind in ("linear", "cosine"):
        progress = _progress(config, warmup, steps_per_epoch)
        if kind == "linear":
            return lambda step: floor + (1.0 - floor) * (1.0 - progress(step))
        return lambda step: floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress(step)))
    if kind == "inverse_sqrt":
        return lambda step: max(floor, math.sqrt(warmup / step))
    if kind == "step":
        length = _steps(config.lr_step, config.lr_unit, steps_per_epoch)
        return lambda step: max(floor, float(config.lr_gamma ** ((step - 1) // length)))
    if kind == "milestones":
        begins = [(_steps(when, config.lr_unit, steps_per_epoch), share) for when, share in config.lr_milestones]
        return lambda step: max(floor, next((share for begin, share in reversed(begins) if step > begin), 1.0))
    return lambda _step: 1.0


def _progress(config: Any, warmup: int, steps_per_epoch: int | None) -> Factor:
    """Return the progress after the warm-up: 0 at its first step, 1 only after the last step."""
    if config.lr_decay:
        end = _steps(config.lr_decay, config.lr_unit, steps_per_epoch)
    else:
        end = config.max_steps or _steps(config.max_epochs, "epochs", steps_per_epoch)
    return lambda step: min(1.0, (step - 1 - warmup) / max(1, end - warmup))


def _steps(length: float, unit: str, steps_per_epoch: int | None) -> int:
    """Convert a length of the config to steps, at least one."""
    if unit == "steps" or not length:
        return int(length)
    if not steps_per_epoch:
        raise ScheduleError(
            "a length of the learning-rate schedule is in epochs, but the training data do not know how many batches "
            "an epoch has; give them __len__, or set lr_unit = 'steps'"
        )
    return max(1, round(length * steps_per_epoch))
