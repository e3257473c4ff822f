"""Verdicts on convergence: a finite loss, the suite's own data, the target reached in time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_flagperf.kinds.training.verdicts.reference import step_samples
from pytest_flagperf.results.figures import targets
from pytest_flagperf.results.figures.units import compared, count, plain, quantity
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.verdict import Verdict


def finite_loss(outcome: Outcome) -> Iterator[Verdict]:
    losses, expected = outcome.losses, "finite at every logged step and at the end"
    if losses.bad:
        got = quantity(losses.first_bad)
        sentence = (
            f"round {outcome.round}: the loss was {got} at step {losses.first_bad_step}"
            f" (the first of {count(losses.bad, 'such line')}), expected {expected}"
        )
        yield Verdict("loss_finite", False, got, expected, sentence)
    elif not losses.logged:
        sentence = f"round {outcome.round}: no step's loss was logged, expected {expected}"
        yield Verdict("loss_finite", False, "no logged step", expected, sentence)
    elif losses.final is None or not math.isfinite(losses.final):
        got = quantity(losses.final)
        sentence = f"round {outcome.round}: the loss at the end is {got}, expected {expected}"
        yield Verdict("loss_finite", False, got, expected, sentence)
    else:
        yield Verdict("loss_finite", True, plain(losses.final), expected)


def real_data(outcome: Outcome) -> Iterator[Verdict]:
    if outcome.synthetic is not False:
        sentence = f"round {outcome.round}: synthetic data can't show convergence: train on the suite's own data"
        yield Verdict("real_data", False, "synthetic data", "the suite's data", sentence)
    if outcome.throughput_only is not False:
        sentence = f"round {outcome.round}: a throughput-only training can't show convergence"
        yield Verdict("real_data", False, "throughput only", "a training to the target", sentence)


def experts(outcome: Outcome) -> Iterator[Verdict]:
    """Judge whether the router of a mixture still uses all experts; nothing without ``max_expert_load``."""
    limit, where = outcome.limits.get("max_expert_load"), f"round {outcome.round}"
    if limit is None:
        return
    load, entropy = outcome.value("expert_load"), outcome.value("expert_entropy")
    expected = f"at most {quantity(limit, 'x')} the mean (max_expert_load)"
    if load is None or not math.isfinite(load):
        sentence = f"{where}: no load of the experts was logged, expected {expected}"
        yield Verdict("experts", False, "no load", expected, sentence)
        return
    got, _ = compared(load, limit, "x")
    evenness = "" if entropy is None else f", and the entropy of its experts' shares is {quantity(entropy, 'share')}"
    sentence = (
        f"{where}: the router has collapsed: at the end an expert of a layer got {got} as many tokens as the mean of "
        f"the layer's experts{evenness}; expected {expected}"
    )
    yield Verdict("experts", load <= limit, got, expected, "" if load <= limit else sentence)


def reached(outcome: Outcome) -> Iterator[Verdict]:
    """Judge whether a logged evaluation reached the target within the limits of the config."""
    target, quality, where = outcome.target, outcome.quality, f"round {outcome.round}"
    if target.value is None or not math.isfinite(target.value) or target.direction not in ("higher", "lower"):
        got, expected = f"target {quantity(target.value)}, direction {target.direction!r}", "a number, higher or lower"
        sentence = f"{where}: the plan has an invalid target: {got}; expected {expected}, as in suite.toml"
        yield Verdict("target", False, got, expected, sentence)
        return
    expected = targets.text(target)
    if quality.bad:
        sentence = (
            f"{where}: {' or '.join(target.values)} was missing or not a number in {quality.bad} of"
            f" {count(quality.evaluations, 'evaluation')}, expected {expected}"
        )
        yield Verdict("target", False, "NaN", expected, sentence)
    elif not quality.evaluations or quality.last is None:
        sentence = f"{where}: no evaluation was logged, expected {expected}"
        yield Verdict("target", False, "no evaluation", expected, sentence)
    elif quality.reached is None or not target.reached_by(quality.reached.metrics):
        yield _missed(outcome)
    elif (late := _too_late(outcome)) is not None:
        yield late
    else:
        metrics = quality.reached.metrics
        values = {name: compared(metrics[name], value, target.unit)[0] for name, value in target.values.items()}
        got = ", ".join(f"{name} {value}" for name, value in values.items()) if target.also else values[target.name]
        yield Verdict("target", True, got, expected)


def _too_late(outcome: Outcome) -> Verdict | None:
    """Fail a target that was reached beyond the config's limits; the step that crosses a limit still counts."""
    reached, limits = outcome.quality.reached, outcome.limits
    assert reached is not None
    samples = reached.samples - step_samples(outcome) + 1
    for name, value, least in (
        ("max_steps", reached.step, reached.step),
        ("max_samples", reached.samples, samples),
        ("max_epochs", outcome.work.epochs, outcome.work.epochs),
    ):
        if least is not None and value is not None and least > limits.get(name, math.inf):
            unit = name.removeprefix("max_")
            got, expected = f"{plain(value)} {unit}", f"at most {plain(limits[name])} {unit}"
            names = " and ".join(outcome.target.values)
            sentence = f"round {outcome.round}: {names} reached the target after {got}"
            return Verdict("target", False, got, expected, f"{sentence}, expected {expected} ({name})")
    return None


def _missed(outcome: Outcome) -> Verdict:
    target, quality = outcome.target, outcome.quality
    bests, limits, parts = [], [], []
    for name, metric in quality.of(target).items():
        best, limit = compared(metric.best, target.values[name], target.unit)
        bests.append(best)
        limits.append(f"{name} {target.sign} {limit}")
        parts.append(f"{name} reached {best} at best and {quantity(metric.last, target.unit)} at last")
    best, expected = ", ".join(bests), " and ".join(limits)
    sentence = (
        f"round {outcome.round}: {'; '.join(parts)},"
        f" in {count(quality.evaluations, 'evaluation')} and {count(outcome.work.samples or 0, 'sample')}"
        f" (stopped by {outcome.stop_reason or 'an unknown reason'}), expected {expected}"
    )
    if target.also:
        never = [name for name, metric in quality.of(target).items() if not target.met(name, metric.best)]
        sentence += f" in one evaluation; no evaluation reached {' or '.join(never) or 'all'}"
    return Verdict("target", False, best, expected, sentence)


def agrees(outcome: Outcome) -> Iterator[Verdict]:
    """Compare the FINISHED line with the evaluations in the log, which decide."""
    quality, target, where = outcome.quality, outcome.target, f"round {outcome.round}"
    reached = quality.reached is not None
    expected = f"converged: {str(reached).lower()}, by the logged evaluations"
    if quality.program_converged is not reached:
        got = "missing" if quality.program_converged is None else str(quality.program_converged).lower()
        sentence = (
            f"{where}: FINISHED has converged: {got}, expected {str(reached).lower()} by the logged evaluations"
            f" (last {outcome.target.name}: {quantity(quality.last, outcome.target.unit)})"
        )
        yield Verdict("agrees", False, f"converged: {got}", expected, sentence)
        return
    for name, metric in quality.of(target).items():
        if metric.program_final is not None and not _equal(metric.program_final, metric.last):
            got, logged = compared(metric.program_final, metric.last, target.unit)
            sentence = f"{where}: FINISHED has {name} {got}, expected {logged} by the last evaluation"
            yield Verdict("agrees", False, got, logged, sentence)
            return
    yield Verdict("agrees", True, f"converged: {str(reached).lower()}", expected)


def _equal(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return False
    # Two NaN are equal here: the verdict on the target fails for them.
    return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-9)
