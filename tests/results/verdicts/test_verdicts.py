"""The verdicts: of recorded rounds, their sentences, their conditions, and what was learned."""

import math
import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.kinds.training.verdicts import converges, throughput
from pytest_flagperf.kinds.training.verdicts.learning import FEWEST, MANY, fall, learned
from pytest_flagperf.results.measured.outcome import Evaluation, Losses, Outcome, Quality, Step, Target
from pytest_flagperf.results.measured.starts import DrilledFault, Start
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.results.verdicts import OneCard, Verdict, failed, speedup, valid
from tests.helpers.results_help import NAMES, REPLAYS, recorded, replay_dir, with_metric
from tests.replays.make import GOLDEN

NAN, INF = math.nan, math.inf


def names(found: list[Verdict]) -> list[str]:
    return [verdict.name for verdict in failed(found)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missed_target", ["round 1", "top1", "0.874", ">= 0.900", "max_steps"]),
        ("nan_loss", ["round 1", "NaN", "step 120"]),
        ("missing_finished", ["round 1", "rank 1 on localhost", "without FINISHED", "exit code 0", "its last line"]),
        ("crashed_rank", ["round 1", "rank 1 on localhost", "ModuleNotFoundError", "something_missing"]),
        ("killed_rank", ["round 1", "rank 1 on localhost", "SIGKILL"]),
        ("hang", ["round 1", "rank 0 on localhost", "no progress", "step 70"]),
        ("synthetic", ["synthetic data can't show convergence"]),
        ("claims_too_much", ["0.874", ">= 0.900"]),
        ("interrupted", ["round 1", "interrupted"]),
    ],
)
def test_a_failure_stands_alone_as_a_sentence(name: str, words: list[str]) -> None:
    sentence = failed(converges(recorded(name)))[0].sentence
    assert [word for word in words if word not in sentence] == []
    assert "\n" not in sentence


def test_a_round_that_failed_makes_throughput_and_speed_up_fail_once() -> None:
    good = recorded("converged_1x2")
    card = OneCard(1000.0, "this run", "images/s")
    assert names(throughput([good, recorded("hang")])) == ["finished"]
    assert names(speedup([good, recorded("hang")], card, 2, 0.5, "weak")) == ["finished"]
    assert names(speedup([], card, 2, 0.5, "weak")) == ["speedup"]


def test_the_target_is_met_in_the_direction_it_has_and_no_evaluation_is_believed() -> None:
    outcome = recorded("missed_target")
    lower = replace(outcome, target=replace(outcome.target, direction="lower", value=0.9))
    # The same figures, as a metric that should fall, reach it; but the outcome must say so itself.
    assert "target" in names(converges(lower))
    reached = replace(
        lower,
        quality=replace(lower.quality, reached=lower.evaluations[-1], program_converged=True),
        untrained=replace(lower.evaluations[0], metrics={"top1": 0.99}),
    )
    assert names(converges(reached)) == []
    outcome = recorded("missed_target")
    forged = replace(outcome, quality=replace(outcome.quality, reached=outcome.evaluations[-1], program_converged=True))
    assert names(converges(forged)) == ["target"]


@pytest.mark.parametrize("limit", ["max_steps", "max_samples", "max_epochs"])
def test_a_target_reached_after_what_the_config_allows_is_missed(limit: str) -> None:
    good = recorded("converged_1x1")
    good = replace(good, work=replace(good.work, epochs=4.0))
    assert good.quality.reached is not None
    # The step that goes beyond max_samples still belongs to the training.
    allowed = {
        "max_steps": good.quality.reached.step,
        "max_samples": good.quality.reached.samples - 31,
        "max_epochs": 4,
    }
    assert names(converges(replace(good, limits=allowed))) == []
    less = replace(good, limits={**allowed, limit: allowed[limit] - 1})
    assert names(converges(less)) == ["target"]
    assert f"({limit})" in failed(converges(less))[0].sentence


@pytest.mark.parametrize("reported", [False, None])
def test_a_program_that_disagrees_with_its_own_log_fails(reported: bool | None) -> None:
    outcome = recorded("converged_1x1")
    assert names(converges(outcome)) == []
    other = replace(outcome, quality=replace(outcome.quality, program_converged=reported))
    assert names(converges(other)) == ["agrees"]
    figure = replace(outcome, quality=replace(outcome.quality, program_final=0.99))
    assert names(converges(figure)) == ["agrees"]


NO_NUMBERS: list[Any] = [None, NAN, INF, -INF]


def test_each_throughput_must_be_a_number_and_the_mfu_a_share_where_a_peak_is_declared() -> None:
    outcome = recorded("converged_1x1")
    rates, nothing = ("p_whole", "p_train", "p_core"), (*NO_NUMBERS, 0.0, -1.0)
    for name, wrong in [*product(rates, nothing), *product(["mfu"], (NAN, 0.0, 1.01, INF))]:
        assert names(throughput([with_metric(outcome, name, wrong)])) == [name], wrong
    for good in (outcome, with_metric(outcome, "mfu", None)):
        assert names(throughput([good])) == []


def test_every_property_of_a_good_outcome_is_needed_and_defaults_pass_nothing() -> None:
    """Take away any one thing that convergence rests on, or make it NaN: no combination is ok."""
    good = recorded("converged_1x1")
    assert names(converges(good)) == []
    spoilt: list[Outcome] = [replace(good, state=one) for one in ("failed", "interrupted", "unknown", "", "Finished")]
    spoilt += [replace(good, losses=Losses()), replace(good, quality=Quality())]
    spoilt += [replace(good, losses=replace(good.losses, final=nothing)) for nothing in NO_NUMBERS]
    spoilt += [replace(good, losses=replace(good.losses, bad=1))]
    spoilt += [replace(good, quality=replace(good.quality, bad=1))]
    spoilt += [replace(good, quality=replace(good.quality, reached=None))]
    spoilt += [replace(good, target=replace(good.target, value=nothing)) for nothing in NO_NUMBERS]
    spoilt += [replace(good, target=replace(good.target, direction=way)) for way in ("", "up", "HIGHER")]
    spoilt += [replace(good, target=replace(good.target, name="other"))]
    spoilt += [replace(good, synthetic=nothing) for nothing in (True, None)]  # type: ignore[arg-type]
    spoilt += [replace(good, throughput_only=nothing) for nothing in (True, None)]  # type: ignore[arg-type]
    for outcome in spoilt:
        assert failed(converges(outcome)), outcome
    target = Target("top1", "higher", "fraction", 0.9)
    empty = Outcome(
        case="c", model="m", framework="f", hardware="h", nnodes=1, nproc=2, round=1, seed=None, state="finished",
        target=target,
        vendor="v", scale="small", synthetic=False, throughput_only=False, sample_unit="images",
    )  # fmt: skip
    card = OneCard(1.0, "this run", "images/s")
    assert failed(converges(empty))
    assert failed(throughput([empty]))
    assert failed(speedup([empty], card, 2, 0.0, "weak"))


@pytest.mark.parametrize("field", ["samples", "steps", "batch_per_card", "measured_steps"])
def test_uncounted_work_fails_the_throughput(field: str) -> None:
    outcome = recorded("converged_1x1")
    nothing: dict[str, Any] = {field: None}
    assert failed(throughput([replace(outcome, work=replace(outcome.work, **nothing))]))


def test_a_short_last_start_of_a_restarted_training_is_no_failure() -> None:
    outcome = recorded("converged_1x1")
    short = replace(with_metric(outcome, "p_core", None), work=replace(outcome.work, measured_steps=None))
    assert names(throughput([short])) == ["p_core", "measured_steps"]
    starts = (Start("failed1-round1", 0, 40, 0, 1), Start("round1", 20, 60, 2, 3))
    restarted = replace(short, starts=starts)
    assert not names(throughput([restarted]))
    one_card, slow = OneCard(1000.0, "this run", "images/s"), with_metric(outcome, "p_core", 900.0)
    judged = speedup([restarted], one_card, 2, 0.75, "weak")[-1]
    assert (judged.ok, judged.judged, judged.got) == (True, False, "restarted: not judged")
    assert names(speedup([restarted, slow], one_card, 2, 0.75, "weak")) == ["speedup", "efficiency"]


def test_the_speed_up_is_of_the_median_round_against_one_card() -> None:
    outcome = recorded("converged_1x2")
    rounds = [with_metric(outcome, "p_core", value) for value in (1500.0, 1800.0, 900.0)]
    found = speedup(rounds, OneCard(1000.0, "this run", "images/s"), 2, 0.75, "weak")
    assert names(found) == []
    assert found[-1].sentence.startswith(
        "weak scaling: 2 cards do 1,500 images/s, one card 1,000 images/s (this run):"
        " speed-up 1.50x, efficiency 75.0 % ("
    )
    assert found[-1].sentence.endswith("too close to the bound to be certain), expected at least 75.0 %")
    assert names(speedup(rounds, OneCard(1000.0, "this run"), 2, 0.76, "weak")) == ["efficiency"]
    turns = OneCard(1000.0, "this run").with_turn(1000.0, 1600.0)
    assert "1,550 images/s (4 rounds, 1 of them short), " in speedup(rounds, turns, 2, 0.8, "")[-1].sentence


def efficiency(alone: list[float], many: list[float], least: float = 0.75) -> str:
    outcome = recorded("converged_1x2")
    rounds = [with_metric(outcome, "p_core", value) for value in many]
    return speedup(rounds, OneCard.of(alone, "this run", "images/s"), 2, least, "strong")[-1].sentence


def test_the_efficiency_says_how_sure_it_is_and_many_cards_must_be_faster_than_one() -> None:
    assert "strong scaling: " in efficiency([1000.0], [1600.0])
    assert "one round each: uncertainty unknown" in efficiency([1000.0], [1600.0])
    quiet = efficiency([1000.0, 1002.0, 998.0], [1600.0, 1598.0, 1602.0])
    assert "(79.7 % to 80.3 % with 95 % confidence), expected" in quiet
    assert "too close to the bound" in efficiency([1000.0, 1100.0, 900.0], [1600.0, 1500.0, 1700.0])
    assert "too close to the bound" not in quiet
    # Rounds on one side only tell of both.
    assert "with 95 % confidence" in efficiency([1000.0], [1600.0, 1590.0, 1610.0])
    outcome = with_metric(recorded("converged_1x2"), "p_core", 999.0)
    assert names(speedup([outcome], OneCard(1000.0, "this run"), 2, 0.0, "strong")) == ["speedup"]


@pytest.mark.parametrize("nothing", [*NO_NUMBERS, 0.0, -1.0])
def test_the_speed_up_is_unknown_without_a_figure_of_one_card_or_of_one_round(nothing: float | None) -> None:
    good, card = recorded("converged_1x2"), OneCard(1000.0, "this run")
    one_bad = [good, with_metric(good, "p_core", nothing), good]
    for rounds, alone in ((one_bad, card), ([good], OneCard(nothing, "x")), ([good], OneCard(1.0, "x", "tokens/s"))):
        found = speedup(rounds, alone, 2, 0.5, "weak")
        assert names(found) == ["speedup"]
        assert "cannot compute the speed-up" in failed(found)[0].sentence


@pytest.mark.parametrize("strict", [False, True])
def test_validity_warnings_fail_a_round_only_under_strict(strict: bool) -> None:
    warnings = (ValidityWarning("throttled", "device 0 was slow"), ValidityWarning("gap", "host a was not sampled"))
    found = valid(replace(recorded("converged_1x1"), validity_warnings=warnings), strict=strict)
    assert (found.name, found.ok, found.got) == ("valid", not strict, "throttled, gap")
    assert found.sentence == "round 1: measurements may be distorted: device 0 was slow; host a was not sampled"
    assert valid(replace(recorded("converged_1x1"), validity_warnings=()), strict=strict).ok


def test_a_drill_fails_if_a_fault_did_not_strike_or_was_not_noticed() -> None:
    outcome = replace(recorded("converged_1x1"), drill=("rank",))
    struck = DrilledFault("rank 0 on h1 was killed", 12, 0.5, 3.0, 9.0, 4)
    assert names(converges(replace(outcome, struck=(struck,)))) == []
    for others, got in (
        ((), "noticed: none"),
        ((replace(struck, noticed_s=None),), "at step 12: next start after 3 s"),
    ):
        (verdict,) = failed(converges(replace(outcome, struck=others)))
        assert verdict.name == "drill"
        assert got in verdict.sentence


def test_a_goodput_below_the_least_or_unknown_fails() -> None:
    outcome = replace(recorded("converged_1x1"), limits={"min_goodput": 0.9})
    for goodput, expected in ((0.9, []), (0.89, ["goodput"]), (None, ["goodput"])):
        assert names(converges(with_metric(outcome, "goodput", goodput))) == expected


# -- did it learn at all: what falls by more than its noise did, what stays or only wanders did not ----------

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


# -- recorded rounds and runs, good and bad, get exactly the verdicts that are written beside them -----------


@pytest.mark.parametrize("name", NAMES)
def test_a_round_has_the_verdicts_that_are_written_beside_it(name: str) -> None:
    outcome, expected = recorded(name), REPLAYS[name]
    assert tuple(verdict.name for verdict in failed(converges(outcome))) == expected.unconverged
    assert tuple(verdict.name for verdict in failed(throughput([outcome]))) == expected.unsound
    assert tuple(warning.kind for warning in outcome.validity_warnings) == expected.validity_warnings


@pytest.mark.parametrize("name", ["crashed_rank", "foreign_process"])
def test_the_format_of_a_rounds_files_is_the_committed_one(name: str) -> None:
    """After a wanted change of the format, ``python -m tests.replays.make`` writes the committed files again."""

    def files(root: Path) -> dict[Path, str]:
        return {path.relative_to(root): path.read_text("utf-8") for path in root.rglob("*") if path.is_file()}

    assert files(replay_dir(name)) == files(GOLDEN / name)
