"""Whether a round's throughputs are there, possible, and of enough steps; whether they agree is in ``crosscheck``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.units import compared, count, quantity
from pytest_flagperf.results.verdicts.verdict import Kind, Verdict, finished, in_range

MIN_MEASURED_STEPS = 10


def throughput(outcomes: Sequence[Outcome | None]) -> list[Verdict]:
    """Each round's throughputs are there, finite and possible, and agree with what else it measured."""
    if not outcomes:
        return [
            Verdict(
                "finished",
                False,
                "no outcome",
                "finished",
                "no round was run: there is no throughput",
                kind=Kind.FINISHED,
            )
        ]
    return [verdict for outcome in outcomes for verdict in _throughput_of(outcome)]


def _throughput_of(outcome: Outcome | None) -> Iterator[Verdict]:
    yield from finished(outcome)
    if outcome is None or not outcome.ended_well:
        return
    yield in_range(outcome)
    yield from (_present(outcome, name) for name in ("p_whole", "p_train", "p_core"))
    yield from _possible(outcome)
    yield _measured(outcome)
    yield _counted(outcome)


def _present(outcome: Outcome, name: str) -> Verdict:
    value = outcome.value(name)
    ok = value is not None and math.isfinite(value) and value > 0
    got = quantity(value, outcome.rate_unit)
    tail = "" if ok else ", wanted a finite number above 0"
    return Verdict(name, ok, got, "above 0", f"round {outcome.round}: {name} is {got}{tail}", kind=Kind.THROUGHPUT)


def _possible(outcome: Outcome) -> Iterator[Verdict]:
    mfu = outcome.value("mfu")
    if mfu is None:
        return
    ok = 0 < mfu <= 1
    got = compared(mfu, 1.0, "share")[0]
    sentence = f"round {outcome.round}: MFU is {got}"
    if not ok:
        sentence += ", wanted above 0 and at most 100 %: the clock, the FLOPs or the peak is wrong"
    yield Verdict("mfu", ok, got, "at most 100 %", sentence, kind=Kind.THROUGHPUT)


def _measured(outcome: Outcome) -> Verdict:
    steps = outcome.work.measured_steps
    ok = steps is not None and steps >= MIN_MEASURED_STEPS
    got = "nothing" if steps is None else count(steps, "step")
    wanted = f"at least {count(MIN_MEASURED_STEPS, 'step')}"
    sentence = f"round {outcome.round}: p_core was measured over {got}"
    sentence += "" if ok else f", wanted {wanted} after the warm-up: train longer or set throughput_steps higher"
    return Verdict("measured_steps", ok, got, wanted, sentence, kind=Kind.THROUGHPUT)


def _counted(outcome: Outcome) -> Verdict:
    """What samples are compared with; that they add up is one of the pairs of ``crosscheck``."""
    work = outcome.work
    got = f"{work.samples} samples, {work.steps} steps, batch {work.batch_per_card}"
    ok = bool(work.samples and work.steps and work.batch_per_card)
    sentence = f"round {outcome.round}: {got}" + ("" if ok else ": expected a number above 0 for all three")
    return Verdict("samples", ok, got, "all three", sentence, kind=Kind.THROUGHPUT)
