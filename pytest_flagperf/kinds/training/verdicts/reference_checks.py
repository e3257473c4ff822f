"""Verdicts that compare a round with the suite's reference: not at the target too early, loss on the curve."""

from __future__ import annotations

import math

from pytest_flagperf.kinds.training.verdicts.reference import (
    EVALUATIONS,
    Batch,
    Reference,
    global_batch,
    loss_points,
    step_samples,
)
from pytest_flagperf.results.figures import targets
from pytest_flagperf.results.figures.units import compared, count, plain, quantity
from pytest_flagperf.results.logs import curves
from pytest_flagperf.results.measured.outcome import Evaluation, Outcome
from pytest_flagperf.results.verdicts.verdict import Verdict
from pytest_flagperf.stored import FormatError

FEWEST_PLACES = 3
"""Minimum number of points of a loss curve that are compared."""


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
    return Verdict("not_too_early", False, f"{gap:,} {unit} without an evaluation", expected, sentence)


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
    return Verdict("not_too_early", ok, f"{got} {unit}", expected, "" if ok else sentence)


def _basis(reference: Reference, outcome: Outcome) -> str:
    """Describe the reference rounds from which the bound is computed."""
    size = global_batch(outcome) or 0
    batch = reference.batch(size)
    if batch is None:
        sizes = " and ".join(f"{batch.global_batch:,}" for batch in reference.batches)
        return f"by the reference rounds with batches of {sizes}"
    lowest, highest = (plain(edge(batch.to_target)) for edge in (min, max))
    return f"{count(len(batch.to_target), 'reference round')} needed {lowest} to {highest}"


def parity(outcome: Outcome) -> Verdict:
    """Compare the loss over the first samples with the reference's loss at the same samples."""
    reference, expected = _reference(outcome), f"{outcome.parity_samples or 0:,} {outcome.sample_unit}"
    if isinstance(reference, str):
        return _no_parity(outcome, reference, "a reference")
    trained = outcome.work.samples or 0
    if trained < (outcome.parity_samples or 0) and outcome.stop_reason != "target":
        got = f"{trained:,} {outcome.sample_unit}"
        text = f"the round trained {got} of {expected} (stopped by {outcome.stop_reason})"
        return _no_parity(outcome, text, expected, got)
    batch = reference.batch(global_batch(outcome))
    reason = _other_target(outcome, reference)
    if reason is None and batch is None:
        sizes = " and ".join(f"a batch of {batch.global_batch:,}" for batch in reference.batches) or "no batch"
        reason = f"it has curves for {sizes}, but this round had {_batch_words(outcome)}"
    elif reason is None and batch and not batch.loss.rounds:
        reason = "it has no loss curves; set no parity_samples, and train to the target"
    if reason is not None or batch is None:
        return _no_parity(outcome, f"the suite's reference does not apply to this round: {reason}", "a reference")
    return _on_the_curve(outcome, batch, trained)


def _on_the_curve(outcome: Outcome, batch: Batch, trained: int) -> Verdict:
    unit = outcome.sample_unit
    ends = [samples for samples in batch.loss.samples if samples <= trained]
    covered = ends[-1] if ends else 0.0
    if len(ends) < FEWEST_PLACES:
        got, expected = f"{count(len(ends), 'point')} of the reference's curve", f"at least {FEWEST_PLACES}"
        return _no_parity(outcome, f"{trained:,} {unit} reach {got}, expected {expected}", expected, got)
    points = loss_points(outcome)
    rounds = [values[: len(ends)] for values in batch.loss.rounds]
    distance = curves.distance(curves.means(points, ends), curves.middle(rounds), ends)
    allowed = batch.tolerance(ends)
    ok = abs(distance.deviation) <= allowed.deviation and distance.area <= allowed.area
    side = "above" if distance.deviation > 0 else "below"
    mean = f"{quantity(abs(distance.deviation), 'share')} {side} on average"
    got = f"{mean}, {quantity(distance.area, 'share')} mean distance"
    expected = f"at most {quantity(allowed.deviation, 'share')} and {quantity(allowed.area, 'share')}"
    sentence = (
        f"round {outcome.round}: over {plain(covered)} {unit} the loss differs from the mean of"
        f" {count(len(batch.loss.rounds), 'reference round')}: {got}, expected {expected}"
    )
    return Verdict("parity", ok, got, expected, "" if ok else sentence)


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
        return f"it was made for {targets.text(other)}; the round's targets are {targets.text(own)}"
    return None


def _unknown(outcome: Outcome, reason: str, *, ok: bool) -> Verdict:
    sentence = f"round {outcome.round}: cannot judge whether the target was reached too early: {reason}"
    expected = "not earlier than the reference's rounds"
    return Verdict("not_too_early", ok, f"not judged: {reason}", expected, "" if ok else sentence)


def _no_parity(outcome: Outcome, reason: str, expected: str, got: str = "unknown") -> Verdict:
    sentence = f"round {outcome.round}: cannot judge the parity of the loss curve: {reason}"
    return Verdict("parity", False, got, expected, sentence)


def _batch_words(outcome: Outcome) -> str:
    return f"a batch of {global_batch(outcome) or 0:,} over all cards"
