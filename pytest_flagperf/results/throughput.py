"""Whether a round's throughputs are there, in order, possible, and of the samples that the steps say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.units import compared, count, quantity
from pytest_flagperf.results.verdict import Verdict, finished

ORDER_TOLERANCE = 0.02
"""How far p_train may lie below p_whole, and p_core below p_train: their clocks are not quite the same."""
MIN_MEASURED_STEPS = 10


def throughput(outcomes: Sequence[Outcome | None]) -> list[Verdict]:
    """Each round's throughputs are there, finite, in order, possible, and of the samples the steps say."""
    if not outcomes:
        return [Verdict("finished", False, "no outcome", "finished", "no round was run: there is no throughput")]
    return [verdict for outcome in outcomes for verdict in _throughput_of(outcome)]


def _throughput_of(outcome: Outcome | None) -> Iterator[Verdict]:
    yield from finished(outcome)
    if outcome is None or not outcome.ok:
        return
    present = [_present(outcome, name) for name in ("p_whole", "p_train", "p_core")]
    yield from present
    if all(verdict.ok for verdict in present):
        yield from _in_order(outcome)
    yield from _possible(outcome)
    yield _measured(outcome)
    yield _adds_up(outcome)


def _present(outcome: Outcome, name: str) -> Verdict:
    value = outcome.value(name)
    ok = value is not None and math.isfinite(value) and value > 0
    got = quantity(value, outcome.rate_unit)
    tail = "" if ok else ", wanted a finite number above 0"
    return Verdict(name, ok, got, "above 0", f"round {outcome.round}: {name} is {got}{tail}")


def _in_order(outcome: Outcome) -> Iterator[Verdict]:
    # p_core leaves the warm-up out, whose steps need not be the slowest ones of a short training.
    for more, less, slack in (("p_train", "p_whole", 0.0), ("p_core", "p_train", _warmup_share(outcome))):
        upper, lower = outcome.value(more), outcome.value(less)
        assert upper is not None
        assert lower is not None
        slack += ORDER_TOLERANCE
        ok = upper >= lower * (1 - slack)
        got, limit = compared(upper, lower, outcome.rate_unit)
        wanted = f"not below {less} ({limit}) by more than {quantity(slack, 'share')}"
        sentence = f"round {outcome.round}: {more} is {got}, {'' if ok else 'wanted '}{wanted}"
        yield Verdict(f"{more}_order", ok, got, wanted, sentence)


def _warmup_share(outcome: Outcome) -> float:
    work = outcome.work
    if not work.samples or work.measured_samples is None:
        return 0.0
    return min(max(1 - work.measured_samples / work.samples, 0.0), 0.5)


def _possible(outcome: Outcome) -> Iterator[Verdict]:
    mfu = outcome.value("mfu")
    if mfu is None:
        return
    ok = 0 < mfu <= 1
    got = compared(mfu, 1.0, "share")[0]
    sentence = f"round {outcome.round}: MFU is {got}"
    if not ok:
        sentence += ", wanted above 0 and at most 100 %: the clock, the FLOPs or the peak is wrong"
    yield Verdict("mfu", ok, got, "at most 100 %", sentence)


def _measured(outcome: Outcome) -> Verdict:
    steps = outcome.work.measured_steps
    ok = steps is not None and steps >= MIN_MEASURED_STEPS
    got = "nothing" if steps is None else count(steps, "step")
    wanted = f"at least {count(MIN_MEASURED_STEPS, 'step')}"
    sentence = f"round {outcome.round}: p_core was measured over {got}"
    sentence += "" if ok else f", wanted {wanted} after the warm-up: train longer or set throughput_steps higher"
    return Verdict("measured_steps", ok, got, wanted, sentence)


def _adds_up(outcome: Outcome) -> Verdict:
    """A pass over the data may end with a smaller step; an item of a batch may stand for several samples."""
    work, where = outcome.work, f"round {outcome.round}"
    if not work.samples or not work.steps or not work.batch_per_card:
        got = f"{work.samples} samples, {work.steps} steps, batch {work.batch_per_card}"
        return Verdict("samples", False, got, "all three", f"{where}: samples can't be checked against steps: {got}")
    per_step = work.batch_per_card * outcome.cards * max(work.accumulation, 1)
    items, each = work.steps * per_step, max(work.samples_per_item, 1)
    short = min(math.ceil(work.epochs or 0) + 1, work.steps)
    ok = items - short * (per_step - 1) <= work.samples <= items * each
    sums = (
        f"{count(work.steps, 'step')} x {work.batch_per_card} per card x {count(outcome.cards, 'card')}"
        + (f" x {work.accumulation} accumulated" if work.accumulation > 1 else "")
        + (f" x up to {each} an item" if each > 1 else "")
    )
    got, wanted = count(work.samples, "sample"), f"{items * each:,}"
    sentence = f"{where}: FINISHED counts {got}; {sums} = {wanted}"
    return Verdict("samples", ok, got, wanted, sentence + ("" if ok else ": they do not add up"))
