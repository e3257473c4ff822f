"""Which rounds' figures may be compared: their fingerprints and machines, field by field."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.results.comparing.comparable import fingerprint_differences, notes, outcome_differences
from pytest_flagperf.results.comparing.one_card import find_one_card
from pytest_flagperf.results.measured.outcome import Outcome
from tests.helpers.results_help import recorded
from tests.helpers.stored_runs import run_of

PRINT = {"key": "a", "one_card_key": "o", "precision": "fp32", "config": "c1", "deviations": {}}
RAN_ON = {"driver": "550.54", "kernel": "6.1", "chip": "X9", "os": "Linux 12", "variables": "none"}


def outcome(ran_on: dict[str, Any] | None = None, **fingerprint: Any) -> Outcome:
    return replace(recorded("converged_1x1"), machine=ran_on or {}, fingerprint={**PRINT, **fingerprint})


def test_rounds_are_like_unless_their_machines_differ_and_unknown_fields_do_not_count() -> None:
    assert outcome_differences(outcome(RAN_ON), outcome({**RAN_ON})) == []
    assert notes(outcome(RAN_ON), outcome({**RAN_ON})) == []
    other = outcome({**RAN_ON, "driver": "560.35", "os": "Linux 13", "variables": "MKL_A=1"})
    assert outcome_differences(outcome(RAN_ON), other) == ["driver: 550.54 -> 560.35"]
    assert notes(outcome(RAN_ON), other) == ["os: Linux 12 -> Linux 13", "variables: none -> MKL_A=1"]
    assert outcome_differences(outcome(), outcome(RAN_ON)) == []
    assert notes(outcome(), outcome(RAN_ON)) == ["the machine of the old run is unknown"]
    less = outcome({name: value for name, value in RAN_ON.items() if name != "kernel"})
    assert notes(less, outcome(RAN_ON)) == ["unknown for the old run: kernel"]
    assert notes(outcome(RAN_ON), less) == ["unknown for the new run: kernel"]
    old = {"key": "a", "precision": "fp32"}
    assert fingerprint_differences(old, {"key": "b", "precision": "fp32", "data": "d1"}) == []
    assert fingerprint_differences(old, {"key": "b", "precision": "bf16", "data": "d1"}) == ["precision: fp32 -> bf16"]
    assert fingerprint_differences(old, {"key": "b", "precision": "fp32"}) == ["key: a -> b"]
    assert fingerprint_differences(old, {}) == ["fingerprint: known -> none"]
    assert fingerprint_differences({}, {}) == []


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ({}, {"compile": [True, False]}, "config: compile false -> true"),
        ({"width": [64, 32]}, {"width": [128, 32]}, "config: width 64 -> 128"),
        ({"width": [64, 32], "depth": [2, None]}, {}, "config: width 64 -> 32, depth 2 -> none"),
        ({"width": [64, 32]}, {"width": [64, 32]}, "config: c1 -> c2"),
        ({}, None, "config: c1 -> c2"),
    ],
)
def test_configs_that_differ_say_in_which_values(old: dict[str, Any], new: dict[str, Any] | None, text: str) -> None:
    then, now = {**PRINT, "deviations": old}, {**PRINT, "key": "b", "config": "c2", "deviations": new}
    assert fingerprint_differences(then, now) == [text]


def test_deviations_that_do_not_weigh_are_reported() -> None:
    assert notes(outcome(), outcome(deviations={"max_steps": [10, 20]})) == ["max_steps 20 -> 10"]


def test_rounds_with_other_versions_of_a_package_are_not_comparable() -> None:
    other = outcome(deviations={"version numpy": ["2.3.0", "==2.4.6"]})
    assert outcome_differences(outcome(), other) == ["version numpy ==2.4.6 -> 2.3.0"]
    assert outcome_differences(other, other) == notes(outcome(), other) == []
    reported = {"version torch": ["2.11.0", "==2.15.0"]}, {"torch": "2.11.0"}
    then, now = outcome({"torch": "2.15.0"}), outcome(reported[1], deviations=reported[0])
    assert outcome_differences(then, now) == ["torch: 2.15.0 -> 2.11.0"], "once: the ranks of both report it"


def stored(root: Path, driver: str) -> Path:
    ran_on = {**RAN_ON, "driver": driver}

    def change(one: Outcome) -> Outcome:
        return replace(one, machine=ran_on, started_ms=1000 * int(driver))

    return run_of(root, rounds=[change], fingerprint=PRINT)


def test_one_cards_stored_figure_is_of_a_like_machine(tmp_path: Path) -> None:
    stored(tmp_path / "run1", "550")
    assert find_one_card(tmp_path, "a", {**RAN_ON, "driver": "560"}) is None
    assert find_one_card(tmp_path, "a", {**RAN_ON, "driver": "550"}) is not None
    assert find_one_card(tmp_path, "a") is not None
