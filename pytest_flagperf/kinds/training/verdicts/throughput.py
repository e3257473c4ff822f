"""Verdicts on a round's throughputs: present, possible, over enough steps; ``consistency`` compares them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_flagperf.kinds.training.verdicts.replay import replayed
from pytest_flagperf.results.figures.units import compared, count, quantity
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.verdict import Verdict, finished, in_range

MIN_MEASURED_STEPS = 10
MAX_FACTOR = 3.0
"""The most that a vendor's steps may gain over the suite's own until a person has explained it."""


def throughput(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Judge whether each round's throughputs are present, finite, possible and consistent with its other figures."""
    return [verdict for outcome in outcomes for verdict in _throughput_of(outcome)]


def _throughput_of(outcome: Outcome) -> Iterator[Verdict]:
    yield from finished(outcome)
    if not outcome.ended_well:
        return
    yield in_range(outcome)
    # p_core of a restarted training is of its last start, which may be short, and is compared with nothing.
    core = () if outcome.starts else ("p_core",)
    yield from (_present(outcome, name) for name in ("p_whole", "p_train", *core))
    yield from _possible(outcome)
    yield from _explained(outcome)
    if not outcome.starts:
        yield _measured(outcome)
    yield _counted(outcome)
    yield from replayed(outcome)


def _present(outcome: Outcome, name: str) -> Verdict:
    value = outcome.value(name)
    ok = value is not None and math.isfinite(value) and value > 0
    got = quantity(value, outcome.rate_unit)
    sentence = "" if ok else f"round {outcome.round}: {name} is {got}, expected a finite number above 0"
    return Verdict(name, ok, got, "above 0", sentence)


def _possible(outcome: Outcome) -> Iterator[Verdict]:
    mfu = outcome.value("mfu")
    if mfu is None:
        return
    ok, got, expected = 0 < mfu <= 1, compared(mfu, 1.0, "share")[0], "above 0 and at most 100 %"
    reason = "the clock, the FLOPs or the peak is wrong"
    sentence = "" if ok else f"round {outcome.round}: MFU is {got}, expected {expected}: {reason}"
    yield Verdict("mfu", ok, got, expected, sentence)


def _explained(outcome: Outcome) -> Iterator[Verdict]:
    factor = outcome.value("vendor_factor")
    if factor is None:
        return
    ok, got, expected = 0 < factor <= MAX_FACTOR, compared(factor, MAX_FACTOR, "x")[0], f"at most {MAX_FACTOR:g} x"
    sentence = (
        f"round {outcome.round}: the vendor's steps are {got} as fast as the suite's own, expected {expected}: find out"
        " why; whoever accepts the factor adds a table [[expected]] for verdict vendor_factor, with a name and the"
        " reason, to flagperf.toml"
    )
    yield Verdict("vendor_factor", ok, got, expected, "" if ok else sentence)


def _measured(outcome: Outcome) -> Verdict:
    steps = outcome.work.measured_steps
    ok = steps is not None and steps >= MIN_MEASURED_STEPS
    got = "no step" if steps is None else count(steps, "step")
    expected = f"at least {count(MIN_MEASURED_STEPS, 'step')}"
    sentence = (
        f"round {outcome.round}: p_core was measured over {got}, expected {expected} after the warm-up:"
        " train longer or increase throughput_steps"
    )
    return Verdict("measured_steps", ok, got, expected, "" if ok else sentence)


def _counted(outcome: Outcome) -> Verdict:
    """Judge whether samples, steps and batch were counted; ``consistency`` judges whether they agree."""
    work = outcome.work
    got = f"{work.samples} samples, {work.steps} steps, batch {work.batch_per_card}"
    ok = bool(work.samples and work.steps and work.batch_per_card)
    sentence = "" if ok else f"round {outcome.round}: {got}; expected numbers above 0"
    return Verdict("samples", ok, got, "numbers above 0", sentence)
