"""Baselines: what is accepted and refused, what is a regression, and files that cannot be read."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.results.comparing import baselines
from pytest_flagperf.results.comparing.baselines import Accepted, Baseline, Figure
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.results.verdicts import Verdict, VerdictKind
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import baseline_file
from tests.helpers.results_help import edit_json, recorded, with_metric

ACCEPTED = Accepted("run20260101000000", "2026-01-01T00:00:00Z", "the new compiler")
RATES = ("p_whole", "p_train", "p_core")
CLOCK = ValidityWarning("clock", "the clock went back")


def rounds(*factors: float, **changes: Any) -> list[Outcome]:
    """Recorded rounds with their throughputs so many times 100."""
    found = []
    for number, factor in enumerate(factors, 1):
        outcome = replace(recorded("converged_1x1"), round=number, validity_warnings=(), **changes)
        for name in RATES:
            outcome = with_metric(outcome, name, 100 * factor)
        found.append(outcome)
    return found


def case_of(outcomes: Sequence[Outcome], *verdicts: Verdict) -> CaseResult:
    return CaseResult(outcomes[0].case, tuple(outcomes), {"test_throughput": verdicts})


def accepted(*factors: float, **changes: Any) -> Baseline:
    return baselines.accept(case_of(rounds(*factors or (1.0, 1.0, 1.0))), [], ACCEPTED, **changes)


def p_core(outcomes: Sequence[Outcome], baseline: Baseline, **how: Any) -> Verdict:
    (found,) = [one for one in baselines.judge(outcomes, baseline, **how) if one.name == "baseline p_core"]
    return found


def with_figure(baseline: Baseline, **changes: Any) -> Baseline:
    figures = {name: replace(figure, **changes) for name, figure in baseline.metrics.items()}
    return replace(baseline, metrics=figures)


def test_what_was_accepted_is_good_and_a_regression_says_from_where_to_where() -> None:
    verdicts = baselines.judge(rounds(1.0, 1.0, 1.0), accepted())
    assert [one.name for one in verdicts] == [f"baseline {name}" for name in RATES]
    assert all(one.ok and not one.warning for one in verdicts)
    found = p_core(rounds(0.92, 0.91, 0.93), replace(accepted(), file=Path("/b/toy.json")))
    assert (found.ok, found.got, found.expected) == (False, "92 images/s", "at least 95 images/s")
    assert found.sentence == (
        "p_core is 92 images/s (the median of 3 rounds), 8.0 % below the baseline's 100 images/s;"
        " expected at least 95 images/s (/b/toy.json, accepted from run20260101000000);"
        " a change counts from 5.0 % on (its bound)"
    )


ACCEPT, CHECK = "accept a new baseline (flagperf accept)", "not comparable: check the run before you accept"


@pytest.mark.parametrize(
    ("value", "direction", "ok", "words"),
    [
        (0.96, "higher", True, ""),
        (0.94, "higher", False, ""),
        (1.06, "higher", True, ACCEPT),
        (1.9, "higher", True, ACCEPT),
        (2.1, "higher", True, CHECK),
        (0.94, "lower", True, ACCEPT),
        (0.6, "lower", True, ACCEPT),
        (0.4, "lower", True, CHECK),
        (1.06, "lower", False, ""),
        (0.94, None, False, ""),
        (1.06, None, False, ""),
    ],
)
def test_which_side_is_worse_is_the_metrics_and_an_implausible_improvement_is_checked(
    value: float, direction: str | None, ok: bool, words: str
) -> None:
    found = p_core(rounds(value), with_figure(accepted(), direction=direction))
    assert (found.ok, found.warning) == (ok, bool(words))
    assert words in found.sentence
    assert (CHECK in found.sentence) == (words == CHECK)


def test_the_median_of_valid_rounds_counts_and_no_bound_allows_anything() -> None:
    assert p_core(rounds(0.01), with_figure(accepted(), lower=None)).ok
    outcomes = [*rounds(1.0, 1.0, 0.5), replace(rounds(0.1)[0], state="failed")]
    assert p_core(outcomes, accepted()).ok
    slow = [replace(outcome, validity_warnings=(CLOCK,)) for outcome in rounds(0.5, 0.5)]
    verdict = p_core(slow, accepted())
    assert (verdict.ok, verdict.warning, verdict.judged, verdict.got) == (True, True, False, "not judged")
    assert verdict.sentence == "p_core is not judged: no valid round"
    assert p_core([*slow, *rounds(1.0)], accepted()).got == "100 images/s"
    assert not p_core([*slow, *rounds(0.5)], accepted()).ok


def test_a_missing_metric_fails_and_a_near_name_is_suggested() -> None:
    lost = [with_metric(rounds(1.0)[0], "p_core", None)]
    assert p_core(lost, accepted()).got == "missing"
    baseline = replace(accepted(), metrics={"p_cor": accepted().metrics["p_core"]})
    (found,) = baselines.judge(rounds(1.0), baseline)
    assert not found.ok
    assert found.sentence.startswith("p_cor is missing, expected at least ")
    assert found.sentence.endswith("; did you mean p_core?")


def test_an_edited_unit_is_no_other_figure_and_fewer_rounds_are_held_no_closer() -> None:
    figures = accepted().metrics
    baseline = replace(accepted(), metrics={"p_core": replace(figures["p_core"], unit="apples/s")})
    (found,) = baselines.judge(rounds(1.0), baseline)
    assert not found.ok
    assert "p_core is measured in 'images/s', but in 'apples/s' in the baseline" in found.sentence
    baseline = accepted(0.97, 1.03, 0.96, 1.04, 0.98, 1.02, 0.97, 1.03, 1.0, 1.0)
    assert baseline.metrics["p_core"].noise == pytest.approx(0.03, rel=0.1)
    assert p_core(rounds(0.93), baseline).ok
    assert not p_core(rounds(*[0.93] * 10), baseline).ok


def test_a_figure_without_noise_has_its_bound_and_an_edited_bound_is_at_least_the_noise() -> None:
    baseline = with_figure(accepted(), noise=None)
    verdict = p_core(rounds(0.9, 0.94), baseline)
    assert not verdict.ok
    assert "a change counts from 5.0 % on (its bound, noise unknown)" in verdict.sentence
    assert p_core(rounds(0.94, 0.97), baseline).ok
    baseline = with_figure(accepted(0.97, 1.0, 1.03), lower=-0.001)
    verdict = p_core(rounds(0.95, 0.96, 0.98), baseline)
    assert verdict.ok
    assert "a change counts from 8.4 % on (its noise of the rounds alone)" in verdict.sentence


def test_an_edited_bound_that_is_narrower_is_judged_by() -> None:
    assert p_core(rounds(0.96), accepted()).ok
    assert not p_core(rounds(0.96), with_figure(accepted(), lower=-0.03)).ok


def test_another_machine_or_config_is_refused_or_compared_with_a_label() -> None:
    baseline = replace(accepted(), machine={"driver": "550"})
    other = rounds(0.5, machine={"driver": "560"})
    (found,) = baselines.judge(other, baseline)
    assert (found.name, found.ok) == ("baseline", False)
    assert "cannot be compared with the baseline" in found.sentence
    assert "driver: 550 -> 560; accept a new baseline (flagperf accept)" in found.sentence
    verdict = p_core(rounds(1.0, machine={"driver": "560"}), baseline, ignore_differences=True)
    assert (verdict.ok, verdict.warning) == (True, True)
    assert verdict.sentence.endswith("; compared although different: driver: 550 -> 560")
    assert not p_core(other, baseline, ignore_differences=True).ok
    (found,) = baselines.judge(rounds(1.0, throughput_only=True), accepted())
    assert "throughput_only: false -> true" in found.sentence


def test_other_code_is_what_a_baseline_tests_and_is_named_where_it_got_worse() -> None:
    baseline = replace(accepted(), fingerprint={"precision": "fp32", "suite_code": "old", "key": "old"})
    changed = {"precision": "fp32", "suite_code": "new", "key": "new"}
    assert p_core(rounds(1.0, fingerprint=changed), baseline).ok
    worse = p_core(rounds(0.5, fingerprint=changed), baseline)
    assert not worse.ok
    assert worse.sentence.endswith("; changed since then: suite_code")


def test_a_baseline_says_from_which_change_on_it_judges_and_no_noise_lets_everything_pass() -> None:
    assert accepted(1.0).metrics["p_core"].rule == "a change counts from 5.0 % on (its bound, noise unknown)"
    assert accepted(0.99, 1.0, 1.01).metrics["p_core"].rule == "a change counts from 5.0 % on (its bound)"
    noisy = accepted(0.96, 1.0, 1.04).metrics["p_core"]
    assert noisy.rule == "a change counts from 14.1 % on (its noise of the rounds alone)"
    made = accepted(0.5, 1.0, 2.0)
    assert "p_whole varies so much" in (baselines.useless_bound(made) or "")
    assert baselines.useless_bound(accepted()) is None
    assert baselines.useless_bound(with_figure(made, lower=None)) is None
    assert baselines.useless_bound(with_figure(made, direction="lower")) is None
    earlier = [rounds(factor) for factor in (1.0, 1.1, 0.9, 1.05, 0.95, 1.1, 0.9)]
    noisy = baselines.accept(case_of(rounds(1.0)), earlier, ACCEPTED).metrics["p_core"]
    assert noisy.from_runs is not None
    assert noisy.from_runs.runs == 8
    assert "(its noise from run to run)" in noisy.rule


def test_bounds_and_metrics_that_were_edited_are_kept_or_made_anew() -> None:
    old = replace(accepted(), metrics={"p_core": replace(accepted().metrics["p_core"], lower=-0.02, upper=None)})
    kept = baselines.accept(case_of(rounds(2.0)), [], ACCEPTED, old)
    assert list(kept.metrics) == ["p_core"]
    figure = kept.metrics["p_core"]
    assert (figure.value, figure.lower, figure.upper) == (200, -0.02, None)
    anew = baselines.accept(case_of(rounds(2.0)), [], ACCEPTED, old, keep_bounds=False)
    assert (anew.metrics["p_core"].lower, anew.metrics["p_core"].upper) == (-0.05, 0.05)


@pytest.mark.parametrize(
    ("outcomes", "verdicts", "why"),
    [
        (rounds(1.0, 1.0, case="toy:pytorch:CPU:1:1:2"), (), None),
        (rounds(1.0, state="failed"), (), "round 1: its state is 'failed'"),
        (rounds(1.0, case="toy:pytorch:CPU:1:1:3"), (), "expected 3 rounds, got 1"),
        ([replace(rounds(1.0)[0], validity_warnings=(CLOCK,))], (), "round 1: the clock went back"),
        (rounds(1.0), (Verdict("target", False, "", "", "missed it"),), "missed it"),
        (rounds(1.0), (Verdict("efficiency", False, "", "", "poor", expected_failure="known"),), None),
        (rounds(1.0), (Verdict("baseline p_core", False, "", "", "worse", kind=VerdictKind.BASELINE),), None),
        (
            [with_metric(rounds(1.0)[0], "p_core", None)],
            (),
            "round 1: p_core is missing, expected a finite number above 0",
        ),
    ],
)
def test_only_passed_rounds_without_validity_warnings_are_accepted(
    outcomes: list[Outcome], verdicts: tuple[Verdict, ...], why: str | None
) -> None:
    assert baselines.refusal(case_of(outcomes, *verdicts)) == why


def with_steps(factor: float | None) -> CaseResult:
    fingerprint = {"deviations": {"step backward": ["acme's own", "the suite's own"]}}
    (outcome,) = rounds(1.0, fingerprint=fingerprint)
    figures = () if factor is None else (MetricValue("vendor_factor", factor, "x", None, ""),)
    return case_of([replace(outcome, metrics=(*outcome.metrics, *figures))])


def test_a_vendors_steps_are_accepted_only_with_a_factor_that_can_be_explained() -> None:
    unknown = "round 1: no clean process has repeated a part of it without the vendor's step backward"
    assert (baselines.refusal(with_steps(None)) or "").startswith(unknown)
    assert baselines.refusal(with_steps(1.31)) is None
    assert baselines.refusal(with_steps(3.0)) is None
    for factor in (3.01, 0.0, float("nan")):
        assert "find out why" in (baselines.refusal(with_steps(factor)) or "")
    excused = Verdict("vendor_factor", False, "3.5 x", "at most 3 x", "fast", expected_failure="Li Wei: a fused step")
    assert baselines.refusal(case_of(with_steps(3.5).outcomes, excused)) is None


def test_a_baseline_reads_back_as_it_was_written_and_its_text_is_stable(tmp_path: Path) -> None:
    path = tmp_path / baseline_file("toy:pytorch:CPU:1:1:3")
    assert path.name == "toy_pytorch_CPU_1_1.json"
    baseline = replace(accepted(1.0, 1.01, 0.99), machine={"driver": "550"})
    baselines.write(path, baseline)
    assert baselines.read(path) == replace(baseline, file=path)
    text = path.read_text()
    baselines.write(path, baselines.read(path))
    assert path.read_text() == text
    assert '   "value": 100.0,\n   "lower": -0.05,\n' in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema": 99}, "schema 99 was written by a newer pytest-flagperf"),
        ({"metrics": {}}, "metrics is empty"),
        ({"metrics": []}, r"metrics is \[\]; expected a table"),
        ({"accepted": {"run": "r"}}, "accepted.when is missing"),
        ({"throughput_onyl": True}, "throughput_onyl: no such key; did you mean throughput_only?"),
        ({"case": 3}, "case is 3; expected a string"),
    ],
)
def test_the_problems_of_a_file_are_reported(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    path = tmp_path / "b.json"
    baselines.write(path, accepted())
    edit_json(path, **changes)
    with pytest.raises(FormatError, match=problem):
        baselines.read(path)


def test_a_figure_may_lack_its_noise_and_all_invalid_values_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    baselines.write(path, accepted())
    body = json.loads(path.read_text())
    del body["metrics"]["p_core"]["noise"]  # as in one that is written by hand
    path.write_text(json.dumps(body))
    assert baselines.read(path).metrics["p_core"] == Figure(100, -0.05, 0.05, "images/s", "higher", 3)
    body["metrics"]["p_core"] = {
        "value": -100.0, "lower": 0.05, "uper": 1, "unit": 3, "direction": "up", "rounds": True, "noise": -1,
        "from_runs": {"within": 0.1, "runs": 0},
    }  # fmt: skip
    path.write_text(json.dumps(body))
    with pytest.raises(FormatError) as caught:
        baselines.read(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: metrics.p_core") for line in lines)
    assert [line.split("metrics.p_core")[1].split(" is ")[0] for line in lines] == [
        ".uper: no such key; did you mean upper?", ".upper", ".value", ".lower", ".unit", ".direction", ".rounds",
        ".noise", ".from_runs",
    ]  # fmt: skip
    assert "lower is 0.05; expected a share from -1 to 0 such as -0.05, or null" in lines[3]
