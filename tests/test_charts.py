"""The charts' data: thinned, gaps kept, the same however it is said, and harmless in a page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_flagperf.report.page import charts, sampled_charts
from pytest_flagperf.report.page.charts import MAX_POINTS, Band, Bar, Chart, Level, Line
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.logs.samples import Samples, Series
from pytest_flagperf.results.logs.step_times import RankStepTimes
from pytest_flagperf.results.measured.outcome import Outcome, Step
from pytest_flagperf.results.measured.phases import Phase
from tests.results_help import recorded
from tests.test_monitors import START, device_rows, folder, host_rows

HOSTILE = ["</script><script>alert(1)</script>", "\"&'>", "中文", "a" * 300, "\x00\x1b[31m", "<!--"]


def long(outcome: Outcome, steps: int = 2000) -> Outcome:
    curve = tuple(Step(step, step, step / 10, 2 + math.sin(step * 1.7), 1e6 + step % 7, 1e-3) for step in range(steps))
    return replace(outcome, steps=curve)


def busy(round_dir: Path, hosts: int, cards: int, seconds: int) -> dict[str, Samples]:
    for rank in range(hosts):
        place = folder(round_dir, f"h{rank}_noderank{rank}")
        host_rows(place, *((when, 0.5, 0.25 + 0.001 * rank, 1e6, 1e6) for when in range(seconds)))
        waves = [(when, card, 300 + 50 * math.sin(when / 9 + card)) for when in range(seconds) for card in range(cards)]
        device_rows(place, *((when, card, f"{watts:.1f}", "idle", when * 300) for when, card, watts in waves))
    return monitors.read(round_dir)


def there(made: Sequence[Chart | None]) -> list[Chart]:
    return [chart for chart in made if chart is not None]


def lines_of(chart: Chart | None) -> list[str]:
    assert chart is not None
    return [line.name for line in chart.lines]


# -- rounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["converged_1x2", "nan_metric", "crashed_rank", "throughput_only", "hang"])
def test_a_replay_is_drawn_as_far_as_it_went(name: str) -> None:
    outcome = recorded(name)
    assert bool(charts.loss([outcome])) == bool(outcome.steps)
    made = [charts.loss([outcome]), charts.metric([outcome]), charts.throughput([outcome])]
    json.loads(charts.dumped(charts.spec(there(made))))


def test_a_chart_has_a_line_a_round_and_the_target_as_a_level() -> None:
    rounds = [replace(recorded("converged_1x1"), round=number) for number in (1, 2, 3)]
    made = charts.metric(rounds)
    assert made is not None
    assert lines_of(made) == ["round 1", "round 2", "round 3"]
    assert made.levels == (Level("target 0.900", 0.9),)
    assert made.lines[0].x[0] == 0, "the untrained model stands first"


def test_throughput_is_over_time_and_begins_at_nothing() -> None:
    made = charts.throughput([recorded("converged_1x1")])
    assert made is not None
    assert (made.kind, made.floor, made.y) == ("time", 0.0, "images/s")


def test_a_line_is_thinned_and_keeps_its_end() -> None:
    made = charts.loss([long(recorded("converged_1x1"), 10 * MAX_POINTS + 3)])
    assert made is not None
    assert len(made.lines[0].x) <= MAX_POINTS + 1
    assert made.lines[0].x[-1] == 10 * MAX_POINTS + 2


def test_what_is_not_a_number_is_a_gap_and_no_line_at_all_no_chart() -> None:
    made = charts.loss([recorded("nan_loss")])
    assert made is not None
    assert None in charts.spec([made])["charts"][0]["lines"][0][2]
    endless = replace(recorded("converged_1x1"), steps=(Step(1, 1, 0.1, math.inf, 1.0, 1.0),) * 3)
    assert charts.loss([endless]) is None
    assert (charts.metric([]), charts.throughput([]), charts.html([None])) == (None, None, "")


# -- hosts and devices ---------------------------------------------------------------------------------------


def test_a_few_devices_have_a_line_each(tmp_path: Path) -> None:
    (power,) = there(sampled_charts.devices(busy(tmp_path, 2, 2, 20)))
    assert lines_of(power) == [f"h{rank} device {card}" for rank in (0, 1) for card in (0, 1)]


def test_many_devices_are_the_lowest_the_middle_and_the_highest(tmp_path: Path) -> None:
    (power,) = there(sampled_charts.devices(busy(tmp_path, 4, 8, 60)))
    assert lines_of(power) == ["lowest", "middle", "highest"]
    assert "32" in power.note
    lowest, middle, highest = (line.y for line in power.lines)
    assert all(low <= mid <= high for low, mid, high in zip(lowest, middle, highest, strict=True))


def test_hosts_charts_have_their_units_and_what_was_not_sampled_is_not_there(tmp_path: Path) -> None:
    made = there(sampled_charts.hosts(busy(tmp_path, 2, 1, 30)))
    assert [(chart.title, chart.y) for chart in made] == [
        ("Host CPU", "%"), ("Host memory", "%"), ("Host network, in and out", "MB/s"),
    ]  # fmt: skip
    assert made[2].lines[0].y[0] == pytest.approx(2.0), "in and out together"
    assert there(sampled_charts.devices({})) == []
    assert there(sampled_charts.hosts({"h_noderank0": Samples({})})) == []


def test_phases_are_bands_on_the_samples_own_axis(tmp_path: Path) -> None:
    found = busy(tmp_path, 1, 1, 30)
    phases = (Phase("init", START - 2, START + 5), Phase("train", START + 5, START + 29))
    for chart in there([*sampled_charts.devices(found, phases), *sampled_charts.hosts(found, phases)]):
        assert chart.bands == (Band("init", 0.0, 7.0), Band("train", 7.0, 31.0))
        assert chart.lines[0].x[0] == 2.0, "the first sample is two seconds after the first phase began"


def test_samples_are_thinned_to_means_and_a_hole_stays_one() -> None:
    times = [float(when) for when in [*range(500), *range(600, 1100)]]
    series = Series("power", "W", times, [100.0 + when % 2 for when in times])
    (made,) = there(sampled_charts.devices({"h_noderank0": Samples({}, {0: {"power": series}})}, points=100))
    values = made.lines[0].y
    assert len(values) <= 102
    assert sum(map(math.isnan, values)) == 1
    assert {round(value, 1) for value in values if math.isfinite(value)} == {100.5}
    (skimmed,) = there(
        sampled_charts.devices({"h_noderank0": Samples({}, {0: {"power": series}}, is_partial=True)}, points=100)
    )
    assert not any(map(math.isnan, skimmed.lines[0].y)), "of a long file parts were read: between them is no hole"


# -- ranks and cases -----------------------------------------------------------------------------------------


def words(ranks: int) -> list[RankStepTimes]:
    return [
        RankStepTimes(rank, tuple((step, 0.1 + rank / 100) for step in range(10, 110, 10)), {"p50": 0.1 + rank / 100})
        for rank in range(ranks)
    ]


def test_each_rank_has_its_step_times() -> None:
    assert lines_of(charts.rank_steps(words(2))) == ["rank 0", "rank 1"]
    assert lines_of(charts.rank_steps(words(16))) == ["lowest", "middle", "highest"]
    spread = charts.rank_spread(words(4))
    assert lines_of(spread) == ["p50"], "what no rank said is no line"
    assert spread is not None
    assert list(spread.lines[0].y) == pytest.approx([100, 110, 120, 130])
    assert charts.rank_spread(words(1)) is None


def test_scaling_has_the_line_of_perfect_scaling_beside_what_was_measured() -> None:
    made = charts.scaling("glm", "images/s", {"acme A1": [(8, 700.0), (1, 100.0)], "acme B2": [(4, 50.0)]})
    assert made is not None
    assert lines_of(made) == ["acme A1", "acme A1, ideal", "acme B2"]
    assert list(made.lines[0].y) == [100.0, 700.0]
    assert list(made.lines[1].y) == [100.0, 800.0]
    assert charts.scaling("nothing", "images/s", {}) is None


def test_bars_need_no_script_and_no_number_has_no_bar() -> None:
    text = charts.bars(
        [Bar("<b>", 50.0, "50 images/s", "#a"), Bar("none", math.nan, "missing"), Bar("best", 100.0, "")]
    )
    assert "width:50.0%" in text
    assert "width:0.0%" in text
    assert "<b>" not in text
    assert "<script" not in text


# -- to the page ---------------------------------------------------------------------------------------------


def test_axes_that_are_the_same_are_said_once() -> None:
    lines = [Line(f"device {number}", (0.0, 1.5, 3.0), (1.0, 2.0, float(number))) for number in range(4)]
    found = charts.spec([Chart("one", "x", "y", tuple(lines)), Chart("two", "x", "y", tuple(lines[:1]))])
    assert found["xs"] == [[0, 1.5, 3]]
    assert {line[1] for chart in found["charts"] for line in chart["lines"]} == {0}


def test_numbers_are_short_and_never_wrong_by_more_than_a_chart_can_show() -> None:
    assert [charts.rounded(value) for value in (5226.340297, 0.363525390625, -1e-9, 3.0, 123456.0, math.nan)] == [
        5226, 0.3635, -1e-9, 3, 123500, None,
    ]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_only_text(text: str) -> None:
    made = Chart(text, text, text, (Line(text, (1.0, 2.0), (1.0, 2.0)),), levels=(Level(text, 1.0),), note=text)
    page = charts.html([replace(made, bands=(Band(text, 0.0, 1.0),))])
    assert page.count("<script") == page.count("</script>") == 1
    assert "<!--" not in page
    data = json.loads(page.partition('json">')[2].partition("</script>")[0])
    assert data["charts"][0]["x"] == text
    assert len(data["charts"][0]["lines"][0][0]) <= 40


def test_a_long_training_on_many_devices_stays_small(tmp_path: Path) -> None:
    rounds = [replace(long(recorded("converged_1x1")), round=number) for number in (1, 2, 3)]
    assert len(charts.html([charts.loss(rounds), charts.throughput(rounds)])) < 20_000
    found = busy(tmp_path, 1, 8, 1200)
    assert len(charts.html([*sampled_charts.devices(found, points=100), *sampled_charts.hosts(found)])) < 20_000
