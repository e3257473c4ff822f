"""Judgements of outcomes: pure functions; what is missing, not a number or unfinished is a failed verdict."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.units import compared, count, plain, quantity

ORDER_TOLERANCE = 0.02
"""How far p_train may lie below p_whole, and p_core below p_train: their clocks are not quite the same."""
MIN_MEASURED_STEPS = 10
SCALINGS = ("weak", "strong")


@dataclass(frozen=True)
class Verdict:
    """One named judgement; ``sentence`` stands alone and says got and wanted itself."""

    name: str
    ok: bool
    got: str
    wanted: str
    sentence: str
    expected: str | None = None
    """Why this failure is one that was told of beforehand; None for all others."""
    warning: bool = False
    """It is ok, and people should read its sentence all the same."""

    def to_json(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Verdict:
        return cls(**body)


@dataclass(frozen=True)
class OneCard:
    """What one card alone does, and where that figure is from: "this run", "a short round", ..."""

    p_core: float | None
    where_from: str
    unit: str = ""
    rounds: int = 1


def finished(outcome: Outcome | None) -> list[Verdict]:
    """The round ran to its end on every rank."""
    if outcome is None:
        return [Verdict("finished", False, "no outcome", "finished", "the round left no outcome at all")]
    if outcome.ok:
        sentence = f"round {outcome.round}: every rank finished ({outcome.stop_reason or 'no reason given'})"
        return [Verdict("finished", True, outcome.state, "finished", sentence)]
    if not outcome.failures:
        sentence = f"round {outcome.round}: its state is {outcome.state!r}, wanted 'finished'"
        return [Verdict("finished", False, outcome.state, "finished", sentence)]
    return [Verdict("finished", False, failure.kind, "finished", failure.sentence) for failure in outcome.failures]


def converges(outcome: Outcome | None) -> list[Verdict]:
    """It finished, learned on real data with a finite loss, and EVALUATE logged the target."""
    found = finished(outcome)
    if outcome is None:
        return found
    if not all(verdict.ok for verdict in found):
        # What an unfinished round reached says nothing; a bad loss may be why it did not finish.
        return [*found, *(verdict for verdict in _finite_loss(outcome) if outcome.losses.bad)]
    return [*found, *_finite_loss(outcome), *_real_data(outcome), *_target(outcome), *_agrees(outcome)]


def throughput(outcomes: Sequence[Outcome | None]) -> list[Verdict]:
    """Each round's throughputs are there, finite, in order, possible, and of the samples the steps say."""
    if not outcomes:
        return [Verdict("finished", False, "no outcome", "finished", "no round was run: there is no throughput")]
    return [verdict for outcome in outcomes for verdict in _throughput_of(outcome)]


def speedup(
    outcomes: Sequence[Outcome | None],
    one_card: OneCard | None,
    cards: int | None,
    min_efficiency: float | None,
    scaling: str,
) -> list[Verdict]:
    """The median p_core over the rounds against one card's: faster, and by what was promised."""
    if not outcomes:
        return [Verdict("finished", False, "no outcome", "finished", "no round was run: there is no speed-up")]
    found = [verdict for outcome in outcomes for verdict in finished(outcome)]
    if not all(verdict.ok for verdict in found):
        return found
    problem = _no_speedup(outcomes, one_card, cards, min_efficiency, scaling)
    if problem is not None:
        return [*found, problem]
    assert one_card is not None
    assert one_card.p_core is not None
    assert cards is not None
    assert min_efficiency is not None
    many = statistics.median(_p_core(outcome) for outcome in outcomes)
    unit = one_card.unit or next(outcome.rate_unit for outcome in outcomes if outcome)
    factor = many / one_card.p_core
    what = (
        f"{scaling} scaling: {cards} cards do {quantity(many, unit)},"
        f" one card {quantity(one_card.p_core, unit)} ({one_card.where_from})"
    )
    return [*found, _faster(factor, what), _efficient(factor / cards, factor, min_efficiency, what)]


def failed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if not verdict.ok]


def _finite_loss(outcome: Outcome) -> Iterator[Verdict]:
    losses, wanted = outcome.losses, "finite at every logged step and at the end"
    if losses.bad:
        got = quantity(losses.first_bad)
        sentence = (
            f"round {outcome.round}: the loss was {got} at step {losses.first_bad_step}"
            f" (the first of {count(losses.bad, 'such line')}), wanted it {wanted}"
        )
        yield Verdict("loss_finite", False, got, wanted, sentence)
    elif not losses.logged:
        sentence = f"round {outcome.round}: no step's loss was logged, wanted it {wanted}"
        yield Verdict("loss_finite", False, "no logged step", wanted, sentence)
    elif losses.final is None or not math.isfinite(losses.final):
        got = quantity(losses.final)
        sentence = f"round {outcome.round}: the loss at the end is {got}, wanted it {wanted}"
        yield Verdict("loss_finite", False, got, wanted, sentence)
    else:
        got = plain(losses.final)
        steps = count(losses.logged, "logged step")
        sentence = f"round {outcome.round}: the loss was finite at {steps}, at last {got}"
        yield Verdict("loss_finite", True, got, wanted, sentence)


def _real_data(outcome: Outcome) -> Iterator[Verdict]:
    if outcome.synthetic is not False:
        sentence = f"round {outcome.round}: synthetic data can't show convergence: train on the suite's own data"
        yield Verdict("real_data", False, "synthetic data", "the suite's data", sentence)
    if outcome.throughput_only is not False:
        sentence = f"round {outcome.round}: a throughput-only training can't show convergence"
        yield Verdict("real_data", False, "throughput only", "a training to the target", sentence)


def _target(outcome: Outcome) -> Iterator[Verdict]:
    target, quality, where = outcome.target, outcome.quality, f"round {outcome.round}"
    if target.value is None or not math.isfinite(target.value) or target.direction not in ("higher", "lower"):
        got = f"target {quantity(target.value)}, direction {target.direction!r}"
        sentence = f"{where}: the plan has no target that could be reached: {got}; a suite.toml declares both"
        yield Verdict("target", False, got, "a number and higher or lower", sentence)
        return
    sign = _sign(outcome)
    wanted = f"{target.name} {sign} {quantity(target.value, target.unit)}"
    if quality.bad:
        sentence = (
            f"{where}: {target.name} was missing or not a number in {quality.bad} of"
            f" {count(quality.evaluations, 'evaluation')}, wanted {wanted}"
        )
        yield Verdict("target", False, "NaN", wanted, sentence)
    elif not quality.evaluations or quality.last is None:
        sentence = f"{where}: no evaluation was logged, wanted {wanted}"
        yield Verdict("target", False, "no evaluation", wanted, sentence)
    elif quality.reached is None or not target.reached_by(quality.reached.metrics.get(target.name)):
        yield _missed(outcome, sign)
    else:
        reached = quality.reached
        got, limit = compared(reached.metrics[target.name], target.value, target.unit)
        sentence = (
            f"{where}: {target.name} reached {got} at step {reached.step:,}"
            f" ({count(reached.samples, 'sample')}), wanted {sign} {limit}"
        )
        yield Verdict("target", True, got, wanted, sentence)


def _missed(outcome: Outcome, sign: str) -> Verdict:
    target, quality = outcome.target, outcome.quality
    best, limit = compared(quality.best, target.value, target.unit)
    last = quantity(quality.last, target.unit)
    sentence = (
        f"round {outcome.round}: {target.name} reached {best} at best and {last} at last,"
        f" in {count(quality.evaluations, 'evaluation')} and {count(outcome.work.samples or 0, 'sample')}"
        f" (ended by {outcome.stop_reason or 'an unknown reason'}), wanted {target.name} {sign} {limit}"
    )
    return Verdict("target", False, best, f"{target.name} {sign} {limit}", sentence)


def _agrees(outcome: Outcome) -> Iterator[Verdict]:
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
        yield Verdict("agrees", False, f"converged: {said}", wanted, sentence)
    elif quality.program_final is not None and not _equal(quality.program_final, quality.last):
        got, logged = compared(quality.program_final, quality.last, outcome.target.unit)
        sentence = f"{where}: FINISHED says {outcome.target.name} {got}, but the last EVALUATE logged {logged}"
        yield Verdict("agrees", False, got, logged, sentence)
    else:
        sentence = f"{where}: FINISHED says what EVALUATE logged (converged: {str(reached).lower()})"
        yield Verdict("agrees", True, f"converged: {str(reached).lower()}", wanted, sentence)


def _equal(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return False
    # Two NaN agree: that the metric is none is another verdict's business.
    return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-9)


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


def _no_speedup(
    outcomes: Sequence[Outcome | None],
    one_card: OneCard | None,
    cards: int | None,
    min_efficiency: float | None,
    scaling: str,
) -> Verdict | None:
    """Why no speed-up can be said."""
    bad = [outcome for outcome in outcomes if not _positive(_p_core(outcome))]
    if bad:
        got = quantity(_p_core(bad[0]))
        return _unsaid(f"round {bad[0].round if bad[0] else '?'}: p_core is {got}", got, "p_core above 0")
    if one_card is None or not _positive(one_card.p_core):
        got = quantity(one_card.p_core if one_card else None)
        where = f" ({one_card.where_from})" if one_card else ""
        return _unsaid(f"one card's p_core is {got}{where}", got, "one card's p_core above 0")
    if cards is None or cards < 2:
        return _unsaid(f"the case has {cards} card(s), two at least are needed", str(cards), "2 or more")
    if min_efficiency is None or not math.isfinite(min_efficiency) or min_efficiency < 0:
        got = quantity(min_efficiency)
        text = f"the least efficiency is {got}: set min_efficiency in vendor.toml or the case's config"
        return _unsaid(text, got, "a declared min_efficiency")
    if scaling not in SCALINGS:
        text = f"scaling is {scaling!r}, allowed are {' and '.join(SCALINGS)}"
        return _unsaid(text, repr(scaling), " or ".join(SCALINGS))
    if one_card.unit and any(outcome and outcome.rate_unit != one_card.unit for outcome in outcomes):
        return _unsaid(f"one card was measured in {one_card.unit}", one_card.unit, "the same unit")
    return None


def _unsaid(why: str, got: str, wanted: str) -> Verdict:
    return Verdict("speedup", False, got, wanted, f"no speed-up can be told: {why}")


def _faster(factor: float, what: str) -> Verdict:
    got = compared(factor, 1.0, "x")[0]
    ok = factor > 1
    sentence = f"{what}: speed-up {got}" + ("" if ok else ", wanted more than one card alone does")
    return Verdict("speedup", ok, got, "above 1x", sentence)


def _efficient(efficiency: float, factor: float, least: float, what: str) -> Verdict:
    got, wanted = compared(efficiency, least, "share")
    ok = efficiency >= least
    sentence = f"{what}: speed-up {quantity(factor, 'x')}, efficiency {got}, wanted at least {wanted}"
    return Verdict("efficiency", ok, got, f"at least {wanted}", sentence)


def _p_core(outcome: Outcome | None) -> float:
    value = outcome.value("p_core") if outcome else None
    return math.nan if value is None else value


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _sign(outcome: Outcome) -> str:
    return ">=" if outcome.target.direction == "higher" else "<="
