"""The verdict that compares a round with the suite's reference: not at the target too early."""

from __future__ import annotations

import math

from pytest_flagperf.results.figures.units import compared, count, plain
from pytest_flagperf.results.measured.outcome import Evaluation, Outcome
from pytest_flagperf.results.verdicts.reference import (
    EVALUATIONS,
    Reference,
    global_batch,
    step_samples,
)
from pytest_flagperf.results.verdicts.verdict import Verdict, VerdictKind
from pytest_flagperf.stored import FormatError

_KIND = VerdictKind.CONVERGENCE


def not_too_early(outcome: Outcome) -> Verdict | None:
    """Fail a round that needed far fewer samples to the target than the reference's rounds (as MLPerf does).

    The samples of the evaluation at the target count, not where the metric crossed the target before that. So the
    evaluation before must be near: after a long gap a false evaluation cannot be distinguished from an honest one.
    """
    reached = outcome.quality.reached
    if reached is None:
        return None
    reference = _reference(outcome)
    if isinstance(reference, str):
        # A missing reference is allowed, a broken one is not.
        return _unknown(outcome, reference, ok=outcome.reference is None)
    reason = _other_target(outcome, reference)
    bound = reference.earliest(global_batch(outcome) or 0)
    if reason is None and bound is None:
        reason = f"its smallest batch is {reference.batches[0].global_batch:,}" if reference.batches else "it is empty"
    if reason is not None or bound is None:
        return _unknown(outcome, f"the suite's reference does not apply to this round: {reason}", ok=True)
    return _long_gap(outcome, reached, bound) or _early(outcome, reached.samples, bound, reference)


def _long_gap(outcome: Outcome, reached: Evaluation, bound: float) -> Verdict | None:
    """Fail a round without an evaluation shortly before the one at the target."""
    before = max((one.samples for one in outcome.evaluations if one.samples < reached.samples), default=0)
    gap, step = reached.samples - before, step_samples(outcome)
    most = max(bound / EVALUATIONS, step)
    if gap <= most:
        return None
    unit, steps = outcome.sample_unit, count(math.floor(most / step), "step")
    expected = f"at most {math.floor(most):,} {unit} between two evaluations"
    sentence = (
        f"round {outcome.round}: {outcome.target.name} reached the target after {reached.samples:,} {unit}, but no"
        f" evaluation was logged in the {gap:,} {unit} before, expected {expected} with {_batch_words(outcome)}"
        f" (otherwise a false evaluation cannot be detected); evaluate every {steps} or more often (eval_steps)"
    )
    return Verdict("not_too_early", False, f"{gap:,} {unit} without an evaluation", expected, sentence, kind=_KIND)


def _early(outcome: Outcome, samples: int, bound: float, reference: Reference) -> Verdict:
    unit = outcome.sample_unit
    got, least = compared(samples, math.ceil(bound))
    expected = f"at least {least} {unit} ({_basis(reference, outcome)})"
    sentence = (
        f"round {outcome.round}: {outcome.target.name} reached the target after {got} {unit}"
        f" with {_batch_words(outcome)}, expected {expected};"
        " the model, its training or its evaluation differs from the suite's"
    )
    ok = samples >= bound
    return Verdict("not_too_early", ok, f"{got} {unit}", expected, "" if ok else sentence, kind=_KIND)


def _basis(reference: Reference, outcome: Outcome) -> str:
    """Describe the reference rounds from which the bound is computed."""
    size = global_batch(outcome) or 0
    batch = reference.batch(size)
    if batch is None:
        sizes = " and ".join(f"{batch.global_batch:,}" for batch in reference.batches)
        return f"by the reference rounds with batches of {sizes}"
    lowest, highest = (plain(edge(batch.to_target)) for edge in (min, max))
    return f"{count(len(batch.to_target), 'reference round')} needed {lowest} to {highest}"


def _reference(outcome: Outcome) -> Reference | str:
    """Return the reference, or the reason why no reference can be used."""
    if outcome.reference is None:
        return (
            f"the suite has no reference for the {outcome.scale} scale; python -m tools.calibrate makes one from five"
            " rounds that converged"
        )
    try:
        return Reference.from_json(outcome.reference, "the suite's reference")
    except FormatError as error:
        return str(error)


def _other_target(outcome: Outcome, reference: Reference) -> str | None:
    """Describe the reference's target if it differs from the round's."""
    own, other = outcome.target, reference.target
    if (own.name, own.direction) != (other.name, other.direction):
        return f"its metric is {other.name} ({other.direction} is better)"
    if own.value is None or other.value is None or not math.isclose(own.value, other.value):
        got, expected = compared(other.value, own.value, own.unit)
        return f"it was made for a target of {got}; the round's target is {expected}"
    if own.also != other.also:
        return f"it was made for {other.text}; the round's targets are {own.text}"
    return None


def _unknown(outcome: Outcome, reason: str, *, ok: bool) -> Verdict:
    sentence = f"round {outcome.round}: cannot judge whether the target was reached too early: {reason}"
    expected = "not earlier than the reference's rounds"
    return Verdict("not_too_early", ok, f"not judged: {reason}", expected, "" if ok else sentence, kind=_KIND)


def _batch_words(outcome: Outcome) -> str:
    return f"a batch of {global_batch(outcome) or 0:,} over all cards"
