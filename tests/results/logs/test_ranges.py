"""Ranges: a reading outside is dropped, counted and reported, a logged figure outside fails the round."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import events
from flagperf_driver.node.logs.ranges import DEVICE, HOST, LOGGED, Range
from flagperf_driver.node.logs.ranklog import RangeChecker
from flagperf_driver.node.logs.samples import Samples
from flagperf_driver.node.sampling import devices, host_counters
from flagperf_driver.target import Target
from pytest_flagperf.kinds.training.verdicts import converges
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.logs.range_texts import impossible_figure, range_text
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts import failed
from tests.helpers import recording
from tests.helpers.recording import Training
from tests.helpers.results_help import edit_json, recorded, replay_dir

START = 1_700_000_000.0
COLUMNS = {"host": host_counters.COLUMNS, "devices": devices.COLUMNS}
RANGES = {"host": HOST, "devices": DEVICE}


def names_of(file: str) -> list[str]:
    return [column.partition(" [")[0] for column in COLUMNS[file]]


def write(folder: Path, file: str, name: str, values: list[float | str], **others: object) -> None:
    """A series with these readings of a quantity, a second apart, and each other quantity as given."""
    lines = [",".join(COLUMNS[file])]
    for second, value in enumerate(values):
        row = {**dict.fromkeys(names_of(file), ""), "time": START + second, "device": 3, **others, name: value}
        lines.append(",".join(str(row[column]) for column in names_of(file)))
    folder.mkdir(exist_ok=True)
    (folder / f"{file}.series.csv").write_text("\n".join(lines) + "\n")


def read(round_dir: Path) -> Samples:
    return monitors.read(round_dir)["h1_noderank0"]


def kept(samples: Samples, file: str, name: str) -> list[float]:
    found = samples.host if file == "host" else samples.devices.get(3, {})
    return list(found[name].values) if name in found else []


@pytest.mark.parametrize("file", COLUMNS)
def test_every_column_has_a_range_in_its_unit(file: str) -> None:
    columns = [re.fullmatch(r"(\w+)(?: \[(.*)\])?", column) for column in COLUMNS[file]]
    expected = {match[1]: match[2] for match in columns if match and match[1] not in ("time", "device", "throttle")}
    assert expected == {name: allowed.unit or "1" for name, allowed in RANGES[file].items()}


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, known in RANGES.items() for name in known])
def test_a_reading_at_its_bounds_stays_one_beyond_is_dropped_and_named(tmp_path: Path, file: str, name: str) -> None:
    allowed = RANGES[file][name]
    below, above = math.nextafter(allowed.low, -math.inf), math.nextafter(allowed.high, math.inf)
    write(tmp_path / "h1_noderank0", file, name, [allowed.low, below, above, below, allowed.high])
    found = read(tmp_path)
    assert kept(found, file, name) == [allowed.low, allowed.high]
    (dropped,) = found.dropped
    device = None if file == "host" else 3
    assert (dropped.device, dropped.name, dropped.times, dropped.first) == (device, name, 3, below)
    (sentence,) = monitors.dropped({"h1_noderank0": found})
    source = "h1: " if file == "host" else "h1: device 3: "
    assert sentence.startswith(f"{source}dropped 3 readings of {name} outside the possible range: the first ")
    assert sentence.endswith(f", expected {range_text(allowed)}")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_reading_that_is_no_finite_number_is_dropped_and_counted(tmp_path: Path, value: str) -> None:
    write(tmp_path / "h1_noderank0", "devices", "power", [100, value, 200])
    found = read(tmp_path)
    assert kept(found, "devices", "power") == [100, 200]
    assert [each.times for each in found.dropped] == [1]


def test_devices_with_the_same_fault_are_one_sentence(tmp_path: Path) -> None:
    lines = [",".join(devices.COLUMNS), *(f"{START},{device},,-23.5,,,,,,," for device in (0, 1, 5))]
    folder = tmp_path / "h1_noderank0"
    folder.mkdir()
    (folder / "devices.series.csv").write_text("\n".join(lines) + "\n")
    (sentence,) = monitors.dropped({"h1_noderank0": read(tmp_path)})
    assert sentence.startswith("h1: devices 0, 1, 5: dropped 3 readings of power")
    assert "the first -23.5 W, expected 0 to 10,000 W" in sentence


@pytest.mark.parametrize(
    ("facts", "highest"),
    [
        ({"power_limit": 700.0}, 1400),
        ({"power_limit": 350.0, "usual_power_limit": 700.0}, 1400),
        ({"power_limit": None, "usual_power_limit": None}, 10_000),
        ({"power_limit": 9000.0}, 10_000),
        ({}, 10_000),
    ],
)
def test_a_device_draws_at_most_twice_its_boards_limit(tmp_path: Path, facts: dict[str, Any], highest: float) -> None:
    folder = tmp_path / "h1_noderank0"
    write(folder, "devices", "power", [highest, highest + 1])
    (folder / "monitors.json").write_text(json.dumps({"devices": [{"index": 3, **facts}]}))
    found = read(tmp_path)
    assert kept(found, "devices", "power") == [highest]
    assert [(each.first, each.allowed.high) for each in found.dropped] == [(highest + 1, highest)]


def test_a_device_holds_at_most_the_memory_it_has(tmp_path: Path) -> None:
    write(tmp_path / "h1_noderank0", "devices", "memory_used", [80_000, 80_001, 5], memory_total=80_000)
    found = read(tmp_path)
    assert kept(found, "devices", "memory_used") == [80_000, 5]
    assert [(each.first, range_text(each.allowed)) for each in found.dropped] == [(80_001, "0 to 80,000 MiB")]
    write(tmp_path / "h1_noderank0", "devices", "memory_used", [80_001], memory_total=80_000)
    assert "memory_used" not in read(tmp_path).devices[3]


def test_a_column_of_a_newer_version_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "h1_noderank0"
    folder.mkdir()
    (folder / "host.series.csv").write_text(f"time [s],noise [dB]\n{START},-12\n{START + 1},inf\n")
    assert list(read(tmp_path).host["noise"].values) == [-12]


def test_an_impossible_reading_changes_no_figure_of_the_round() -> None:
    bad, good = recorded("impossible_readings"), recorded("at_its_power_limit")
    figures = [metric.name for metric in good.metrics if metric.name.startswith(("device_", "host_"))]
    figures.remove("device_throttled")  # the other replay's own
    assert {"device_power", "device_memory", "device_utilization", "host_cpu"} <= {*figures}
    for name in figures:
        assert bad.value(name) == pytest.approx(good.value(name), rel=0.05), name


SUITE = Target("top1", "higher", "fraction", range=(0.0, 1.0), loss_range=(-0.5, 20.0))
DECLARED = [
    (events.STEP_END, "loss", Range(-0.5, 20.0)),
    (events.FINISHED, "final_loss", Range(-0.5, 20.0)),
    (events.INIT_EVALUATION, "top1", Range(0, 1)),
    (events.EVALUATE, "top1", Range(0, 1)),
    (events.FINISHED, "final_metrics.top1", Range(0, 1)),
]
FIGURES = [*DECLARED, *((event, name, allowed) for event, known in LOGGED.items() for name, allowed in known.items())]


def record(name: str, value: object) -> dict[str, Any]:
    table, dot, member = name.partition(".")
    return {table: {member: value}} if dot else {name: value}


@pytest.mark.parametrize(("event", "name", "allowed"), FIGURES, ids=[f"{event}-{name}" for event, name, _ in FIGURES])
def test_a_logged_figure_at_its_bounds_is_possible_and_one_beyond_is_not(event: str, name: str, allowed: Range) -> None:
    limits = RangeChecker(0, SUITE)
    for value in (allowed.low, allowed.high, int(max(allowed.low, 0)), None, "nan", math.nan, math.inf, "text"):
        limits.check(event, record(name, value))
    assert limits.impossible() == ()
    below = math.nextafter(allowed.low, -math.inf)
    for value in (below, -1e9, str(-7e9)):
        limits.check(event, {"step": 30, **record(name, value)})
    (found,) = [each for each in limits.impossible() if each.name == name]
    assert (found.event, found.times, found.first) == (event, 3, below)
    assert (
        impossible_figure(found).endswith(f"in {event} at step 30 (3 records), expected {range_text(allowed)}")
        or name == "step"
    )
    if math.isfinite(allowed.high):
        limits.check(event, record(name, math.nextafter(allowed.high, math.inf)))
        assert [each.times for each in limits.impossible() if each.name == name] == [4]


def test_without_a_declared_range_only_the_loss_has_one() -> None:
    for target in (replace(SUITE, range=None, loss_range=None), replace(SUITE, range=(1, 1), loss_range=None)):
        limits = RangeChecker(0, target)
        limits.check(events.EVALUATE, {"top1": 2.5})
        assert limits.impossible() == ()
        limits.check(events.STEP_END, {"loss": -0.1})
        assert [each.name for each in limits.impossible()] == ["loss"]


FLAT = sorted({name for event, name, _ in FIGURES if event == events.FINISHED and "." not in name})


def test_a_long_list_of_impossible_figures_is_cut_and_older_rounds_are_judged_as_then(tmp_path: Path) -> None:
    spoiled = Training("a", finished=lambda value: {**value, **dict.fromkeys(FLAT, -1)})
    outcome = measure(recording.write(spoiled, tmp_path / "round1"))
    (verdict,) = [one for one in converges(outcome) if one.name == "in_range"]
    assert "rank 0 logged e2e_time = -1 s in FINISHED (1 record), expected 0 s or more; " in verdict.sentence
    assert verdict.sentence.endswith(f"; and {len(FLAT) - 3} more")
    again = Outcome.from_json(json.loads(json.dumps(outcome.to_json())))
    assert again.impossible == outcome.impossible
    shutil.copytree(replay_dir("impossible_accuracy"), tmp_path / "old")
    plan = json.loads((tmp_path / "old" / "plan.json").read_text())
    edit_json(tmp_path / "old" / "plan.json", metric={**plan["metric"], "range": None})
    assert failed(converges(measure(tmp_path / "old"))) == []
