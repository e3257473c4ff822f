"""What samplers left, read back, and ranges: a reading outside is dropped, a logged figure outside fails its round."""

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


def folder(round_dir: Path, name: str = "h1_noderank0") -> Path:
    made = round_dir / name
    made.mkdir(exist_ok=True)
    return made


def host_rows(folder: Path, *rows: tuple[object, ...]) -> None:
    """Time after the start, CPU, memory, then bytes in and out."""
    lines = [",".join(host_counters.COLUMNS)]
    for when, cpu, memory, received, sent in rows:
        lines.append(f"{START + float(str(when))},{cpu},{memory},{received},{sent},,,,,,")
    (folder / "host.series.csv").write_text("\n".join(lines) + "\n")


def device_rows(folder: Path, *rows: tuple[object, ...]) -> None:
    """Time after the start, device, power, throttle reasons and energy."""
    lines = [",".join(devices.COLUMNS)]
    for when, device, power, throttle, energy in rows:
        lines.append(f"{START + float(str(when))},{device},,{power},,,,,,{throttle},{energy}")
    (folder / "devices.series.csv").write_text("\n".join(lines) + "\n")


def read(round_dir: Path) -> Samples:
    return monitors.read(round_dir)["h1_noderank0"]


def test_each_quantity_has_its_own_times_and_unit(tmp_path: Path) -> None:
    host_rows(folder(tmp_path), (0, "", 0.5, "", ""), (0.1, 0.25, "", "", ""), (0.2, 0.75, 0.5, 1000, 10))
    found = read(tmp_path).host
    assert list(found) == ["cpu", "memory", "net_rx", "net_tx"]
    assert list(found["cpu"].times) == [START + 0.1, START + 0.2]
    assert (found["cpu"].mean, found["cpu"].highest, found["cpu"].unit) == (0.5, 0.75, "1")
    assert (found["net_rx"].unit, list(found["net_rx"].values)) == ("B/s", [1000.0])
    assert list(found["cpu"].between(START + 0.15, START + 9).values) == [0.75]


def test_the_clocks_offset_of_each_host_is_taken_off(tmp_path: Path) -> None:
    for rank in (0, 1):
        host_rows(folder(tmp_path, f"h_{rank}_noderank{rank}"), (3600 * rank, 0.5, 0.5, "", ""))
    report = {"events": [{"time": START + 3605, "device": None, "sentence": "something"}]}
    (tmp_path / "h_1_noderank1" / "monitors.json").write_text(json.dumps(report))
    hosts = [{"name": "h_0", "noderank": 0}, {"name": "h_1", "noderank": 1, "clock_offset_s": 3600}]
    edit_json(Path(shutil.copy(replay_dir("converged_1x1") / "plan.json", tmp_path)), hosts=hosts)
    first, second = (monitors.read(tmp_path)[f"h_{rank}_noderank{rank}"] for rank in (0, 1))
    assert first.host["cpu"].times[0] == second.host["cpu"].times[0] == START
    assert second.events[0].time == START + 5


@pytest.mark.parametrize(
    "plan", ["", "[]", "{}", '{"hosts": 3}', '{"hosts": ["h1"]}', '{"hosts": [{"clock_offset_s": "x"}]}']
)
def test_without_a_measurement_the_offset_is_unknown(tmp_path: Path, plan: str) -> None:
    host_rows(folder(tmp_path), (0, 0.5, 0.5, "", ""))
    (tmp_path / "plan.json").write_text(plan)
    assert read(tmp_path).host["cpu"].times[0] == START


@pytest.mark.parametrize(
    "torn",
    [
        "17000",
        "1700000009.0,0.9",
        "1700000009.0,0.9,0.9,0,0,,,,,",
        "x,0.9,0.9,,,,,,,\n",
        "\n",
        "1700000009.0,nan,,,,,,,,\n",
        "1700000009.0,0.9,0.9,,,,,,,4#\n",
        "nan,0.9,0.9,,,,,,,\n",
    ],
)
def test_a_row_cut_short_or_broken_is_passed_over(tmp_path: Path, torn: str) -> None:
    host_rows(folder(tmp_path), (0, 0.5, 0.5, "", ""), (1, 0.6, 0.5, "", ""))
    with (folder(tmp_path) / "host.series.csv").open("a") as out:
        out.write(torn)
    assert list(read(tmp_path).host["cpu"].values) == [0.5, 0.6]


@pytest.mark.parametrize("content", ["", "\n", "time [s],cpu [1]", "\x00\xff", "time [s],device\n1,2\n1\n"])
def test_files_of_nothing_are_no_samples(tmp_path: Path, content: str) -> None:
    for name in ("host.series.csv", "devices.series.csv"):
        (folder(tmp_path) / name).write_text(content, encoding="latin-1")
    for name in ("monitors.json",):
        (folder(tmp_path) / name).write_text(content, encoding="latin-1")
    assert read(tmp_path).host == {}
    assert all(not found for found in read(tmp_path).devices.values())


def test_times_without_samples_are_gaps_once_for_all_devices(tmp_path: Path) -> None:
    times = [0, 1, 2, 3, 8, 9, 10, 13, 14]
    host_rows(folder(tmp_path), *((when, 0.5, 0.5, "", "") for when in times))
    device_rows(folder(tmp_path), *((when + 0.01, device, 100, "", "") for when in times for device in range(3)))
    found = read(tmp_path)
    assert [(gap.start - START, round(gap.seconds, 1)) for gap in found.gaps] == [(3, 5.0), (10, 3.0)]
    assert "2 gaps between the samples, 8.0 s in total" in monitors.notes(found)


def test_the_samplers_messages_are_reported(tmp_path: Path) -> None:
    host_rows(folder(tmp_path), (0, 0.5, 0.5, "", ""))
    report = {
        "means": {"network": "/proc/net/dev: eth0", "cpu": "/proc/stat"},
        "missing": ["power: none"],
        "events": [{"time": START, "device": 3, "sentence": "device 3 is lost: GPU is lost"}, "x", {}],
        "errors": [{"sentence": "tool: bad", "times": 3}],
        "lost_lines": ["2 lines of x were lost: full"],
    }
    (folder(tmp_path) / "monitors.json").write_text(json.dumps(report))
    found = read(tmp_path)
    assert monitors.notes(found) == [
        "device 3 is lost: GPU is lost",
        "tool: bad (3 times)",
        "2 lines of x were lost: full",
        "power: none",
    ]
    assert monitors.warnings(tmp_path) == ["h1: device 3 is lost: GPU is lost"]
    assert (found.read_from("net_rx"), found.read_from("cpu"), found.read_from("power")) == (
        "/proc/net/dev: eth0",
        "/proc/stat",
        "",
    )


def test_the_share_of_each_reason_for_low_clocks(tmp_path: Path) -> None:
    reasons = ["none", "sw_power_cap", "sw_power_cap+hw_thermal", "none", ""]
    device_rows(folder(tmp_path), *((when, 0, 1, reason, "") for when, reason in enumerate(reasons)))
    assert read(tmp_path).throttle == {0: {"hw_thermal": 0.25, "sw_power_cap": 0.5}}


# -- ranges: of readings, and of logged figures --------------------------------------------------------------

COLUMNS = {"host": host_counters.COLUMNS, "devices": devices.COLUMNS}
RANGES = {"host": HOST, "devices": DEVICE}


def names_of(file: str) -> list[str]:
    return [column.partition(" [")[0] for column in COLUMNS[file]]


def write(round_dir: Path, file: str, name: str, values: list[float | str], **others: object) -> None:
    """A series with these readings of a quantity, a second apart, and each other quantity as given."""
    lines = [",".join(COLUMNS[file])]
    for second, value in enumerate(values):
        row = {**dict.fromkeys(names_of(file), ""), "time": START + second, "device": 3, **others, name: value}
        lines.append(",".join(str(row[column]) for column in names_of(file)))
    (folder(round_dir) / f"{file}.series.csv").write_text("\n".join(lines) + "\n")


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
    write(tmp_path, file, name, [allowed.low, below, above, below, allowed.high])
    found = read(tmp_path)
    assert kept(found, file, name) == [allowed.low, allowed.high]
    (dropped,) = found.dropped
    device = None if file == "host" else 3
    assert (dropped.device, dropped.name, dropped.times, dropped.first) == (device, name, 3, below)
    (sentence,) = monitors.dropped(monitors.read(tmp_path))
    source = "h1: " if file == "host" else "h1: device 3: "
    assert sentence.startswith(f"{source}dropped 3 readings of {name} outside the possible range: the first ")
    assert sentence.endswith(f", expected {range_text(allowed)}")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_reading_that_is_no_finite_number_is_dropped_and_counted(tmp_path: Path, value: str) -> None:
    write(tmp_path, "devices", "power", [100, value, 200])
    found = read(tmp_path)
    assert kept(found, "devices", "power") == [100, 200]
    assert [each.times for each in found.dropped] == [1]


def test_devices_with_the_same_fault_are_one_sentence(tmp_path: Path) -> None:
    device_rows(folder(tmp_path), *((0, device, -23.5, "", "") for device in (0, 1, 5)))
    (sentence,) = monitors.dropped(monitors.read(tmp_path))
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
    write(tmp_path, "devices", "power", [highest, highest + 1])
    (folder(tmp_path) / "monitors.json").write_text(json.dumps({"devices": [{"index": 3, **facts}]}))
    found = read(tmp_path)
    assert kept(found, "devices", "power") == [highest]
    assert [(each.first, each.allowed.high) for each in found.dropped] == [(highest + 1, highest)]


def test_a_device_holds_at_most_the_memory_it_has(tmp_path: Path) -> None:
    write(tmp_path, "devices", "memory_used", [80_000, 80_001, 5], memory_total=80_000)
    found = read(tmp_path)
    assert kept(found, "devices", "memory_used") == [80_000, 5]
    assert [(each.first, range_text(each.allowed)) for each in found.dropped] == [(80_001, "0 to 80,000 MiB")]
    write(tmp_path, "devices", "memory_used", [80_001], memory_total=80_000)
    assert "memory_used" not in read(tmp_path).devices[3]


def test_a_column_of_a_newer_version_is_read(tmp_path: Path) -> None:
    (folder(tmp_path) / "host.series.csv").write_text(f"time [s],noise [dB]\n{START},-12\n{START + 1},inf\n")
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
