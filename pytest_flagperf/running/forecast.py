"""How long a round of a case takes, before it runs; each kind of suites estimates it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

from pytest_flagperf.kind import DurationEstimate, kind_of
from pytest_flagperf.plan import Plan
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables.published import Published, load
from pytest_flagperf.stored import FormatError

WEEK_S = 7 * 24 * 3600.0
"""The time within which a standard case must converge."""


def published(folders: Iterable[Path]) -> Iterator[Published]:
    """Yield the published results in folders; damaged files are skipped, and ``tools.readme`` reports them."""
    for folder in folders:
        with suppress(FormatError):
            yield from load(folder)


def is_same_case(plan: Plan, outcome: Outcome) -> bool:
    """Return True if a stored round of a case of this name has the plan's vendor, scale and kind of data."""
    return (outcome.vendor, outcome.scale, outcome.synthetic) == (plan.vendor, plan.scale, plan.synthetic)


def duration(plan: Plan, estimate: DurationEstimate | str) -> Iterator[str]:
    """The lines that --plan prints: the estimate, its source, and a warning above a week."""
    if isinstance(estimate, str):
        yield f"no estimate: no stored run of this case, and {estimate}"
        return
    about = "at most" if estimate.at_most else "about"
    text = f"{about} {quantity(estimate.seconds, 's')} per round"
    if plan.case.repeat > 1:
        text += f", {quantity(estimate.seconds * plan.case.repeat, 's')} for {count(plan.case.repeat, 'round')}"
    yield f"{text} ({estimate.source})"
    if estimate.seconds > WEEK_S:
        yield "MORE THAN A WEEK: a standard case must converge within a week"


def total_duration(plans: Sequence[Plan], estimates: Sequence[DurationEstimate | str]) -> str:
    """Return how long all rounds of several cases take, and of how many cases that is unknown."""
    pairs = zip(plans, estimates, strict=True)
    known = [(one, plan.case.repeat) for plan, one in pairs if isinstance(one, DurationEstimate)]
    if not known:
        return f"{count(len(plans), 'case')}, no estimate of how long they take"
    seconds = quantity(sum(one.seconds * rounds for one, rounds in known), "s")
    total = f"{'at most' if any(one.at_most for one, _ in known) else 'about'} {seconds}"
    others = f"; no estimate for the other {len(plans) - len(known)}" if len(known) < len(plans) else ""
    return f"{len(known)} of {count(len(plans), 'case')} take {total}{others}"


def estimate(plan: Plan, stored_runs: StoredRuns) -> DurationEstimate | str:
    """Return the estimate of a case; of a variant without one, that of the case without its variant."""
    own = kind_of(plan).estimate(plan, stored_runs)
    if isinstance(own, DurationEstimate) or not plan.case.variant:
        return own
    base = plan.case.without_variant
    other = kind_of(plan).estimate(replace(plan, case=base), stored_runs)
    return other if isinstance(other, str) else replace(other, source=f"{other.source} of {base}")


def values_of(rounds: Sequence[Outcome], name: str) -> list[float]:
    """Return the finite values of a figure."""
    values = (outcome.value(name) for outcome in rounds)
    return [value for value in values if value is not None and math.isfinite(value)]


def declared(plan: Plan) -> DurationEstimate | None:
    """Return the time that the config declares."""
    value = plan.values["expected_time_s"]
    if plan.throughput_only or not isinstance(value.value, (int, float)):
        return None
    return DurationEstimate(float(value.value), value.where)


def measured(rounds: Sequence[Outcome]) -> DurationEstimate | None:
    """Return the median time of stored rounds; None if none has a time."""
    durations = values_of(rounds, "e2e_time")
    if not durations:
        return None
    return DurationEstimate(median(durations), f"median of {count(len(durations), 'stored round')}")
