"""What people are shown: the console's table, the pieces of the HTML page, the JUnit properties."""

from __future__ import annotations

import html.parser
import json
import shutil
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from pytest_flagperf.report import html as pages
from pytest_flagperf.report.junit import properties
from pytest_flagperf.report.table import console_table
from pytest_flagperf.results import verdicts
from pytest_flagperf.results.faults import Failure
from pytest_flagperf.results.outcome import Outcome, measure
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.verdicts import OneCard
from tests.results_help import NAMES, REPLAYS, edit_json, recorded, with_metric

HOSTILE = "</pre><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;"
VOID = {"br", "img", "meta", "link", "input"}


class Page(html.parser.HTMLParser):
    """Whether every element is closed, and which there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def details(name: str) -> Page:
    outcome = recorded(name)
    return Page(pages.details(REPLAYS / name, outcome, REPLAYS, verdicts.converges(outcome)))


def case(name: str, called: str, rounds: int = 1, one_card: float | None = None) -> CaseResult:
    outcome = replace(recorded(name), case=called)
    return CaseResult(called, (outcome,) * rounds, {}, OneCard(one_card, "this run") if one_card else None)


def long_names() -> CaseResult:
    """A metric, a unit and figures as long as they get."""
    one = recorded("converged_1x2")
    target = replace(one.target, name="masked_lm_accuracy", value=0.123456)
    outcome = replace(one, case="bert:pytorch:CPU:1:2:1", target=target, sample_unit="sequences")
    for name, value in (("p_whole", 123456.0), ("p_train", 123456.0), ("p_core", 123456.0), ("e2e_time", 86000.0)):
        outcome = with_metric(outcome, name, value)
    return CaseResult(outcome.case, (outcome,), {}, OneCard(1000.0, "this run"))


CASES = [
    case("converged_1x1", "resnet50:pytorch:CPU:1:1:3", 3),
    case("converged_1x2", "resnet50:pytorch:CPU:1:2:1", one_card=1750.0),
    case("missed_target", "transformer_xl:pytorch_2.15:A100-80G-PCIe:2:8:3"),
    case("crashed_rank", "bert:pytorch:CPU:1:2:1"),
    case("throughput_only", "glm:pytorch:H200:1:1:1"),
    long_names(),
]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_table_fits_and_says_everything(width: int) -> None:
    lines = console_table(CASES, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for wanted in (
        *(each.case for each in CASES), "3/3", "0/1", "not asked", "top1", "0.924 (>= 0.900)", "0.874 (>= 0.900)",
        "1,684", "images/s", "1.92x", "9.1 s",
    ):  # fmt: skip
        assert wanted in text, wanted


def test_a_wide_table_has_a_line_per_case_and_a_narrow_one_two() -> None:
    assert len(console_table(CASES, 200)) == 1 + len(CASES)
    assert len(console_table(CASES, 80)) == 2 + 2 * len(CASES)
    assert console_table([], 80) == ["no case left a result"]


def test_columns_stand_below_each_other() -> None:
    ends = {len(line) for line in console_table(CASES, 80)[1::2]}
    assert len(ends) == 1


def test_cells_match_their_header() -> None:
    outcome = recorded("converged_1x2")
    judged = verdicts.speedup([outcome], OneCard(1750.0, "this run"), 2, 0.5, "weak")
    cells = pages.row_cells([outcome, outcome], judged)
    assert len(cells) == len(pages.header_cells()) == len(pages.row_cells([]))
    assert [Page(cell).text for cell in cells] == [
        ["toy:pytorch:CPU:1:2:1"], ["top1 0.924 (>= 0.900)"], ["3,368 images/s"], ["1.92x"],
    ]  # fmt: skip
    assert "".join(pages.row_cells([recorded("crashed_rank")])).count("></td>") == 3


@pytest.mark.parametrize("name", NAMES)
def test_every_replay_gives_whole_html(name: str) -> None:
    page = details(name)
    assert page.open == []
    assert set(page.links) == {f"{name}/{log}" for log in recorded(name).logs}
    assert all((REPLAYS / link).is_file() for link in page.links)


def test_a_good_rounds_page_has_curves_figures_config_and_environment() -> None:
    page = details("converged_1x1")
    text = " ".join(page.text)
    assert page.tags.count("svg") == 3
    for wanted in (
        "Training loss", "p_core", "1,684 images/s", "host clock over 195 steps", "1 deviation",
        "vendors/cpu/toy-pytorch/config/config_CPUx1x1.py:1", "64", "pytorch 2.9.1",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert "bad" not in pages.details(REPLAYS / "converged_1x1", recorded("converged_1x1"), REPLAYS)


def test_a_bad_rounds_page_says_why_and_shows_the_last_lines() -> None:
    text = " ".join(details("crashed_rank").text)
    assert "rank 1 on localhost" in text
    assert text.count("failed with") + text.count("exit code 1") == 1, "told once"
    assert "ModuleNotFoundError: No module named 'something_missing'" in text
    assert "the loss was NaN at step 120" in " ".join(details("nan_loss").text)


def test_nothing_that_a_log_or_a_config_says_becomes_markup(tmp_path: Path) -> None:
    shutil.copytree(REPLAYS / "converged_1x1", tmp_path / "round1")
    metric = {"name": HOSTILE, "direction": "higher", "unit": HOSTILE, "target": 0.9}
    value = {"value": HOSTILE, "file": HOSTILE, "line": 3, "layer": HOSTILE}
    edit_json(
        tmp_path / "round1" / "plan.json",
        case=HOSTILE, metric=metric, sample_unit=HOSTILE, scale=HOSTILE, values={HOSTILE: value},
        deviations=[{"key": HOSTILE, "reference": HOSTILE}], runtime=HOSTILE, python=HOSTILE,
    )  # fmt: skip
    outcome = measure(tmp_path / "round1")
    hostile: Outcome = replace(
        outcome,
        failures=(Failure("crash", HOSTILE, 1, HOSTILE, (HOSTILE,)),),
        environment={HOSTILE: HOSTILE},
        logs=(f"{HOSTILE}/rank0.out.log",),
    )
    text = pages.details(tmp_path / "round1", hostile, tmp_path, verdicts.converges(hostile))
    page = Page(text)
    assert page.open == []
    assert not {"script", "img"} & set(page.tags)
    assert "<script" not in text
    assert all(link.startswith("round1/%3C/pre%3E") for link in page.links)
    assert not {"script", "img"} & set(Page("".join(pages.row_cells([hostile]))).tags)


@pytest.mark.parametrize(
    "plan", ["", "[]", '{"values": 3, "deviations": 4}', '{"values": {"a": 1}, "deviations": [2]}']
)
def test_a_plan_that_cannot_be_read_costs_only_the_config(tmp_path: Path, plan: str) -> None:
    (tmp_path / "plan.json").write_text(plan, encoding="utf-8")
    page = Page(pages.details(tmp_path, recorded("converged_1x1"), tmp_path))
    assert page.open == []
    assert page.tags.count("svg") == 3


def test_the_style_is_one_element_for_light_and_dark() -> None:
    text = pages.style()
    assert Page(text).tags == ["style"]
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text


def test_properties_are_pairs_of_text_with_unit_and_round() -> None:
    found = dict(properties([recorded("converged_1x2")]))
    assert float(found["round1.p_core[images/s]"]) == pytest.approx(3368.42, abs=0.01)
    assert found["target.top1"] == "0.900"
    assert found["environment.device"] == "a processor"
    assert len(properties([recorded("converged_1x2")])) == len(found)


def test_properties_can_stand_in_xml_and_json() -> None:
    outcome = replace(recorded("crashed_rank"), environment={"device": "a\x00b\x1b"})
    found = properties([outcome])
    assert all(type(name) is type(value) is str for name, value in found)
    assert ("environment.device", "a?b?") in found
    assert json.dumps(found)
    assert [quoteattr(value) for _, value in found]
