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
        found += _milestone_problems(config.lr_milestones, config.lr_unit)
    elif config.lr_milestones is not None:
        found.append(f"lr_milestones has no effect with lr_schedule={kind!r}; set lr_schedule = 'milestones', or None")
    found += _length_problems(config)
    for name in ("lr_warmup_from", "lr_floor"):
        if not 0 <= getattr(config, name) <= 1:
            found.append(f"{name} is {getattr(config, name)!r}; expected a share of learning_rate, 0 to 1")
    return found


def _length_problems(config: Any) -> list[str]:
    found, warmup_unit = [], config.lr_warmup_unit or config.lr_unit
    for name, unit in (("lr_warmup", warmup_unit), ("lr_decay", config.lr_unit), ("lr_step", config.lr_unit)):
        length = getattr(config, name)
        if length is not None and not _is_length(length, unit):
            whole = "a whole number of steps" if unit == "steps" else "a number of epochs"
            found.append(f"{name} is {length!r}; expected {whole}, at least 0")
    if not found and config.lr_decay and warmup_unit == config.lr_unit and config.lr_decay <= config.lr_warmup:
        found.append(f"lr_decay is {config.lr_decay!r}; expected more than lr_warmup, {config.lr_warmup!r}")
    return found


def _milestone_problems(milestones: Any, unit: str) -> list[str]:
    expected = "expected [[when, share of learning_rate], ...] with rising times, as in [[30, 0.1], [60, 0.01]]"
    if not isinstance(milestones, (list, tuple)) or not milestones or not all(_is_pair(pair) for pair in milestones):
        return [f"lr_milestones is {milestones!r}; {expected}"]
    times = [when for when, _ in milestones]
    if any(late <= early for early, late in zip(times, times[1:])):
        return [f"lr_milestones is {milestones!r}; {expected}"]
    if not all(_is_length(when, unit) for when in times):
        return [f"lr_milestones is {milestones!r}; expected times of at least 0, and whole ones if lr_unit is 'steps'"]
    return []


def _is_pair(pair: Any) -> bool:
    return (
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(_is_number(value) and value >= 0 for value in pair)
    )


def _is_length(length: Any, unit: str) -> bool:
    return _is_number(length) and length >= 0 and (unit == "epochs" or length == int(length))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


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
