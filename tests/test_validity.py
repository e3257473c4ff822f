"""What bends a round's figures is a mark that says where and how much; what does not bend them is none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.sampling.devices import NO_THROTTLING
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.validity import Mark
from pytest_flagperf.results.units import quantity
from tests.recording import START_MS, Sampling, Training, write
from tests.results_help import edit_json

WANTED = {"monitors": {"nvml": True, "probe": None, "vendor": "acme", "every_s": 1.0}}
# Trains for 7.5 s, from 3 s after its start on.
LONG = Training("a", steps=275, eval_every=100, told=WANTED, hosts=({"name": "h1", "address": "10.0.0.1"},))


def sampling(limit: float = 700.0, events: tuple[dict[str, Any], ...] = (), **more: Any) -> Sampling:
    devices = [{"index": index, "power_limit": limit, "usual_power_limit": 700.0} for index in range(2)]
    report = {"means": {}, "devices": devices, "missing": [], "events": [*events], "errors": []}
    return Sampling(**{"devices": 2, "every_s": 0.1, "report": report, **more})


def marks(directory: Path, training: Training = LONG, **more: Any) -> tuple[Mark, ...]:
    return measure(write(replace(training, sampling=sampling(**more)), directory)).marks


def event(kind: str | None, sentence: str, at_s: float = 6.0, **more: Any) -> dict[str, Any]:
    return {"time": START_MS / 1000 + at_s, "device": 0, "kind": kind, "sentence": sentence, **more}


def only(found: tuple[Mark, ...]) -> Mark:
    (mark,) = found
    return mark


# -- clocks --------------------------------------------------------------------------------------------------


def test_a_round_in_which_nothing_happened_has_no_mark(tmp_path: Path) -> None:
    assert marks(tmp_path) == ()
    assert marks(tmp_path, replace(LONG, sampling=None, told={})) == ()


@pytest.mark.parametrize("reason", sorted(NO_THROTTLING))
def test_low_clocks_for_which_nobody_is_to_blame_are_no_mark(tmp_path: Path, reason: str) -> None:
    assert marks(tmp_path, throttle=lambda device, share: reason) == ()


def test_throttled_devices_are_named_with_the_reason_and_its_share_of_the_training(tmp_path: Path) -> None:
    mark = only(marks(tmp_path, throttle=lambda device, share: "hw_thermal+idle" if device and share > 0.6 else "none"))
    assert mark.kind == "throttled"
    assert mark.sentence.startswith("h1: device 1 was slowed down in ")
    assert mark.sentence.endswith(" % of the training by hw_thermal")
    assert 45 < float(mark.sentence.split()[7]) < 60
    both = only(marks(tmp_path, throttle=lambda device, share: "sw_thermal" if share > 0.5 + device / 10 else "none"))
    assert both.sentence.startswith("h1: devices 0, 1 were slowed down in up to ")


def test_what_was_before_or_after_the_training_or_but_a_moment_does_not_count(tmp_path: Path) -> None:
    assert marks(tmp_path, throttle=lambda device, share: "hw_thermal" if share < 0.2 else "none") == ()
    once = sampling(every_s=0.01, throttle=lambda _, share: "hw_thermal" if 0.5 < share < 0.504 else "none")
    assert measure(write(replace(LONG, sampling=once), tmp_path)).marks == ()


def test_the_usual_power_limit_is_what_a_device_is_built_for_and_a_lower_one_is_a_mark(tmp_path: Path) -> None:
    def capped(device: int, share: float) -> str:
        return "sw_power_cap"

    assert marks(tmp_path, throttle=capped) == ()
    mark = only(marks(tmp_path, limit=300.0, throttle=capped))
    assert mark.sentence == (
        f"h1: devices 0, 1 were slowed down in up to {quantity(1.0, 'share')} of the training by sw_power_cap,"
        " limited to 300 W where 700 W are usual"
    )
    other = only(marks(tmp_path, throttle=lambda device, share: "sw_power_cap+hw_power_brake"))
    assert other.sentence.endswith("by hw_power_brake")


# -- what was not sampled ------------------------------------------------------------------------------------


def test_a_gap_within_the_training_is_a_mark_if_it_is_long(tmp_path: Path) -> None:
    mark = only(marks(tmp_path, left_out=lambda share: 0.4 < share < 0.8))
    assert mark.kind == "gap"
    assert re.match(r"h1 was not sampled for 4\.\d+ s of the training's 6\.50? s", mark.sentence)
    assert marks(tmp_path, left_out=lambda share: 0.5 < share < 0.6) == ()
    assert marks(tmp_path, left_out=lambda share: share < 0.2) == ()


@pytest.mark.parametrize(
    ("lost", "who"), [((1,), "device 1 was"), ((1, 2), "devices 1, 2 were"), ((0, 1, 2), "its devices were")]
)
def test_devices_that_were_lost_are_named_where_the_host_was_sampled(
    tmp_path: Path, lost: tuple[int, ...], who: str
) -> None:
    round_dir = write(replace(LONG, sampling=sampling(devices=3)), tmp_path)
    (series,) = round_dir.glob("*/devices.series.csv")
    head, *rows = series.read_text().splitlines()
    kept = [row for row in rows if int(row.split(",")[1]) not in lost or float(row.split(",")[0]) < START_MS / 1000 + 6]
    series.write_text("\n".join([head, *kept]) + "\n")
    mark = only(measure(round_dir).marks)
    assert re.match(rf"h1: {who} not sampled for 3\.\d+ s of the training's 6\.50? s$", mark.sentence)


def test_a_sampler_that_ended_early_leaves_a_gap(tmp_path: Path) -> None:
    assert only(marks(tmp_path, left_out=lambda share: share > 0.5)).kind == "gap"


def test_a_host_or_its_devices_that_were_not_sampled_at_all_are_marks_where_they_should_have_been(
    tmp_path: Path,
) -> None:
    assert only(marks(tmp_path, left_out=lambda share: True)).sentence == (
        "h1 was not sampled at all during the training"
    )
    write(replace(LONG, sampling=sampling()), tmp_path)
    (tmp_path / "h1_noderank0/devices.series.csv").unlink()
    edit_json(tmp_path / "h1_noderank0/monitors.json", missing=["devices: NVML: Driver Not Loaded"])
    assert only(measure(tmp_path).marks).sentence == (
        "h1: no device was sampled during the training: NVML: Driver Not Loaded"
    )
    edit_json(tmp_path / "plan.json", monitors={**WANTED["monitors"], "nvml": False})
    assert measure(tmp_path).marks == ()
    edit_json(tmp_path / "plan.json", monitors=None)
    assert marks(tmp_path, replace(LONG, told={}), left_out=lambda share: True) == ()


# -- what happened -------------------------------------------------------------------------------------------


def test_a_clock_that_was_set_is_a_mark_and_its_hole_in_the_times_is_no_gap(tmp_path: Path) -> None:
    """Forward by five seconds: every time after it is later, the last event's too."""

    def late(rank: int, found: list[Any]) -> list[Any]:
        return [(at + 5 * (at > 6), name, value) for at, name, value in found]

    report = sampling(events=(event("clock", "the host's clock was set by +5.0 s", 6.0, seconds=5.0),))
    write(replace(LONG, edit=late, sampling=report), tmp_path)
    for path in tmp_path.glob("*/*.series.csv"):
        head, *rows = path.read_text().splitlines()
        cells = [row.split(",") for row in rows]
        set_at = START_MS / 1000 + 6
        moved = [[f"{float(when) + 5 * (float(when) > set_at):.4f}", *rest] for when, *rest in cells]
        path.write_text("\n".join([head, *(",".join(row) for row in moved)]) + "\n")
    assert measure(tmp_path).marks == (Mark("clock", "h1: the host's clock was set by +5.0 s"),)
    edit_json(tmp_path / "h1_noderank0/monitors.json", events=[])
    assert only(measure(tmp_path).marks).kind == "gap"


@pytest.mark.parametrize("kind", ["foreign", "changed"])
def test_what_the_sampler_saw_is_told_as_it_says_it_and_once(tmp_path: Path, kind: str) -> None:
    said = sampling(events=(event(kind, "device 0 is another"), event(None, "device 0: ecc went from 0 to 1")))
    found = measure(write(replace(LONG, sampling=said), tmp_path))
    assert found.marks == (Mark(kind, "h1: device 0 is another"),)
    assert found.warnings == ("h1: device 0: ecc went from 0 to 1",)


# -- seeds ---------------------------------------------------------------------------------------------------


def test_a_seed_used_twice_marks_the_later_round(tmp_path: Path) -> None:
    directories = [write(replace(LONG, sampling=sampling()), tmp_path / f"round{number}") for number in (1, 2, 10)]
    edit_json(directories[1] / "plan.json", seed=43)
    found = [measure(directory).marks for directory in directories]
    assert found[:2] == [(), ()]
    sentence = "round10 trained with seed 42, as round1 did: rounds of a case are to be independent"
    assert found[2] == (Mark("seed", sentence),)
    edit_json(directories[2] / "plan.json", seed=51)
    assert measure(directories[2]).marks == ()


def test_a_round_beside_a_cases_rounds_has_a_seed_of_its_own(tmp_path: Path) -> None:
    """The short one of one card, and one that was set aside."""
    write(replace(LONG, sampling=sampling()), tmp_path / "round1")
    for name in ("one_card", "failed1_round1"):
        assert measure(write(replace(LONG, sampling=sampling()), tmp_path / name)).marks == ()
