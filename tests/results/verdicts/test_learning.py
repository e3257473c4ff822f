"""Did it learn at all: what falls by more than its noise did, what stays or only wanders did not."""

import random
from dataclasses import replace

import pytest

from pytest_flagperf.kinds.training.verdicts import converges
from pytest_flagperf.kinds.training.verdicts.learning import FEWEST, MANY, fall, learned
from pytest_flagperf.results.measured.outcome import Evaluation, Outcome, Step
from pytest_flagperf.results.measured.starts import Start
from pytest_flagperf.results.verdicts import failed
from tests.helpers.results_help import recorded

SIZES = [FEWEST, 8, MANY - 1, MANY, 200]


def with_losses(outcome: Outcome, losses: list[float]) -> Outcome:
    steps = tuple(Step(number, number * 32, float(number), loss, 1.0, 0.0) for number, loss in enumerate(losses, 1))
    return replace(outcome, steps=steps)


def untrained(outcome: Outcome, value: float | None) -> Outcome:
    found = None if value is None else Evaluation(0, 0, 0.0, {outcome.target.name: value})
    return replace(outcome, untrained=found)


@pytest.mark.parametrize("points", SIZES)
@pytest.mark.integration
def test_a_loss_that_only_wanders_rarely_seems_to_fall(points: int) -> None:
    dice = random.Random(points)
    trials = 1000
    fallen = sum(fall([(n, dice.gauss(2.3, 0.05)) for n in range(1, points + 1)]).ok for _ in range(trials))
    assert fallen <= 0.02 * trials


@pytest.mark.parametrize("points", SIZES)
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_loss_that_falls_is_seen_to_fall(points: int, noise: float) -> None:
    dice = random.Random(1)
    found = [fall([(n, 2.0 - n / points + dice.gauss(0, noise)) for n in range(1, points + 1)]) for _ in range(100)]
    assert all(one.ok for one in found)


def test_a_loss_that_fell_at_once_and_then_stayed_did_fall() -> None:
    dice = random.Random(2)
    values = [5.0, 4.0, 3.0] + [2.0 + dice.gauss(0, 0.02) for _ in range(197)]
    assert fall(list(enumerate(values, 1))).ok


@pytest.mark.parametrize("points", SIZES)
def test_a_loss_that_stays_or_rises_did_not_fall(points: int) -> None:
    assert not fall([(n, 2.3) for n in range(1, points + 1)]).ok
    assert not fall([(n, 2.3 + n / points) for n in range(1, points + 1)]).ok


def test_of_few_points_only_the_way_is_known() -> None:
    assert fall([(1, 5.0), (2, 3.0)]).ok
    assert fall([(1, 5.0), (2, 3.0)]).chance is None
    assert not fall([(1, 3.0), (2, 5.0)]).ok


def test_what_stays_moves_no_more_than_anyway_or_was_met_untrained_is_not_learnt() -> None:
    outcome = recorded("did_not_learn")
    verdict = next(one for one in converges(outcome) if one.name == "learned")
    fell = "the loss fell from 2.302 to 2.301 (first and last tenth); noise alone does that in"
    for words in ("did not learn", fell, "0 % of the way"):
        assert words in verdict.sentence
    good = recorded("converged_1x1")
    assert learned(good).ok
    assert good.target.value is not None
    assert "already reaches the target: top1 is 0.900" in learned(untrained(good, good.target.value)).sentence
    assert not learned(untrained(good, good.quality.last)).ok
    assert learned(untrained(good, None)).ok  # without an evaluation the loss alone decides
    wild = [Evaluation(n, n * 32, float(n), {"top1": value}) for n, value in enumerate([0.93, 0.6] * 5, 1)]
    assert not learned(untrained(replace(good, evaluations=tuple(wild)), 0.5)).ok
    flat = learned(with_losses(good, [2.3] * 30)).sentence
    assert flat.endswith("did not learn by more than noise: the loss went from 2.3 to 2.3 (first and last tenth)")
    assert not learned(with_losses(good, [])).ok
    assert "learned" in [one.name for one in failed(converges(with_losses(good, [2.3] * 30)))]


def test_a_metric_may_wait_where_only_the_beginning_is_trained() -> None:
    good = recorded("converged_1x1")
    waits = untrained(replace(good, parity_samples=1000), good.quality.last and good.quality.last / 2)
    waits = replace(waits, quality=replace(good.quality, last=good.quality.last and good.quality.last / 2))
    assert learned(waits).ok
    assert not learned(replace(waits, parity_samples=None)).ok
    assert not learned(with_losses(waits, [2.3] * 30)).ok


@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_either_direction_of_a_metric_can_be_learned(direction: str) -> None:
    good = recorded("converged_1x1")
    first, last = (0.1, 0.95) if direction == "higher" else (0.95, 0.1)
    target = replace(good.target, direction=direction, value=0.9 if direction == "higher" else 0.2)
    moved = untrained(replace(good, target=target, quality=replace(good.quality, last=last), evaluations=()), first)
    assert learned(moved).ok
    back = untrained(replace(moved, quality=replace(moved.quality, last=first)), first)
    assert not learned(back).ok


@pytest.mark.parametrize("continued_from", [0, 65])
def test_without_the_log_of_the_first_steps_the_loss_of_later_ones_decides_nothing(continued_from: int) -> None:
    lost, last = Start("failed1-round1", None, 0, 0, 1, "lost", "h1"), Start("round1", continued_from, 120, 2, 3)
    outcome = replace(untrained(with_losses(recorded("converged_1x1"), [1.0] * MANY), None), starts=(lost, last))
    assert learned(outcome).ok is (continued_from > 0)
