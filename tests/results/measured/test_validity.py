"""Conditions that distort a round's measurements give a validity warning with place and amount; others give none."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.sampling.devices import NO_THROTTLING
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.validity import ValidityWarning
from tests.helpers.recording import START_MS, Sampling, Training, write
from tests.helpers.results_help import edit_json

PLANNED = {"monitors": {"nvml": True, "probe": None, "vendor": "acme", "every_s": 1.0}}
# Trains for 7.5 s; the training begins 3 s after the round's start.
LONG = Training("a", steps=275, eval_every=100, plan_fields=PLANNED, hosts=({"name": "h1", "address": "10.0.0.1"},))


def sampling(limit: float = 700.0, events: tuple[dict[str, Any], ...] = (), **more: Any) -> Sampling:
    devices = [{"index": index, "power_limit": limit, "usual_power_limit": 700.0} for index in range(2)]
    report = {"means": {}, "devices": devices, "missing": [], "events": [*events], "errors": []}
    return Sampling(**{"devices": 2, "every_s": 0.1, "report": report, **more})


def warnings_of(directory: Path, training: Training = LONG, **more: Any) -> tuple[ValidityWarning, ...]:
    return measure(write(replace(training, sampling=sampling(**more)), directory)).validity_warnings


def event(kind: str | None, sentence: str, at_s: float = 6.0, **more: Any) -> dict[str, Any]:
    return {"time": START_MS / 1000 + at_s, "device": 0, "kind": kind, "sentence": sentence, **more}


def only(warnings: tuple[ValidityWarning, ...]) -> ValidityWarning:
    (warning,) = warnings
    return warning


def test_an_undisturbed_round_has_no_validity_warning(tmp_path: Path) -> None:
    assert warnings_of(tmp_path) == ()
    assert warnings_of(tmp_path, replace(LONG, sampling=None, plan_fields={})) == ()


@pytest.mark.parametrize("reason", sorted(NO_THROTTLING))
def test_low_clocks_of_idle_devices_or_by_setting_give_no_warning(tmp_path: Path, reason: str) -> None:
    assert warnings_of(tmp_path, throttle=lambda device, share: reason) == ()


def test_throttled_devices_are_named_with_reason_and_share_of_the_training_alone(tmp_path: Path) -> None:
    warning = only(
        warnings_of(tmp_path, throttle=lambda device, share: "hw_thermal+idle" if device and share > 0.6 else "none")
    )
    assert warning.kind == "throttled"
    assert warning.sentence.startswith("h1: device 1 was slowed down in ")
    assert warning.sentence.endswith(" % of the training by hw_thermal")
    assert 45 < float(warning.sentence.split()[7]) < 60
    both = only(
        warnings_of(tmp_path, throttle=lambda device, share: "sw_thermal" if share > 0.5 + device / 10 else "none")
    )
    assert both.sentence.startswith("h1: devices 0, 1 were slowed down in up to ")
    assert warnings_of(tmp_path, throttle=lambda device, share: "hw_thermal" if share < 0.2 else "none") == ()
    once = sampling(every_s=0.01, throttle=lambda _, share: "hw_thermal" if 0.5 < share < 0.504 else "none")
    assert measure(write(replace(LONG, sampling=once), tmp_path)).validity_warnings == ()


def test_only_a_power_limit_below_the_usual_one_gives_a_warning(tmp_path: Path) -> None:
    def capped(device: int, share: float) -> str:
        return "sw_power_cap"

    assert warnings_of(tmp_path, throttle=capped) == ()
    warning = only(warnings_of(tmp_path, limit=600.0, throttle=capped))
    assert warning.sentence == (
        f"h1: devices 0, 1 were slowed down in up to {quantity(1.0, 'share')} of the training by sw_power_cap,"
        " limited to 600 W where 700 W are usual"
    )
    other = only(warnings_of(tmp_path, throttle=lambda device, share: "sw_power_cap+hw_power_brake"))
    assert other.sentence.endswith("by hw_power_brake")


@pytest.mark.parametrize("watts", [5.0, 1000.0])
def test_a_power_that_no_such_chip_can_have_gives_a_warning(tmp_path: Path, watts: float) -> None:
    def edit(name: str, rows: list[str]) -> list[str]:
        if name == "host":
            return rows
        column = next(place for place, title in enumerate(rows[0].split(",")) if title.startswith("power "))
        cells = [row.split(",") for row in rows[1:]]
        return [rows[0], *(",".join([*row[:column], f"{watts}", *row[column + 1 :]]) for row in cells)]

    warning = only(warnings_of(tmp_path, edit=edit))  # the other device of the host was not used
    assert warning.kind == "power"
    power = f"h1: device 0 reported {watts:g} W in the mean and {watts:g} W at most, and a limit of 700.0 W"
    assert warning.sentence == f"{power}; no such chip can"


def test_a_long_gap_within_the_training_gives_a_warning_also_at_its_end(tmp_path: Path) -> None:
    warning = only(warnings_of(tmp_path, left_out=lambda share: 0.4 < share < 0.8))
    assert warning.kind == "gap"
    assert re.match(r"h1 was not sampled for 4\.\d+ s of the training's 6\.50? s", warning.sentence)
    assert warnings_of(tmp_path, left_out=lambda share: 0.5 < share < 0.6) == ()
    assert warnings_of(tmp_path, left_out=lambda share: share < 0.2) == ()
    assert only(warnings_of(tmp_path, left_out=lambda share: share > 0.5)).kind == "gap"


@pytest.mark.parametrize(
    ("lost", "who"), [((1,), "device 1 was"), ((1, 2), "devices 1, 2 were"), ((0, 1, 2), "its devices were")]
)
def test_lost_devices_are_named_if_the_host_was_sampled(tmp_path: Path, lost: tuple[int, ...], who: str) -> None:
    round_dir = write(replace(LONG, sampling=sampling(devices=3)), tmp_path)
    (series,) = round_dir.glob("*/devices.series.csv")
    head, *rows = series.read_text().splitlines()
    kept = [row for row in rows if int(row.split(",")[1]) not in lost or float(row.split(",")[0]) < START_MS / 1000 + 6]
    series.write_text("\n".join([head, *kept]) + "\n")
    warning = only(measure(round_dir).validity_warnings)
    assert re.match(rf"h1: {who} not sampled for 3\.\d+ s of the training's 6\.50? s$", warning.sentence)


def test_a_host_or_devices_without_samples_give_a_warning_if_sampling_was_planned(tmp_path: Path) -> None:
    assert only(warnings_of(tmp_path, left_out=lambda share: True)).sentence == (
        "h1 was not sampled at all during the training"
    )
    write(replace(LONG, sampling=sampling()), tmp_path)
    (tmp_path / "h1_noderank0/devices.series.csv").unlink()
    edit_json(tmp_path / "h1_noderank0/monitors.json", missing=["devices: NVML: Driver Not Loaded"])
    assert only(measure(tmp_path).validity_warnings).sentence == (
        "h1: no device was sampled during the training: NVML: Driver Not Loaded"
    )
    edit_json(tmp_path / "plan.json", monitors={**PLANNED["monitors"], "nvml": False})
    assert measure(tmp_path).validity_warnings == ()
    edit_json(tmp_path / "plan.json", monitors=None)
    assert warnings_of(tmp_path, replace(LONG, plan_fields={}), left_out=lambda share: True) == ()


def test_a_clock_change_gives_a_warning_and_its_jump_is_no_gap(tmp_path: Path) -> None:
    """The clock is set forward by five seconds: all later times move, also the last event's."""

    def late(rank: int, entries: list[Any]) -> list[Any]:
        return [(at + 5 * (at > 6), name, value) for at, name, value in entries]

    report = sampling(events=(event("clock", "the host's clock was set by +5.0 s", 6.0, seconds=5.0),))
    write(replace(LONG, edit=late, sampling=report), tmp_path)
    for path in tmp_path.glob("*/*.series.csv"):
        head, *rows = path.read_text().splitlines()
        cells = [row.split(",") for row in rows]
        set_at = START_MS / 1000 + 6
        moved = [[f"{float(when) + 5 * (float(when) > set_at):.4f}", *rest] for when, *rest in cells]
        path.write_text("\n".join([head, *(",".join(row) for row in moved)]) + "\n")
    assert measure(tmp_path).validity_warnings == (ValidityWarning("clock", "h1: the host's clock was set by +5.0 s"),)
    edit_json(tmp_path / "h1_noderank0/monitors.json", events=[])
    assert only(measure(tmp_path).validity_warnings).kind == "gap"


@pytest.mark.parametrize("kind", ["foreign", "changed"])
def test_the_samplers_events_are_reported_once_and_word_for_word(tmp_path: Path, kind: str) -> None:
    recorded = sampling(events=(event(kind, "device 0 is another"), event(None, "device 0: ecc changed from 0 to 1")))
    outcome = measure(write(replace(LONG, sampling=recorded), tmp_path))
    assert outcome.validity_warnings == (ValidityWarning(kind, "h1: device 0 is another"),)
    assert outcome.warnings == ("h1: device 0: ecc changed from 0 to 1",)


@pytest.mark.parametrize(("from_s", "until_s", "is_marked"), [(4.0, 8.0, True), (1.0, 4.5, False), (10.9, 40.0, False)])
def test_a_host_that_was_lost_for_a_part_of_the_training_and_came_back_gives_a_warning(
    tmp_path: Path, from_s: float, until_s: float, is_marked: bool
) -> None:
    directory = write(replace(LONG, sampling=sampling()), tmp_path)
    silence = {"host": "h2", "from_ms": START_MS + int(from_s * 1000), "until_ms": START_MS + int(until_s * 1000)}
    edit_json(directory / "round.json", silences=[silence])
    warnings = measure(directory).validity_warnings
    assert [warning.kind for warning in warnings] == ["unreachable"] * is_marked
    if is_marked:
        assert only(warnings).sentence.startswith("h2 did not answer for 4 s of the training's ")


def test_a_reused_seed_gives_a_warning_in_the_later_round_of_those_that_count(tmp_path: Path) -> None:
    directories = [write(replace(LONG, sampling=sampling()), tmp_path / f"round{number}") for number in (1, 2, 10)]
    edit_json(directories[1] / "plan.json", seed=43)
    warnings = [measure(directory).validity_warnings for directory in directories]
    assert warnings[:2] == [(), ()]
    sentence = "round10 reuses seed 42 of round1; rounds of a case need different seeds"
    assert warnings[2] == (ValidityWarning("seed", sentence),)
    edit_json(directories[2] / "plan.json", seed=51)
    assert measure(directories[2]).validity_warnings == ()
    write(replace(LONG, sampling=sampling()), tmp_path / "round1")
    for name in ("one_card", "failed1_round1"):
        assert measure(write(replace(LONG, sampling=sampling()), tmp_path / name)).validity_warnings == ()
