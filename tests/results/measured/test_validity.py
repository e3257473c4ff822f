"""Conditions that distort a round's measurements give a validity warning with place and amount; others give none."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.sampling import load, schedule
from flagperf_driver.node.sampling.devices import NO_THROTTLING
from pytest_flagperf.report.export import junit
from pytest_flagperf.report.terminal.summary import summarize_run
from pytest_flagperf.report.terminal.table import console_table
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured import busy
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.measured.validity import BUSY, ValidityWarning
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts import OneCard, Verdict, speedup
from pytest_flagperf.results.verdicts.case_result import CaseResult, summarize_case
from pytest_flagperf.running.scaling import Scaling
from tests.helpers.recording import START_MS, Sampling, Training, write
from tests.helpers.results_help import edit_json, recorded, with_metric
from tests.results.measured.test_consistency import contradicted, finished

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


# -- other work on a round's host: a warning, no baseline, and an excuse for a missed speed-up ---------------

# Trains for 7.5 s, from 3 s after its start on.
TRAINED = Training("a", nproc=2, steps=275, eval_every=100, hosts=({"name": "h1", "address": "10.0.0.1"},))
WRONG = {"evaluation"}
OTHERS = [{"pid": 17, "name": "make", "cores": 1.25}, {"pid": 18, "name": "cc1", "cores": 0.5}]


def round_beside(
    directory: Path,
    waited: float | None = 0.0,
    others: float = 0.0,
    stolen: float = 0.0,
    training: Training = TRAINED,
    named: list[Mapping[str, Any]] | None = None,
    until: float = math.inf,
) -> Outcome:
    """A round on a host of four cores; the rates are seconds each second, that of the waiting until this second."""
    report = {"host": {"cores": "4"}, "others": named or [], "events": [], "errors": [], "missing": [], "means": {}}
    write(replace(training, sampling=Sampling(devices=0, every_s=0.5, report=report)), directory)
    rows = [",".join(load.COLUMNS)]
    for number in range(40):
        at = number * schedule.LOAD_S
        cells = ["" if waited is None else f"{waited * min(at, until):.3f}", f"{others * at:.3f}", f"{stolen * at:.3f}"]
        rows.append(",".join([f"{START_MS / 1000 + at:.4f}", *cells]))
    (directory / "h1_noderank0" / "load.series.csv").write_text("\n".join(rows) + "\n")
    return measure(directory)


def test_waiting_beside_other_work_and_stolen_time_give_a_warning_and_own_processes_none(tmp_path: Path) -> None:
    outcome = round_beside(tmp_path, waited=0.125, others=1.5, named=list(OTHERS))
    assert only(outcome.validity_warnings) == ValidityWarning(
        BUSY,
        "h1: a rank waited for a core in 12.5 % of the training; other processes used 1.5 cores, most of it"
        " make (pid 17, 1.2), cc1 (pid 18, 0.5)",
    )
    assert outcome.value("core_wait") == pytest.approx(0.125, abs=1e-3)
    assert outcome.value("other_cores") == pytest.approx(1.5, abs=1e-3)
    outcome = round_beside(tmp_path, waited=0.3, others=0.1)
    assert outcome.validity_warnings == ()
    (text,) = outcome.warnings
    assert text.startswith("h1: a rank waited for a core in 30.0 % of the training because the round's own")
    assert round_beside(tmp_path, waited=0.3, others=0.2).validity_warnings != ()
    outcome = round_beside(tmp_path, waited=0.01, others=3.0)
    assert (outcome.validity_warnings, outcome.warnings) == ((), ())
    # The cores work for some 12 % of four seconds, each second: a share is one of a whole core's time then.
    worked = 4 * 0.12
    assert round_beside(tmp_path, stolen=busy.STOLEN * worked * 1.5).validity_warnings == ()
    assert round_beside(tmp_path, stolen=busy.STOLEN * 0.97).validity_warnings == ()
    warning = only(round_beside(tmp_path, stolen=busy.STOLEN * 1.03).validity_warnings)
    assert warning.kind == BUSY
    assert warning.sentence.startswith("h1: the hypervisor gave ")


@pytest.mark.parametrize(("model_s", "others", "wrong"), [(9.1, 2.0, set()), (9.3, 2.0, WRONG), (9.1, 0.1, WRONG)])
def test_an_evaluation_beside_other_work_is_no_contradiction(
    tmp_path: Path, model_s: float, others: float, wrong: set[str]
) -> None:
    training = replace(finished("eval_model_time")(model_s), hosts=TRAINED.hosts)
    assert contradicted(round_beside(tmp_path, waited=0.5, others=others, training=training)) == wrong


@pytest.mark.parametrize(("share", "warned"), [(busy.WAITED * 0.97, False), (busy.WAITED * 1.03, True)])
def test_the_bound_is_a_few_per_cent_of_the_training(tmp_path: Path, share: float, warned: bool) -> None:
    assert bool(round_beside(tmp_path, waited=share, others=2.0).validity_warnings) == warned


def test_missing_measurements_and_waiting_before_the_training_give_no_warning(tmp_path: Path) -> None:
    """A kernel that counts no waiting, a training of a moment, and rounds of before."""
    outcome = round_beside(tmp_path, waited=None, others=2.0)
    assert (outcome.validity_warnings, outcome.value("core_wait")) == ((), None)
    assert outcome.value("other_cores") == pytest.approx(2.0, abs=1e-3)
    short = replace(TRAINED, steps=20, eval_every=100)
    assert round_beside(tmp_path, waited=0.9, others=2.0, training=short).validity_warnings == ()
    (tmp_path / "h1_noderank0" / "load.series.csv").unlink()
    assert measure(tmp_path).value("other_cores") is None
    assert round_beside(tmp_path, waited=1.0, others=2.0, until=2.5).validity_warnings == ()


WARNING = ValidityWarning(BUSY, "h1: a rank waited for a core in 40.0 % of the training; others used 1.9 cores")


def beside(factor: float, *warnings: ValidityWarning, number: int = 1) -> Outcome:
    """Two cards, so many times as fast as one card of 1,000 images/s."""
    return replace(
        with_metric(recorded("converged_1x2"), "p_core", 1000.0 * factor), validity_warnings=warnings, round=number
    )


def judged(*outcomes: Outcome, one_card: OneCard | None = None, strict: bool = False) -> dict[str, Verdict]:
    card = one_card or OneCard.of([1000.0], "this run", "images/s")
    return {one.name: one for one in speedup(outcomes, card, 2, 0.55, "weak", strict=strict)}


def test_a_speed_up_that_was_missed_on_a_busy_machine_is_a_warning_that_names_the_cause() -> None:
    found = judged(beside(0.9, WARNING))
    for name, got in (("speedup", "0.90x"), ("efficiency", "45.0 %")):
        assert (found[name].ok, found[name].judged) == (True, False)
        assert found[name].got == f"{got} (busy: not judged)"
    sentence = found["efficiency"].sentence
    assert sentence.startswith("not judged because the machine was busy: weak scaling: ")
    assert WARNING.sentence not in sentence, "the round has that warning itself"
    case = CaseResult("a:b:c:1:2:1", (beside(0.9, WARNING),), {"test_speedup": tuple(found.values())})
    summary = summarize_run(StoredRun(Path(), None, (case, replace(case, case="b:b:c:1:2:1"))))
    assert [text for text in summary.summaries[0].warnings if "0.90x" in text] == [sentence]
    assert summary.verdict().startswith(
        "flagperf: 2 of 2 cases passed, figures not valid in 2 cases, 2 speed-ups not judged; "
    )
    assert dict(junit.judged(found.values()))["speedup"] == "0.90x (busy: not judged)"
    assert "warning.efficiency" in dict(junit.judged(found.values()))


def test_a_missed_speed_up_fails_on_a_quiet_machine_under_strict_and_with_another_mark() -> None:
    found = judged(beside(1.02, WARNING))
    assert (found["speedup"].judged, found["speedup"].warning, found["speedup"].got) == (True, False, "1.02x")
    assert (found["efficiency"].judged, found["efficiency"].warning) == (False, True)
    for found in (judged(beside(0.9)), judged(beside(0.9, WARNING), strict=True)):
        assert not found["speedup"].ok
        assert not found["efficiency"].ok
    assert "the machine was busy" in judged(beside(0.9, WARNING), strict=True)["efficiency"].sentence
    assert not judged(beside(0.9, ValidityWarning("throttled", "h1: hot")))["efficiency"].ok
    assert not judged(beside(0.9, WARNING), beside(0.95, number=2), beside(0.5, WARNING, number=3))["efficiency"].ok
    passed = judged(beside(0.9, WARNING), beside(1.7, number=2), beside(0.5, WARNING, number=3))["efficiency"]
    assert (passed.ok, passed.got, passed.warning) == (True, "85.0 %", False)
    case = CaseResult("c", (beside(0.9, WARNING), beside(1.7, number=2)), {}, OneCard(1000.0, "this run"))
    assert case.speedup == pytest.approx(1.7)


def test_a_slow_single_device_that_flatters_the_speed_up_is_reported() -> None:
    slowed = OneCard.of([1000.0], "this run", "images/s", WARNING.sentence)
    found = judged(beside(1.9), one_card=slowed)["efficiency"]
    assert (found.ok, found.warning) == (True, True)
    assert "the true value may be lower" in found.sentence
    noise = judged(beside(2.04), one_card=slowed)
    assert [one.name for one in noise.values() if one.warning] == ["efficiency"], "one warning for both"
    assert "speed-up 2.04x (above 2 cards: noise), efficiency 102.0 %" in noise["efficiency"].sentence
    # Many cards that are not even faster than that are slow indeed.
    assert not judged(beside(0.9), one_card=slowed)["efficiency"].ok


def test_a_speed_up_above_the_cards_is_shown_as_noise_everywhere() -> None:
    found = judged(beside(2.04))
    assert found["speedup"].ok
    assert found["speedup"].warning
    assert found["speedup"].got == "2.04x (above 2 cards: noise)"
    assert dict(junit.judged(found.values()))["speedup"] == "2.04x (above 2 cards: noise)"
    case = CaseResult("a:b:c:1:2:1", (beside(2.04),), {"t": tuple(found.values())}, OneCard(1000.0, "this run"))
    assert case.speedup_text == "2.04x (above 2 cards: noise)"
    assert any("2.04x noise" in line for line in console_table([case], 200))
    assert any("  noise  " in line for line in console_table([case], 80))
    assert any("above 2 cards: noise" in text for text in summarize_case(case).warnings)
    fine = replace(case, outcomes=(beside(2.0),))
    assert (fine.speedup_text, judged(beside(2.0))["speedup"].got) == ("2.00x", "2.00x")


def test_turns_that_show_more_make_a_missed_speed_up_good_and_others_do_not(tmp_path: Path) -> None:
    card = OneCard.of([1000.0], "this run", "images/s")
    better = card.with_turn(1000.0, 1700.0).with_turn(990.0, 1720.0)
    found = judged(beside(0.9), one_card=better)["efficiency"]
    assert (found.ok, found.got) == (True, "85.0 %")
    assert "measured again" in found.sentence
    as_bad = card.with_turn(1000.0, 950.0).with_turn(990.0, 940.0)
    assert not judged(beside(0.9), one_card=as_bad)["efficiency"].ok
    # It is kept with the case, and the table shows what was judged.
    store.save_one_card(tmp_path, better)
    assert store.load_one_card(tmp_path, []) == better
    assert CaseResult("c", (beside(0.9),), {}, better).speedup == pytest.approx(1.7)


@pytest.mark.parametrize(
    ("outcome", "least", "again"),
    [
        (beside(0.9), 0.55, True),
        (beside(1.9), 0.55, False),
        (beside(0.9, WARNING), 0.55, False),  # the machine stays busy the next moment
        (beside(float("nan")), 0.55, False),  # nothing was measured, and nothing will be
        (replace(beside(0.9), state="failed"), 0.55, False),
    ],
)
def test_only_what_was_measured_and_missed_is_measured_again(outcome: Outcome, least: float, again: bool) -> None:
    card = OneCard.of([1000.0], "this run", "images/s")
    assert Scaling([outcome], card, 2, least, "weak").is_missed == again
