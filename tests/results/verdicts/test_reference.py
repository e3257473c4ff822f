"""A suite's reference: what is made of rounds, and what it says of others: too early, on the curve or off it."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.kinds.training.verdicts import converges, reference
from pytest_flagperf.kinds.training.verdicts.reference import Reference
from pytest_flagperf.plan import PlanRequest, make_plan
from pytest_flagperf.results.logs import curves
from pytest_flagperf.results.measured.outcome import Evaluation, Outcome, Step, Target
from pytest_flagperf.results.verdicts import Verdict, failed
from pytest_flagperf.stored import FormatError
from tests.helpers.results_help import recorded

SUITES = Path(__file__).resolve().parents[3] / "suites"


def round_of(seed: int, *, to_target: float = 26_000, batch: int = 64, direction: str = "higher") -> Outcome:
    """A training whose metric and loss follow one law, a seed's own a little off it."""
    dice = random.Random(seed)
    need = to_target * math.exp(dice.gauss(0, 0.08))
    sign = 1 if direction == "higher" else -1
    loss_off = math.exp(dice.gauss(0, 0.01))
    evaluations, samples = [], 0
    while samples < need:
        samples += 3200
        evaluations.append(Evaluation(samples // batch, samples, samples / 1000, {"top1": sign * samples / need}))
    steps = tuple(
        Step(n // batch, n, n / 1000, loss_off * (5 * math.exp(-n / 8000) + 1) + dice.gauss(0, 0.02), 1.0, 0.1)
        for n in range(640, samples + 1, 640)
    )
    good = recorded("converged_1x1")
    last = evaluations[-1]
    value = last.metrics["top1"]
    quality = replace(
        good.quality, reached=last, last=value, best=value, evaluations=len(evaluations), program_final=value
    )
    work = replace(good.work, samples=samples, steps=samples // batch, batch_per_card=batch)
    return replace(
        good,
        seed=seed,
        round=seed,
        target=Target("top1", direction, "fraction", float(sign)),
        evaluations=tuple(evaluations),
        untrained=Evaluation(0, 0, 0.0, {"top1": sign * 0.01}),
        steps=steps,
        quality=quality,
        work=work,
    )


def made(*batches: Sequence[Outcome]) -> Reference:
    first = batches[0][0]
    found = tuple(reference.of_rounds([("run1", one) for one in rounds]) for rounds in batches)
    return Reference(first.model, first.framework, first.scale, first.sample_unit, first.target, found)


def against(outcome: Outcome, held: Reference, **changes: Any) -> dict[str, Verdict]:
    judged = replace(outcome, reference=json.loads(held.text()), **changes)
    return {verdict.name: verdict for verdict in converges(judged)}


TEN = [round_of(seed) for seed in range(1, 11)]
HELD = made(TEN)


def test_a_reference_survives_its_file_and_is_short() -> None:
    assert Reference.from_json(json.loads(HELD.text())) == HELD
    assert len(HELD.text()) < 5000
    assert max(map(len, HELD.text().splitlines())) < 400
    assert len(HELD.batches[0].loss.samples) <= reference.POINTS


@pytest.mark.parametrize("wrong", [{}, {"schema": 1}, {"schema": 2, "of": {}}, {"schema": 1, "of": {"model": "m"}}])
def test_what_is_no_reference_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        Reference.from_json(wrong)
    for also in ([0.5], {"top5": "high"}, {"top5": None}):
        body = json.loads(HELD.text())
        body["of"]["target"]["also"] = also
        with pytest.raises(FormatError, match=r"reference: target\.also"):
            Reference.from_json(body)
    found = {one.name: one for one in converges(replace(TEN[0], reference={"schema": 1, "of": {}}))}
    assert not found["not_too_early"].ok


def test_too_few_rounds_and_curves_of_unlike_lengths_make_no_reference() -> None:
    few = json.loads(HELD.text())
    few["of"]["batches"][0]["to_target"] = [1.0] * (reference.FEWEST - 1)
    with pytest.raises(FormatError, match="to_target"):
        Reference.from_json(few)
    cut = json.loads(HELD.text())
    cut["of"]["batches"][0]["loss"]["rounds"][1].pop()
    with pytest.raises(FormatError, match="each with as many values as samples"):
        Reference.from_json(cut)


@pytest.mark.parametrize("direction", ["higher", "lower"])
@pytest.mark.integration
def test_honest_rounds_are_not_called_too_early(direction: str) -> None:
    """300 judged by references of ten others each."""
    alarms = 0
    for group in range(30):
        first = 1000 * (group + 1)
        held = made([round_of(first + seed, direction=direction) for seed in range(10)])
        for seed in range(10):
            found = against(round_of(first + 100 + seed, direction=direction), held)["not_too_early"]
            alarms += not found.ok
    assert alarms <= 2


@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_half_the_samples_are_too_early(direction: str) -> None:
    held = made([round_of(seed, direction=direction) for seed in range(1, 11)])
    found = against(round_of(50, to_target=12_000, direction=direction), held)
    assert not found["not_too_early"].ok
    for words in ("top1 reached the target after", "expected at least", "10 reference rounds needed"):
        assert words in found["not_too_early"].sentence
    assert [one.name for one in failed(list(found.values()))] == ["not_too_early"]


@pytest.mark.parametrize("every", [640, 1280, 3200, 6400, 9536])
def test_a_false_evaluation_shows_at_any_permitted_interval_and_an_honest_one_passes(every: int) -> None:
    bound = HELD.earliest(64)
    assert bound is not None
    assert every <= bound / reference.EVALUATIONS
    for false_from in (1, bound / 4, bound / reference.EVALUATIONS):
        assert not against(evaluated(every, false_from), HELD)["not_too_early"].ok
    for seed in range(50, 60):
        assert against(evaluated(every, seed=seed), HELD)["not_too_early"].ok


@pytest.mark.parametrize("every", [9984, 19_200, 60_032])
def test_evaluations_that_are_too_far_apart_fail_whether_false_or_honest(every: int) -> None:
    for outcome in (evaluated(every, false_from=1), evaluated(every)):
        found = against(outcome, HELD)["not_too_early"]
        assert not found.ok
        for words in ("no evaluation was logged in the", "or more often (eval_steps)"):
            assert words in found.sentence or "expected at least" in found.sentence


def test_a_step_longer_than_the_permitted_interval_is_evaluated_after_each_step() -> None:
    wide = evaluated(12_800, batch=12_800)
    assert against(wide, HELD)["not_too_early"].ok
    assert not against(replace(wide, work=replace(wide.work, batch_per_card=6_400)), HELD)["not_too_early"].ok


def evaluated(every: int, false_from: float = math.inf, *, seed: int = 50, batch: int = 64) -> Outcome:
    """An honest training with another interval; from ``false_from`` samples on its evaluations are false."""
    need = 26_000 * math.exp(random.Random(seed).gauss(0, 0.08))
    ends = [*range(every, math.ceil(need) + every, every)]
    values = [1.5 if samples >= false_from else samples / need for samples in ends]
    evaluations = [Evaluation(n // batch, n, n / 1000, {"top1": value}) for n, value in zip(ends, values, strict=True)]
    reached = next(one for one in evaluations if one.metrics["top1"] >= 1)
    honest = round_of(seed, batch=batch)
    quality = replace(honest.quality, reached=reached)
    return replace(honest, evaluations=tuple(evaluations), quality=quality)


def test_a_missing_reference_is_reported_and_one_of_another_target_says_nothing() -> None:
    found = next(one for one in converges(TEN[0]) if one.name == "not_too_early")
    assert found.ok
    assert "the suite has no reference for the small scale" in found.got
    other = replace(HELD, target=replace(HELD.target, value=0.5))
    found = against(TEN[0], other)["not_too_early"]
    assert found.ok
    assert "made for a target of 0.500" in found.got


def test_the_bound_between_two_batches_lies_between_and_a_larger_one_may_lower_it() -> None:
    quick = made(TEN, [round_of(seed, to_target=20_000, batch=256) for seed in range(1, 11)])
    assert quick.earliest(64) == quick.earliest(256) == quick.batches[1].earliest
    wide = [round_of(seed, to_target=40_000, batch=256) for seed in range(1, 11)]
    both = made(TEN, wide)
    low, high = both.earliest(64), both.earliest(256)
    assert low is not None
    assert high is not None
    assert low < high
    assert both.earliest(160) == pytest.approx((low + high) / 2)
    assert both.earliest(4096) == high
    assert both.earliest(32) is None
    assert "smallest batch is 64" in against(round_of(1, batch=32), both)["not_too_early"].got


def stopped(outcome: Outcome, samples: int, factor: float = 1.0, bend: float = 0.0) -> Outcome:
    """The same training, stopped for parity; its losses off by a factor, and more towards the end."""
    steps = tuple(
        replace(step, loss=step.loss * (factor + bend * (0.5 - step.samples / samples)))
        for step in outcome.steps
        if step.samples <= samples
    )
    work = replace(outcome.work, samples=samples, steps=steps[-1].step)
    quality = replace(outcome.quality, reached=None, last=0.5, program_converged=False, program_final=0.5)
    return replace(
        outcome, steps=steps, work=work, quality=quality, stop_reason="parity", parity_samples=samples, evaluations=()
    )


@pytest.mark.integration
def test_honest_curves_are_on_the_reference_s() -> None:
    """300 judged by references of ten others each, over three lengths."""
    alarms = 0
    for group in range(30):
        held = made([round_of(1000 * group + seed) for seed in range(10)])
        for seed in range(10):
            honest = stopped(round_of(1000 * group + 100 + seed), (6400, 12_800, 19_200)[group % 3])
            found = against(honest, held)
            assert "target" not in found
            alarms += not found["parity"].ok
    assert alarms <= 6


def test_a_curve_off_the_reference_s_fails_by_height_or_by_shape() -> None:
    assert against(stopped(TEN[0], 12_800), HELD)["parity"].ok
    high = against(stopped(TEN[0], 12_800, factor=1.15), HELD)["parity"]
    assert not high.ok
    assert "above on average" in high.sentence
    assert not against(stopped(TEN[0], 12_800, factor=0.85), HELD)["parity"].ok
    bent = against(stopped(TEN[0], 12_800, bend=0.6), HELD)["parity"]
    assert not bent.ok


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda one: replace(one, work=replace(one.work, samples=6400), stop_reason="max_steps"), "trained 6,400"),
        (lambda one: replace(one, work=replace(one.work, batch_per_card=32)), "a batch of 32 over all cards"),
        (lambda one: replace(one, parity_samples=640, work=replace(one.work, samples=640)), "reach 0 points"),
    ],
)
def test_unknown_parity_is_a_failure(spoil: Any, words: str) -> None:
    found = against(spoil(stopped(TEN[0], 12_800)), HELD)["parity"]
    assert not found.ok
    assert words in found.sentence


def test_parity_needs_a_reference() -> None:
    found = {one.name: one for one in converges(stopped(TEN[0], 12_800))}
    assert not found["parity"].ok
    assert "python -m tools.calibrate" in found["parity"].sentence


def test_a_reference_without_curves_judges_too_early_but_no_parity() -> None:
    none = reference.Curves((), ())
    points = replace(HELD, batches=(replace(HELD.batches[0], metric=none, loss=none),))
    assert against(TEN[0], points)["not_too_early"].ok
    assert not against(round_of(50, to_target=13_000), points)["not_too_early"].ok
    found = against(stopped(TEN[0], 12_800), points)["parity"]
    assert not found.ok
    assert "has no loss curves" in found.sentence


def test_the_tolerance_is_no_less_than_declared() -> None:
    same = made([round_of(1)] * 10)
    tolerance = same.batches[0].tolerance(same.batches[0].loss.samples)
    assert tolerance == curves.CurveDistance(reference.FLOOR, reference.FLOOR)


def test_means_cover_the_points_since_the_one_before_and_crossings_lie_between_two() -> None:
    points = [(10.0, 1.0), (20.0, 3.0), (40.0, 5.0)]
    assert curves.means(points, [10.0, 40.0]) == [1.0, pytest.approx((10 * 3 + 20 * 5) / 30)]
    assert math.isnan(curves.means(points, [40.0, 50.0])[1])
    up, down = Target("m", "higher", "", 0.5), Target("m", "lower", "", 0.5)
    assert crossing([(0.0, 0.0), (10.0, 0.4), (20.0, 0.6)], up) == pytest.approx(15.0)
    assert crossing([(0.0, 1.0), (10.0, 0.6), (20.0, 0.4)], down) == pytest.approx(15.0)
    assert crossing([(10.0, 0.6)], up) == 10.0
    assert crossing([(0.0, 0.0), (10.0, 0.4)], up) is None


def crossing(points: list[tuple[float, float]], target: Target) -> float | None:
    return curves.crossing([(samples, {"m": value}) for samples, value in points], target)


def test_the_crossing_of_targets_is_that_of_the_last_and_a_thinned_curve_keeps_its_end() -> None:
    both = Target("m", "higher", "", 0.5, {"n": 0.8})
    evaluations = [(0.0, {"m": 0.0, "n": 0.0}), (10.0, {"m": 0.6, "n": 0.6}), (20.0, {"m": 0.9, "n": 0.9})]
    assert curves.crossing(evaluations, both) == pytest.approx(10 + 10 * 2 / 3)
    # A metric that falls below its target before the others reach theirs counts again.
    evaluations[1] = (10.0, {"m": 0.3, "n": 0.85})
    assert curves.crossing(evaluations, both) == pytest.approx(10 + 10 / 3)
    assert curves.crossing(evaluations[:2], both) is None
    assert curves.thinned([1.0, 2.0, 3.0, 4.0, 5.0], 2) == [3.0, 5.0]
    assert curves.thinned([1.0, 2.0], 5) == [1.0, 2.0]


def test_the_suites_evaluate_often_enough_for_a_false_evaluation_to_show() -> None:
    catalog = Catalog.scan([SUITES.parent])
    for file in SUITES.glob("*/*/reference/small.json"):
        held = Reference.from_json(json.loads(file.read_text()))
        for shape in ("1:1", "1:2", "1:8", "2:8"):
            case = f"{held.model}:{held.framework}:CPU:{shape}:1"
            plan = make_plan(catalog, PlanRequest(Case.parse(case), vendor="cpu", scale="small"))
            config = plan.config
            batch = config["train_batch_size"] * config["gradient_accumulation_steps"] * plan.case.shape.cards
            step, bound = batch * config["samples_per_item"], held.earliest(batch)
            assert bound is not None, case
            assert config["eval_start_steps"] <= config["eval_steps"], case
            assert config["eval_steps"] * step <= max(bound / reference.EVALUATIONS, step), case


def test_the_suites_references_are_whole_and_of_their_present_targets() -> None:
    catalog = Catalog.scan([SUITES.parent])
    for file in SUITES.glob("*/*/reference/*.json"):
        suite = catalog.suite(file.parts[-4], file.parts[-3])
        body = suite.reference(file.stem)
        assert body is not None
        held = Reference.from_json(body, str(file))
        assert (held.model, held.framework, held.scale) == (suite.model, suite.framework, file.stem)
        assert held.target == suite.scales[file.stem].target, file
        for batch in held.batches:
            assert 0 < batch.earliest < min(batch.to_target), file
            if not batch.loss.rounds:
                continue
            # Each of its own rounds is on the curve of all.
            ends = batch.loss.samples
            allowed, mean = batch.tolerance(ends), curves.middle(batch.loss.rounds)
            assert all(curves.distance(values, mean, ends).area < allowed.area for values in batch.loss.rounds), file
        assert file.stat().st_size < 20_000
