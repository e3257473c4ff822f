"""A round against the suite's reference: not at the target too early, its loss where the reference's rounds had it."""

from __future__ import annotations

import math

from pytest_flagperf.results.logs import curves
from pytest_flagperf.results.measured.outcome import Evaluation, Outcome
from pytest_flagperf.results.units import compared, count, plain, quantity
from pytest_flagperf.results.verdicts.reference import (
    EVALUATIONS,
    Batch,
    Reference,
    global_batch,
    loss_points,
    step_samples,
)
from pytest_flagperf.results.verdicts.verdict import Kind, Verdict
from pytest_flagperf.stored import FormatError

FEWEST_PLACES = 3
"""A loss curve of fewer places has no shape."""


def not_too_early(outcome: Outcome) -> Verdict | None:
    """As MLPerf's reference convergence points: fewer samples than honest rounds need were not trained honestly.

    The samples of the evaluation at the target count, not where the metric crossed the target before that. So the
    evaluation before must be near: after a long gap a false evaluation cannot be distinguished from an honest one.
    """
    reached = outcome.quality.reached
    if reached is None:
        return None
    reference = _reference(outcome)
    if isinstance(reference, str):
        # A reference that is broken is somebody's mistake; that there is none is not.
        return _unknown(outcome, reference, ok=outcome.reference is None)
    why_not = _unlike(outcome, reference)
    bound = reference.earliest(global_batch(outcome) or 0)
    if why_not is None and bound is None:
        why_not = f"its smallest batch is {reference.batches[0].global_batch:,}" if reference.batches else "it is empty"
    if why_not is not None or bound is None:
        return _unknown(outcome, f"the suite's reference does not speak of this round: {why_not}", ok=True)
    return _long_gap(outcome, reached, bound) or _early(outcome, reached.samples, bound, reference)


def _long_gap(outcome: Outcome, reached: Evaluation, bound: float) -> Verdict | None:
    """A failure where no evaluation was logged shortly before the one at the target."""
    before = max((one.samples for one in outcome.evaluations if one.samples < reached.samples), default=0)
    gap, step = reached.samples - before, step_samples(outcome)
    most = max(bound / EVALUATIONS, step)
    if gap <= most:
        return None
    unit, steps = outcome.sample_unit, count(math.floor(most / step), "step")
    expected = f"at most {math.floor(most):,} {unit} between two evaluations"
    sentence = (
        f"round {outcome.round}: {outcome.target.name} was at the target after {reached.samples:,} {unit} and no"
        f" evaluation was logged in the {gap:,} {unit} before, expected {expected} with {_batch_words(outcome)}:"
        f" a false evaluation would not show otherwise; evaluate every {steps} or more often (eval_steps)"
    )
    return Verdict(
        "not_too_early", False, f"{gap:,} {unit} without an evaluation", expected, sentence, kind=Kind.CONVERGENCE
    )


def _early(outcome: Outcome, samples: int, bound: float, reference: Reference) -> Verdict:
    unit = outcome.sample_unit
    got, least = compared(samples, math.ceil(bound))
    wanted = f"at least {least} {unit}"
    sentence = f"round {outcome.round}: {outcome.target.name} was at the target after {got} {unit}, wanted {wanted}"
    sentence += f" with {_batch_words(outcome)}: {_honest(reference, outcome)}"
    ok = samples >= bound
    if not ok:
        sentence += "; what is trained, or how it is evaluated, is not what the suite says"
    return Verdict("not_too_early", ok, f"{got} {unit}", wanted, sentence, kind=Kind.CONVERGENCE)


def _honest(reference: Reference, outcome: Outcome) -> str:
    """What the bound rests on."""
    size = global_batch(outcome) or 0
    batch = reference.batch(size)
    if batch is None:
        near = [one.global_batch for one in reference.batches]
        return f"by the reference of {' and '.join(f'{each:,}' for each in near)}"
    lowest, highest = (plain(edge(batch.to_target)) for edge in (min, max))
    return f"{count(len(batch.to_target), 'reference round')} took {lowest} to {highest}"


def parity(outcome: Outcome) -> Verdict:
    """The loss over the first samples against the reference's at the same places."""
    reference, wanted = _reference(outcome), f"{outcome.parity_samples or 0:,} {outcome.sample_unit}"
    if isinstance(reference, str):
        return _no_parity(outcome, reference, "a reference")
    trained = outcome.work.samples or 0
    if trained < (outcome.parity_samples or 0) and outcome.stop_reason != "target":
        got = f"{trained:,} {outcome.sample_unit}"
        return _no_parity(outcome, f"it trained {got} of {wanted} (ended by {outcome.stop_reason})", wanted, got)
    batch = reference.batch(global_batch(outcome))
    why_not = _unlike(outcome, reference)
    if why_not is None and batch is None:
        why_not = f"it has curves for {_sizes(reference)}, and this round had {_batch_words(outcome)}"
    if why_not is not None or batch is None:
        return _no_parity(outcome, f"the suite's reference does not speak of this round: {why_not}", "a reference")
    return _on_the_curve(outcome, batch, trained)


def _on_the_curve(outcome: Outcome, batch: Batch, trained: int) -> Verdict:
    unit = outcome.sample_unit
    ends = [samples for samples in batch.loss.samples if samples <= trained]
    covered = ends[-1] if ends else 0.0
    if len(ends) < FEWEST_PLACES:
        got = f"{count(len(ends), 'place')} of the reference's curve"
        return _no_parity(outcome, f"{trained:,} {unit} reach {got}", f"{FEWEST_PLACES} or more", got)
    points = loss_points(outcome)
    rounds = [values[: len(ends)] for values in batch.loss.rounds]
    found, allowed = curves.apart(curves.means(points, ends), curves.middle(rounds), ends), batch.tolerance(ends)
    ok = abs(found.deviation) <= allowed.deviation and found.area <= allowed.area
    said = f"{_signed(found.deviation)} on average and {quantity(found.area, 'share')} apart place by place"
    wanted = f"within {quantity(allowed.deviation, 'share')} and {quantity(allowed.area, 'share')}"
    sentence = (
        f"round {outcome.round}: over {plain(covered)} {unit} the loss lies {said} from the mean of"
        f" {count(len(batch.loss.rounds), 'reference round')}, {'' if ok else 'wanted '}{wanted}: parity with the"
        " reference was judged, not convergence"
    )
    return Verdict("parity", ok, said, wanted, sentence, kind=Kind.CONVERGENCE)


def _reference(outcome: Outcome) -> Reference | str:
    """The reference, or why there is none to judge by."""
    if outcome.reference is None:
        return (
            f"the suite has no reference for the {outcome.scale} scale; flagperf reference makes one of five rounds"
            " that converged"
        )
    try:
        return Reference.from_json(outcome.reference, "the suite's reference")
    except FormatError as error:
        return str(error)


def _unlike(outcome: Outcome, reference: Reference) -> str | None:
    mine, its = outcome.target, reference.target
    if (mine.name, mine.direction) != (its.name, its.direction):
        return f"it is about {its.name} ({its.direction} is better)"
    if mine.value is None or its.value is None or not math.isclose(mine.value, its.value):
        got, wanted = compared(its.value, mine.value, mine.unit)
        return f"it was made for a target of {got}, and the target is {wanted}"
    return None


def _unknown(outcome: Outcome, why: str, *, ok: bool) -> Verdict:
    sentence = f"round {outcome.round}: whether the target came too early can't be told: {why}"
    return Verdict(
        "not_too_early", ok, "not known", "not earlier than the reference's rounds", sentence, kind=Kind.CONVERGENCE
    )


def _no_parity(outcome: Outcome, why: str, wanted: str, got: str = "not known") -> Verdict:
    return Verdict(
        "parity",
        False,
        got,
        wanted,
        f"round {outcome.round}: no parity of the loss curve: {why}",
        kind=Kind.CONVERGENCE,
    )


def _batch_words(outcome: Outcome) -> str:
    return f"a batch of {global_batch(outcome) or 0:,} over all cards"


def _sizes(reference: Reference) -> str:
    return " and ".join(f"a batch of {batch.global_batch:,}" for batch in reference.batches) or "no batch"


def _signed(share: float) -> str:
    return f"{quantity(abs(share), 'share')} {'above' if share > 0 else 'below'}"
