"""Further targets of a suite: what a round logs of them, its verdicts and where they are shown."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from flagperf_driver import events
from flagperf_driver.driver import RunCase
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.commands import main
from pytest_flagperf.kinds.training import charts
from pytest_flagperf.kinds.training.verdicts import converges
from pytest_flagperf.plan import PlanRequest, describe, make_plan
from pytest_flagperf.report.export.junit import properties
from pytest_flagperf.report.terminal.table import metric
from pytest_flagperf.results.logs.range_texts import impossible_figure
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts import Verdict
from tests.helpers.recording import Entry, Training, write
from tests.helpers.trees import SUITE_TOML, write_suite, write_vendor
from tools import sections
from tools.documented_tree import Tree

ALSO = {"top5": 0.97}


def with_top5(value_at: Callable[[int], float], **final: float) -> Callable[[int, list[Entry]], list[Entry]]:
    def edit(rank: int, entries: list[Entry]) -> list[Entry]:
        del rank
        last = max(body["step"] for _, event, body in entries if event == events.EVALUATE)
        for _, event, body in entries:
            if event in (events.EVALUATE, events.INIT_EVALUATION):
                body["top5"] = value_at(body["step"])
            elif event == events.FINISHED:
                body["final_metrics"] = {**body["final_metrics"], "top5": value_at(last), **final}
        return entries

    return edit


def outcome_of(
    folder: Path,
    value_at: Callable[[int], float],
    also: Mapping[str, float] = ALSO,
    *,
    converged: bool = True,
    **final: float,
) -> Outcome:
    metric = {"name": "top1", "direction": "higher", "unit": "fraction", "target": 0.9, "range": [0.0, 1.0]}
    training = Training(
        "toy",
        edit=with_top5(value_at, **final),
        plan_fields={"metric": {**metric, "also": dict(also)}},
        converged=converged,
        reason="target" if converged else "max_steps",
    )
    return measure(write(training, folder / "round1"))


def target(outcome: Outcome) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in converges(outcome)}


def test_a_round_converged_if_one_evaluation_reached_all_targets(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, lambda step: 0.9 + step / 2500)
    assert outcome.quality.reached is not None
    assert outcome.quality.reached.step == 200
    assert all(verdict.ok for verdict in converges(outcome))
    assert target(outcome)["target"].got == "top1 0.924, top5 0.980"
    assert target(outcome)["target"].expected == "top1 >= 0.900 and top5 >= 0.970"
    assert outcome.value("top5") == pytest.approx(0.98)


def test_a_missed_further_target_is_named_with_what_was_reached(tmp_path: Path) -> None:
    """The control: the same round without the further target has converged."""
    outcome = outcome_of(tmp_path, lambda step: 0.96 - step / 20000, converged=False)
    assert outcome.quality.reached is None
    sentence = target(outcome)["target"].sentence
    assert "top1 reached 0.924 at best and 0.924 at last; top5 reached 0.958 at best and 0.950 at last" in sentence
    assert "expected top1 >= 0.900 and top5 >= 0.970 in one evaluation; no evaluation reached top5" in sentence
    assert target(outcome_of(tmp_path / "control", lambda step: 0.5, also={}))["target"].ok


def test_a_further_metric_reached_apart_missing_impossible_or_contradicted_fails_the_round(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, lambda step: 0.99 if step <= 50 else 0.5, converged=False)
    assert outcome.quality.reached is None
    assert "in one evaluation; no evaluation reached all" in target(outcome)["target"].sentence
    outcome = outcome_of(tmp_path, lambda step: 0.98, also={"other": 0.5}, converged=False)
    assert "top1 or other was missing or not a number in 4 of 4 evaluations" in target(outcome)["target"].sentence
    outcome = outcome_of(tmp_path, lambda step: 1.5)
    assert "logged top5 = 1.5" in " ".join(impossible_figure(one) for one in outcome.impossible)
    outcome = outcome_of(tmp_path, lambda step: 0.98, top5=0.99)
    assert "FINISHED has top5 0.990, expected 0.980 by the last evaluation" in target(outcome)["agrees"].sentence


def test_an_outcome_keeps_its_further_targets_in_its_file(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, lambda step: 0.98)
    assert outcome.target.also == ALSO
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome


def test_reports_show_each_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_of(tmp_path, lambda step: 0.98)
    titles = [chart.title for chart in charts.charts([outcome], 100) if chart]
    assert titles == ["Training loss", "top1 and its target", "top5 and its target", "Throughput, all cards"]
    assert metric([outcome]) == "top1 0.924 (>= 0.900), top5 0.980 (>= 0.970)"
    assert ("target.top5", "0.970") in properties([outcome])
    write_suite(tmp_path, toml=f"{SUITE_TOML}also = {{ top5 = 0.97 }}\n")
    write_vendor(tmp_path)
    assert main(["list", str(tmp_path)]) == 0
    assert "reference >= 0.750, small >= 0.900 and top5 >= 0.970" in capsys.readouterr().out
    plan = make_plan(
        Catalog.scan([tmp_path]), PlanRequest(Case.parse("toy:pytorch:X9:1:1:1"), vendor="acme", scale="small")
    )
    assert "scale     small: top1 >= 0.9, top5 >= 0.97 (fraction)" in describe(plan)
    case = RunCase.from_json({**plan.case_json(1, "/code"), "token": "t"})
    assert case.metric.values == {"top1": 0.9, "top5": 0.97}
    catalog = Catalog.scan([tmp_path])
    documented = sections.case(Tree(tmp_path, catalog), tmp_path / "README.md", catalog.suite("toy", "pytorch"))
    assert "| target: top5 | / | at least 0.970 |" in documented
