"""Verdicts on what faults cost: those of --drill struck, and enough of the time became progress."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_flagperf.results.figures.units import compared, quantity
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.verdict import Verdict


def drill(outcome: Outcome) -> Iterator[Verdict]:
    """Judge whether each fault struck and was noticed; nothing without --drill."""
    if not outcome.drill:
        return
    noticed = [fault for fault in outcome.struck if fault.noticed_s is not None]
    got, expected = "; ".join(fault.sentence for fault in outcome.struck), f"{', '.join(outcome.drill)}, all noticed"
    sentence = ""
    if len(noticed) < len(outcome.drill):
        sentence = (
            f"round {outcome.round}: the training ended before all faults struck and were noticed: {got or 'none'};"
            f" expected {expected}: save checkpoints sooner (checkpoint_steps), or train longer"
        )
    yield Verdict("drill", not sentence, got or "none", expected, sentence)


def goodput(outcome: Outcome) -> Iterator[Verdict]:
    """Judge the share of the time that became progress; nothing if no least one is known."""
    least, value = outcome.limits.get("min_goodput"), outcome.value("goodput")
    if least is None:
        return
    ok = value is not None and value >= least
    got, limit = compared(value, least, "share")
    lost = outcome.metric("lost_time")
    sentence = (
        f"round {outcome.round}: goodput is {got}, expected at least {limit} (--min-goodput, or the suite's goal)"
    )
    sentence += f"; lost: {quantity(lost.value, 's')} ({lost.how})" if lost else ""
    yield Verdict("goodput", ok, got, f"at least {limit}", "" if ok else sentence)
