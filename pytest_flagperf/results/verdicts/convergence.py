"""Whether a training did what its suite wants, to its target and on its own data: pure functions of its outcome."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.units import compared, count, plain, quantity
from pytest_flagperf.results.verdicts.reference import step_samples
from pytest_flagperf.results.verdicts.verdict import Kind, Verdict


def finite_loss(outcome: Outcome) -> Iterator[Verdict]:
    losses, wanted = outcome.losses, "finite at every logged step and at the end"
    if losses.bad:
        got = quantity(losses.first_bad)
        sentence = (
            f"round {outcome.round}: the loss was {got} at step {losses.first_bad_step}"
            f" (the first of {count(losses.bad, 'such line')}), wanted it {wanted}"
        )
        yield Verdict("loss_finite", False, got, wanted, sentence, kind=Kind.CONVERGENCE)
    elif not losses.logged:
        sentence = f"round {outcome.round}: no step's loss was logged, wanted it {wanted}"
        yield Verdict("loss_finite", False, "no logged step", wanted, sentence, kind=Kind.CONVERGENCE)
    elif losses.final is None or not math.isfinite(losses.final):
        got = quantity(losses.final)
        sentence = f"round {outcome.round}: the loss at the end is {got}, wanted it {wanted}"
        yield Verdict("loss_finite", False, got, wanted, sentence, kind=Kind.CONVERGENCE)
    else:
        got = plain(losses.final)
        steps = count(losses.logged, "logged step")
        sentence = f"round {outcome.round}: the loss was finite at {steps}, at last {got}"
        yield Verdict("loss_finite", True, got, wanted, sentence, kind=Kind.CONVERGENCE)


def real_data(outcome: Outcome) -> Iterator[Verdict]:
    if outcome.synthetic is not False:
        sentence = f"round {outcome.round}: synthetic data can't show convergence: train on the suite's own data"
        yield Verdict("real_data", False, "synthetic data", "the suite's data", sentence, kind=Kind.CONVERGENCE)
    if outcome.throughput_only is not False:
        sentence = f"round {outcome.round}: a throughput-only training can't show convergence"
        yield Verdict(
            "real_data", False, "throughput only", "a training to the target", sentence, kind=Kind.CONVERGENCE
        )


def reached(outcome: Outcome) -> Iterator[Verdict]:
    target, quality, where = outcome.target, outcome.quality, f"round {outcome.round}"
    if target.value is None or not math.isfinite(target.value) or target.direction not in ("higher", "lower"):
        got = f"target {quantity(target.value)}, direction {target.direction!r}"
        sentence = f"{where}: the plan has no target that could be reached: {got}; a suite.toml declares both"
        yield Verdict("target", False, got, "a number and higher or lower", sentence, kind=Kind.CONVERGENCE)
        return
    sign = target.sign
    wanted = f"{target.name} {sign} {quantity(target.value, target.unit)}"
    if quality.bad:
        sentence = (
            f"{where}: {target.name} was missing or not a number in {quality.bad} of"
            f" {count(quality.evaluations, 'evaluation')}, wanted {wanted}"
        )
        yield Verdict("target", False, "NaN", wanted, sentence, kind=Kind.CONVERGENCE)
    elif not quality.evaluations or quality.last is None:
        sentence = f"{where}: no evaluation was logged, wanted {wanted}"
        yield Verdict("target", False, "no evaluation", wanted, sentence, kind=Kind.CONVERGENCE)
    elif quality.reached is None or not target.reached_by(quality.reached.metrics.get(target.name)):
        yield _missed(outcome, sign)
    elif (late := _too_late(outcome)) is not None:
        yield late
    else:
        reached = quality.reached
        got, limit = compared(reached.metrics[target.name], target.value, target.unit)
        # The first value at the target says nothing of what the training would reach.
        stopped = ", where the training stopped" if outcome.stop_reason == "target" else ""
        sentence = (
            f"{where}: {target.name} reached {got} at step {reached.step:,}"
            f" ({count(reached.samples, 'sample')}){stopped}, wanted {sign} {limit}"
        )
        yield Verdict("target", True, got, wanted, sentence, kind=Kind.CONVERGENCE)


def _too_late(outcome: Outcome) -> Verdict | None:
    """Reached, but with more training than the config allows; a step may begin below the limit and end above it."""
    reached, limits = outcome.quality.reached, outcome.limits
    assert reached is not None
    samples = reached.samples - step_samples(outcome) + 1
    for name, got, least in (
        ("max_steps", reached.step, reached.step),
        ("max_samples", reached.samples, samples),
        ("max_epochs", outcome.work.epochs, outcome.work.epochs),
    ):
        if least is not None and got is not None and least > limits.get(name, math.inf):
            unit = name.removeprefix("max_")
            said, wanted = f"{plain(got)} {unit}", f"within {plain(limits[name])} {unit}"
            sentence = f"round {outcome.round}: {outcome.target.name} reached the target after {said}, wanted {wanted}"
            return Verdict("target", False, said, wanted, f"{sentence} ({name})", kind=Kind.CONVERGENCE)
    return None


def _missed(outcome: Outcome, sign: str) -> Verdict:
    target, quality = outcome.target, outcome.quality
    best, limit = compared(quality.best, target.value, target.unit)
    last = quantity(quality.last, target.unit)
    sentence = (
        f"round {outcome.round}: {target.name} reached {best} at best and {last} at last,"
        f" in {count(quality.evaluations, 'evaluation')} and {count(outcome.work.samples or 0, 'sample')}"
        f" (ended by {outcome.stop_reason or 'an unknown reason'}), wanted {target.name} {sign} {limit}"
    )
    return Verdict("target", False, best, f"{target.name} {sign} {limit}", sentence, kind=Kind.CONVERGENCE)


def agrees(outcome: Outcome) -> Iterator[Verdict]:
    """What FINISHED says of the training against what EVALUATE logged; the log is believed."""
    quality, where = outcome.quality, f"round {outcome.round}"
    reached = quality.reached is not None
    wanted = f"converged: {str(reached).lower()}, as EVALUATE logged"
    if quality.program_converged is not reached:
        said = "nothing" if quality.program_converged is None else str(quality.program_converged).lower()
        sentence = (
            f"{where}: FINISHED says converged: {said}, by what EVALUATE logged it is {str(reached).lower()}"
            f" (last {outcome.target.name}: {quantity(quality.last, outcome.target.unit)})"
        )
        yield Verdict("agrees", False, f"converged: {said}", wanted, sentence, kind=Kind.CONVERGENCE)
    elif quality.program_final is not None and not _equal(quality.program_final, quality.last):
        got, logged = compared(quality.program_final, quality.last, outcome.target.unit)
        sentence = f"{where}: FINISHED says {outcome.target.name} {got}, but the last EVALUATE logged {logged}"
        yield Verdict("agrees", False, got, logged, sentence, kind=Kind.CONVERGENCE)
    else:
        sentence = f"{where}: FINISHED says what EVALUATE logged (converged: {str(reached).lower()})"
        yield Verdict("agrees", True, f"converged: {str(reached).lower()}", wanted, sentence, kind=Kind.CONVERGENCE)


def _equal(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return False
    # Two NaN agree: that the metric is none is another verdict's business.
    return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-9)
