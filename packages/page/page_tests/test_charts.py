"""What is drawn: the data of charts, the step times of ranks, and the pictures of a model."""

import base64
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flagperf_driver import perflog
from flagperf_driver.node.logs.drawings import FirstAndLast, LoggedDrawings, drawings
from flagperf_driver.node.logs.samples import Samples, Series
from flagperf_driver.perflog import Record
from flagperf_driver.training.steps import MOST_PIXELS
from pytest_flagperf.kinds.training import charts as training_charts
from pytest_flagperf.report import charts
from pytest_flagperf.report.charts import MAX_POINTS, Band, Chart, ChartLine, HorizontalLine
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.measured.outcome import Outcome, Step
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf_page import chart_html, sampled_charts, step_times
from pytest_flagperf_page import drawings as drawings_html
from pytest_flagperf_page.small_charts import small
from pytest_flagperf_page.step_times import RankStepTimes
from tests.helpers.results_help import recorded
from tests.results.logs.test_monitors import START, device_rows, folder, host_rows


def long(outcome: Outcome, steps: int = 2000) -> Outcome:
    curve = tuple(Step(step, step, step / 10, 2 + math.sin(step * 1.7), 1e6 + step % 7, 1e-3) for step in range(steps))
    return replace(outcome, steps=curve)


def busy(round_dir: Path, hosts: int, cards: int, seconds: int) -> dict[str, Samples]:
    for rank in range(hosts):
        host = folder(round_dir, f"h{rank}_noderank{rank}")
        host_rows(host, *((when, 0.5, 0.25 + 0.001 * rank, 1e6, 1e6) for when in range(seconds)))
        waves = [(when, card, 300 + 50 * math.sin(when / 9 + card)) for when in range(seconds) for card in range(cards)]
        device_rows(host, *((when, card, f"{watts:.1f}", "idle", when * 300) for when, card, watts in waves))
    return monitors.read(round_dir)


def drawn(charts: Sequence[Chart | None]) -> list[Chart]:
    return [chart for chart in charts if chart is not None]


def lines_of(chart: Chart | None) -> list[str]:
    assert chart is not None
    return [line.name for line in chart.lines]


def test_the_metric_has_a_line_for_each_round_and_a_level_for_the_target() -> None:
    rounds = [replace(recorded("converged_1x1"), round=number) for number in (1, 2, 3)]
    chart = charts.metric(rounds)
    assert chart is not None
    assert lines_of(chart) == ["round 1", "round 2", "round 3"]
    assert chart.levels == (HorizontalLine("target 0.900", 0.9),)
    assert chart.lines[0].x[0] == 0, "the untrained model comes first"


def test_the_load_of_experts_has_the_limit_and_no_chart_without_experts() -> None:
    chart = training_charts.step_figure("expert_load", [recorded("experts")])
    assert chart is not None
    assert chart.lines[0].y[-1] == pytest.approx(1.6)
    assert chart.levels == (HorizontalLine("limit 3.00x", 3.0),)
    assert training_charts.step_figure("expert_load", [recorded("converged_1x1")]) is None


def test_a_line_is_thinned_keeps_its_end_and_has_gaps_where_values_are_not_finite() -> None:
    chart = charts.throughput([recorded("converged_1x1")])
    assert chart is not None
    assert (chart.kind, chart.floor, chart.y) == ("time", 0.0, "images/s")
    chart = training_charts.loss([long(recorded("converged_1x1"), 10 * MAX_POINTS + 3)])
    assert chart is not None
    assert len(chart.lines[0].x) <= MAX_POINTS + 1
    assert chart.lines[0].x[-1] == 10 * MAX_POINTS + 2
    chart = training_charts.loss([recorded("nan_loss")])
    assert chart is not None
    assert None in chart_html.spec([chart])["charts"][0]["lines"][0][2]
    endless = replace(recorded("converged_1x1"), steps=(Step(1, 1, 0.1, math.inf, 1.0, 1.0),) * 3)
    assert training_charts.loss([endless]) is None
    assert (charts.metric([]), charts.throughput([]), chart_html.html([None])) == (None, None, "")


def test_a_few_devices_have_a_line_each_and_many_are_lowest_median_and_highest(tmp_path: Path) -> None:
    (power,) = drawn(sampled_charts.devices(busy(tmp_path, 2, 2, 20)))
    assert lines_of(power) == [f"h{rank} device {card}" for rank in (0, 1) for card in (0, 1)]
    (power,) = drawn(sampled_charts.devices(busy(tmp_path, 4, 8, 60)))
    assert lines_of(power) == ["lowest", "median", "highest"]
    assert "32" in power.note
    lowest, middle, highest = (line.y for line in power.lines)
    assert all(low <= mid <= high for low, mid, high in zip(lowest, middle, highest, strict=True))


def test_charts_of_hosts_have_units_and_phases_are_bands(tmp_path: Path) -> None:
    charts = drawn(sampled_charts.hosts(busy(tmp_path, 2, 1, 30)))
    assert [(item.title, item.y) for item in charts] == [
        ("Host CPU", "%"), ("Host memory", "%"), ("Host network, in and out", "MB/s"),
    ]  # fmt: skip
    assert charts[2].lines[0].y[0] == pytest.approx(2.0), "in and out together"
    assert drawn(sampled_charts.devices({})) == []
    assert drawn(sampled_charts.hosts({"h_noderank0": Samples({})})) == []
    monitored = busy(tmp_path, 1, 1, 30)
    phases = (Phase("init", START - 2, START + 5), Phase("train", START + 5, START + 29))
    for chart in drawn([*sampled_charts.devices(monitored, phases), *sampled_charts.hosts(monitored, phases)]):
        assert chart.bands == (Band("init", 0.0, 7.0), Band("train", 7.0, 31.0))
        assert chart.lines[0].x[0] == 2.0, "the first sample is two seconds after the first phase began"


def test_samples_are_thinned_to_means_and_gaps_stay() -> None:
    times = [float(when) for when in [*range(500), *range(600, 1100)]]
    series = Series("power", "W", times, [100.0 + when % 2 for when in times])
    (chart,) = drawn(sampled_charts.devices({"h_noderank0": Samples({}, {0: {"power": series}})}, points=100))
    values = chart.lines[0].y
    assert len(values) <= 102
    assert sum(map(math.isnan, values)) == 1
    assert {round(value, 1) for value in values if math.isfinite(value)} == {100.5}
    parts = Samples({}, {0: {"power": series}}, is_partial=True)
    (skimmed,) = drawn(sampled_charts.devices({"h_noderank0": parts}, points=100))
    assert not any(map(math.isnan, skimmed.lines[0].y)), "without gaps between the parts of a long file"


def test_a_small_chart_has_the_target_and_leaves_gaps_out_and_noise_small() -> None:
    line = ChartLine("round 1", [0, 10, 15, 20], [0.5, math.nan, 0.75, 1.0])
    text = small(Chart("top1", "step", "", (line,), levels=(HorizontalLine("target", 0.75),)))
    assert '<polyline points="3,25.0 70,14.0 93,3.0"/>' in text
    assert '<path d="M0 14.0H96"/>' in text
    assert "top1: from 0.5 to 1" in text
    assert "<g><circle" in small(Chart("top1", "step", "", (ChartLine("two points", [0, 1], [0.5, 1.0]),)))
    noisy = ChartLine("round 1", [0, 1, 2], [100.0, 99.0, 99.0])
    assert 'points="3,3.0 48,5.2 93,5.2"' in small(Chart("p_core", "run", "", (noisy,)))
    assert small(None) == small(Chart("top1", "step", "", (replace(line, y=[math.nan] * 4),))) == ""


def test_bars_need_a_finite_value_an_axis_is_stored_once_and_numbers_have_four_digits() -> None:
    rows = ("<b>", 50.0, "50 images/s", "#a"), ("none", math.nan, "missing"), ("best", 100.0, "")
    text = chart_html.bars([chart_html.Bar(*row) for row in rows])
    assert "width:50.0%" in text
    assert "width:0.0%" in text
    assert "<b>" not in text
    assert "<script" not in text
    lines = [ChartLine(f"device {number}", (0.0, 1.5, 3.0), (1.0, 2.0, float(number))) for number in range(4)]
    data = chart_html.spec([Chart("one", "x", "y", tuple(lines)), Chart("two", "x", "y", tuple(lines[:1]))])
    assert data["xs"] == [[0, 1.5, 3]]
    assert {line[1] for chart in data["charts"] for line in chart["lines"]} == {0}
    assert [chart_html.rounded(value) for value in (5226.340297, 0.363525390625, -1e-9, 3.0, 123456.0, math.nan)] == [
        5226, 0.3635, -1e-9, 3, 123500, None,
    ]  # fmt: skip


def test_hostile_names_are_escaped() -> None:
    text = "</script><script>alert(1)</script>\"&'>中文\x00\x1b[31m<!--"
    line = ChartLine(text, (1.0, 2.0), (1.0, 2.0))
    levels, bands = (HorizontalLine(text, 1.0),), (Band(text, 0.0, 1.0),)
    page = chart_html.html([Chart(text, text, f"{text} in y", (line,), levels=levels, bands=bands, note=text)])
    assert page.count("<script") == page.count("</script>") == 1
    assert "<!--" not in page
    assert json.loads(page.partition('json">')[2].partition("</script>")[0])["charts"][0]["x"] == text


def test_of_a_long_log_a_part_is_read_and_its_last_word(tmp_path: Path) -> None:
    steps = [Record("STEP_END", {"step": step, "step_time": 0.1}, step, 0) for step in range(20_000)]
    end = Record("FINISHED", {"forward_time": 0.05}, 20_001, 0)
    lines = map(perflog.format_record, [*steps, end])
    (tmp_path / "rank0.out.log").write_text("\n".join(lines) + "\n")
    outcome = replace(recorded("converged_1x1"), logs=("rank0.out.log",))
    (words,) = step_times.read(tmp_path, outcome)
    assert 100 < len(words.step_times) < 1000
    assert words.step_times[-1] == (19_999, 0.1)
    assert words.forward == 0.05


def test_a_rank_that_holds_up_the_others_is_seen() -> None:
    ranks = [RankStepTimes(rank, ((10, 0.1), (20, 0.2)), 0.04 if rank == 7 else 0.02) for rank in range(20)]
    text = chart_html.rank_bars(ranks)
    assert "the slowest 16 of 20 ranks" in text
    assert text.count("<tr") == 16
    assert text.count("<tr class=bad") == text.count('<tr class=bad><th scope="row">rank 7</th>') == 1
    assert lines_of(chart_html.rank_steps(ranks)) == ["lowest", "median", "highest"]
    assert lines_of(chart_html.rank_steps(ranks[:2])) == ["rank 0", "rank 1"]
    assert "class=bad" not in chart_html.rank_bars(ranks[:7])
    assert chart_html.rank_bars(ranks[:1]) == chart_html.rank_bars([RankStepTimes(0, ())] * 2) == ""


RECORD: dict[str, Any] = {
    "step": 3, "name": "some_digits", "rows": 2, "columns": 3, "pixels": base64.b64encode(bytes(range(12))).decode(),
}  # fmt: skip
PICTURES = LoggedDrawings(**RECORD)
INVALID: dict[str, list[Any]] = {
    "name": ["<b>", "", "a" * 41, 1, None],
    "step": [-1, 1.5, "3", True, 2**63],
    "rows": [0, -2, 5, "2", True],
    "columns": [0, 7, None],
    "pixels": ["", "?", "AA", 12, "A" * 4 * MOST_PIXELS],
}


def test_a_valid_record_is_read() -> None:
    assert drawings(RECORD) == PICTURES
    assert PICTURES.content == bytes(range(12))
    most = base64.b64encode(bytes(MOST_PIXELS)).decode()
    assert drawings({**RECORD, "rows": 1, "columns": 1, "pixels": most}) is not None


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in INVALID.items() for value in values])
def test_an_invalid_record_is_left_out(key: str, value: object) -> None:
    assert drawings({**RECORD, key: value}) is None
    assert drawings({name: own for name, own in RECORD.items() if name != key}) is None


def test_the_first_and_the_last_pictures_are_kept() -> None:
    kept = FirstAndLast()
    for step in range(100):
        kept.add(replace(PICTURES, step=step))
        kept.add(replace(PICTURES, step=step, name=f"other{step}"))
    assert [(one.name, one.step) for one in kept.all()][:2] == [("some_digits", 0), ("some_digits", 99)]
    assert len({one.name for one in kept.all()}) == 4, "a log with many names needs no more memory"


def test_the_page_shows_the_pictures_side_by_side() -> None:
    outcome: Outcome = replace(recorded("converged_1x1"), drawings=(replace(PICTURES, step=0), PICTURES))
    html = drawings_html.html([outcome])
    assert re.findall(r"<figcaption>(.*?)</figcaption>", html) == [
        "round 1: some digits before the training", "round 1: some digits after 3 steps",
    ]  # fmt: skip
    first, _ = re.findall(r"base64,([A-Za-z0-9+/=]+)", html)
    picture = Image.open(io.BytesIO(base64.b64decode(first)))
    assert (picture.format, picture.mode, picture.size) == ("PNG", "L", (7, 2))
    assert picture.tobytes() == bytes([0, 1, 2, 255, 6, 7, 8, 3, 4, 5, 255, 9, 10, 11])
    eleven = replace(PICTURES, rows=1, columns=1, pixels=base64.b64encode(bytes(range(11))).decode())
    assert [list(row)[::2] for row in drawings_html.sheet(eleven)] == [[*range(10)], [255] * 10, [10] + [255] * 9]


def test_a_round_without_pictures_has_no_drawings() -> None:
    outcome = recorded("converged_1x1")
    assert drawings_html.html([outcome]) == ""
    damaged = replace(outcome, drawings=(replace(PICTURES, pixels="?"),))
    assert drawings_html.html([damaged]) == "", "a stored outcome may be damaged"
    assert Outcome.from_json(replace(outcome, drawings=(PICTURES,)).to_json()).drawings == (PICTURES,)
