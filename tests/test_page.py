"""The page of a run: what stands first, the overview, the sections, and that nothing of a log becomes markup."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.sampling import devices
from pytest_flagperf.commands import main
from pytest_flagperf.report.page import html as pieces
from pytest_flagperf.report.page import page
from pytest_flagperf.results import store, verdicts
from pytest_flagperf.results.logs.failures import Failure
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.results.store import RunInfo
from pytest_flagperf.results.verdicts import OneCard, Verdict, VerdictKind
from tests.results_help import NAMES, edit_json, recorded
from tests.stored_runs import INFO, add_case, faster, finish

HOSTILE = "</pre></script><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;<!--"
VOID = {"br", "img", "meta", "link", "input"}
RAW = {"script", "style"}


class Page(html.parser.HTMLParser):
    """Whether every element is closed, and which there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.kinds: list[str] = []
        self.text: list[str] = []
        self.data: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = {name: value or "" for name, value in attrs}
        self.links += [given[name] for name in ("href", "src") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        self.kinds += given.get("class", "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.data if self.open and self.open[-1] in RAW else self.text).append(data)

    @property
    def said(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def of(run_dir: Path, to: Path | None = None) -> Page:
    made = Page(page.body(run_dir, to or run_dir))
    assert made.open == []
    return made


def judged(case_dir: Path, *found: Verdict) -> None:
    store.save_verdicts(case_dir, "test_more", found)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several models, machines and shapes; some well, some not."""
    run_dir = tmp_path_factory.mktemp("run")
    same: dict[str, Any] = {"framework": "pytorch", "scale": "reference"}
    add_case(run_dir, "converged_1x1", faster(1.0, 1.02, 0.98), model="glm", vendor="acme", hardware="A1", **same)
    case_dir = add_case(run_dir, "converged_1x2", model="glm", vendor="acme", hardware="A1", **same)
    store.save_one_card(case_dir, OneCard(1750.0, "this run"))
    add_case(run_dir, "converged_1x1", faster(0.5), model="glm", vendor="borealis", hardware="B2", **same)
    add_case(run_dir, "crashed_rank", model="bert", vendor="acme", hardware="A1", **same)
    return finish(run_dir, replace(INFO, unsupported=("resnet50:pytorch:A1:1:1:1: no config for it",)))


# -- what stands first ---------------------------------------------------------------------------------------


def test_the_first_lines_say_what_passed_what_failed_and_why(run: Path) -> None:
    text = of(run).said
    first = text[: text.index("Overview")]
    assert first.startswith("4 cases: 1 failed , 3 passed , 1 cannot run")
    assert "bert:pytorch:A1:1:2:1 : round 1: rank 1 on localhost" in first
    assert "not run: resnet50:pytorch:A1:1:1:1: no config for it" in first
    for wanted in ("acme A1 (a processor): 1x1, 1x2", "borealis B2", "2023-11-14 22:13:20 UTC, took 1 min 40 s"):
        assert wanted in first
    assert "#case-bert-pytorch-A1-1-2-1" in of(run).links


def test_all_well_is_said_in_two_words(tmp_path: Path) -> None:
    add_case(tmp_path, "converged_1x1")
    made = of(finish(tmp_path))
    assert made.said.startswith("1 case: passed")
    assert "failed" not in made.kinds


def test_an_expected_failure_is_told_with_its_reason_and_is_no_failure(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x1")
    judged(case_dir, Verdict("efficiency", False, "40 %", "at least 55 %", "too slow together", "the switch is old"))
    made = of(finish(tmp_path))
    assert made.said.startswith("1 case: 1 failed as expected")
    assert "too slow together (expected failure: the switch is old)" in made.said
    assert "failed-as-expected" in made.kinds
    assert "failed" not in made.kinds


def test_an_expected_failure_hides_no_other(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x1")
    expected = Verdict("efficiency", False, "40 %", "at least 55 %", "too slow together", "the switch is old")
    judged(case_dir, expected, Verdict("target", False, "0.1", "0.9", "it did not learn"))
    made = of(finish(tmp_path))
    assert made.said.startswith("1 case: 1 failed")
    assert "it did not learn" in made.said[: made.said.index("Overview")]


def test_against_which_baseline_is_told(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x1")
    assert "no accepted baseline" in of(finish(tmp_path)).said
    judged(
        case_dir,
        Verdict("baseline p_core", True, "99", "at least 95", "as good as the baseline", kind=VerdictKind.BASELINE),
    )
    assert "Compared with accepted baselines (1 of 1 case, none worse)" in of(tmp_path).said
    judged(
        case_dir, Verdict("baseline p_core", False, "90", "100", "slower than the baseline", kind=VerdictKind.BASELINE)
    )
    made = of(tmp_path)
    assert "accepted baselines (1 of 1 case, 1 worse)" in made.said
    assert made.said.startswith("1 case: 1 regressed")


def test_a_run_that_broke_off_has_a_page_and_one_without_results_says_so(tmp_path: Path) -> None:
    add_case(tmp_path / "broken", "converged_1x1")
    assert "1 case: passed" in of(tmp_path / "broken").said
    (tmp_path / "empty").mkdir()
    assert "No results" in of(tmp_path / "empty").said


# -- all cases -----------------------------------------------------------------------------------------------


def test_the_overview_has_a_row_a_case_and_its_columns(run: Path) -> None:
    text = page.body(run, run)
    table = Page(
        text[text.index('<table id="flagperf-cases">') : text.index("</table>", text.index("flagperf-cases")) + 8]
    )
    assert table.tags.count("tr") == 1 + 4
    for wanted in (
        "rounds",
        "converged",
        "MFU",
        "speed-up",
        "e2e",
        "0.924 (>= 0.900)",
        "± 2.0 %",
        "1.92x",
        "96.2 % of 2",
    ):
        assert wanted in table.said, wanted


def test_every_link_inside_the_page_has_its_end(run: Path) -> None:
    made = of(run)
    inside = {link.removeprefix("#") for link in made.links if link.startswith("#")}
    assert inside <= set(made.ids)
    assert len(made.ids) == len(set(made.ids))
    assert len([name for name in inside if name.startswith("case-")]) == 4


def test_shapes_are_a_scaling_chart_and_machines_stand_beside_each_other(run: Path) -> None:
    made = of(run)
    scaling = next(json.loads(text) for text in made.data if "ideal" in text)
    assert [line[0] for line in scaling["charts"][0]["lines"]] == ["acme A1", "acme A1, ideal"]
    beside = made.said[made.said.index("Hardware beside hardware") :]
    assert beside.index("acme A1") < beside.index("borealis B2")
    assert "50 %" in beside[: beside.index("Cases")]


def test_cases_stand_as_people_count_and_of_one_shape_most_rounds_make_the_scaling(tmp_path: Path) -> None:
    for name in ("1x1", "1x1", "1x2"):
        rounds = faster(2.0) if not any(tmp_path.glob("*")) else faster(1.0, 1.0)
        add_case(tmp_path, f"converged_{name}", rounds)
    made = of(finish(tmp_path))
    cases = [name for name in made.ids if name.startswith("case-")]
    assert cases == [f"case-toy-pytorch-CPU-1-{rest}" for rest in ("1-1", "1-2", "2-2")]
    (scaling,) = (json.loads(text) for text in made.data if "ideal" in text)
    assert scaling["charts"][0]["lines"][0][2] == [1684, 3368]


def test_what_is_not_alike_does_not_stand_side_by_side(tmp_path: Path) -> None:
    add_case(tmp_path, "converged_1x1", vendor="acme", hardware="A1", scale="small")
    add_case(tmp_path, "converged_1x1", vendor="borealis", hardware="B2", scale="reference")
    assert "Hardware beside hardware" not in of(finish(tmp_path)).said


# -- sections ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_replay_gives_whole_html_whose_logs_are_there(name: str, tmp_path: Path) -> None:
    add_case(tmp_path / "run", name)
    made = of(finish(tmp_path / "run"), tmp_path)
    logs = [link for link in made.links if link.endswith(".log")]
    assert len(logs) == len(recorded(name).logs)
    assert all((tmp_path / link).is_file() for link in logs)


def test_a_section_has_charts_figures_over_rounds_config_and_environment(tmp_path: Path) -> None:
    add_case(tmp_path, "converged_1x1", faster(1.0, 1.0, 1.0, 1.5))
    text = of(finish(tmp_path)).said
    for wanted in (
        "Training loss", "against its target", "Throughput", "95 % interval", "varies by", "round 4", "(outlier)",
        "host clock over 195 steps", "1 deviation", "vendors/cpu/toy-pytorch/config/config_CPUx1x1.py:1",
        "pytorch 2.9.1", "seed 45",
    ):  # fmt: skip
        assert wanted in text, wanted


def test_few_rounds_are_said_to_be_few(tmp_path: Path) -> None:
    add_case(tmp_path, "converged_1x1", faster(1.0, 1.0))
    assert "repeat the case 3 times or more" in of(finish(tmp_path)).said


def test_a_bad_rounds_section_says_why_once_and_shows_the_last_lines(tmp_path: Path) -> None:
    add_case(tmp_path, "crashed_rank")
    add_case(tmp_path, "nan_loss", model="other")
    text = of(finish(tmp_path)).said
    assert "ModuleNotFoundError: No module named 'something_missing'" in text
    assert "the loss was NaN at step 120" in text


def test_warnings_phases_and_the_machine_are_shown(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x1")
    told = replace(
        recorded("converged_1x1"),
        case=store.load_outcome(case_dir / "round1").case,
        validity_warnings=(ValidityWarning("throttled", "device 0 was throttled"),),
        warnings=("a rank was slow",),
        machine={"h1": {"cpu": "a fast one", "cards": ["x", "y"]}, "kernel": "6.1"},
        phases=(Phase("init", 0.0, 1.0), Phase("train", 1.0, 9.0)),
    )
    store.save_outcome(case_dir / "round1", told)
    text = of(finish(tmp_path)).said
    for wanted in (
        "round 1: device 0 was throttled",
        "round 1: a rank was slow",
        "h1, cpu a fast one",
        "x, y",
        "kernel 6.1",
    ):
        assert wanted in text, wanted
    assert "2 warnings on 1 case" in text


def test_what_held_clocks_back_is_a_line_a_reason_and_rest_is_none(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x2")
    (folder,) = {path.parent for path in (case_dir / "round1").glob("*/rank0.out.log")}
    lines = [",".join(devices.COLUMNS)]
    for second in range(4):
        for device, reason in enumerate(["sw_power_cap", "sw_power_cap" if second else "none", "idle"]):
            lines.append(f"{1_700_000_000 + second},{device},50,300,1024,4096,80,1410,1593,{reason},")
    (folder / "devices.series.csv").write_text("\n".join(lines) + "\n")
    text = of(finish(tmp_path)).said
    assert text.count("clocks held back by") == 1
    assert f"{folder.name}, devices 0, 1: clocks held back by sw_power_cap 75.0 % to 100.0 % of the time" in text


def test_what_differs_between_rounds_is_said_of_each(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x1", faster(1.0, 1.0))
    second = store.load_outcome(case_dir / "round2")
    store.save_outcome(case_dir / "round2", replace(second, environment={**second.environment, "device": "another"}))
    text = of(finish(tmp_path)).said
    assert "round 1: a processor; round 2: another" in text
    assert "round 1: pytorch" not in text


def test_an_outcome_of_before_phases_and_machines_has_a_section(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x1")
    path = case_dir / "round1" / "outcome.json"
    body = json.loads(path.read_text())
    for name in ("validity_warnings", "machine", "phases"):
        body.pop(name, None)
    for metric in body["metrics"]:
        metric.pop("samples", None)
        metric.pop("warmup", None)
    path.write_text(json.dumps(body))
    assert "1 case: passed" in of(finish(tmp_path)).said


def test_nothing_that_a_log_or_a_config_says_becomes_markup(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x1")
    metric = {"name": HOSTILE, "direction": "higher", "unit": HOSTILE, "target": 0.9}
    value = {"value": HOSTILE, "file": HOSTILE, "line": 3, "layer": HOSTILE}
    edit_json(
        case_dir / "round1" / "plan.json",
        metric=metric, sample_unit=HOSTILE, scale=HOSTILE, values={HOSTILE: value},
        deviations=[{"key": HOSTILE, "reference": HOSTILE}], vendor=HOSTILE,
    )  # fmt: skip
    hostile = replace(
        measure(case_dir / "round1"),
        case=HOSTILE,
        model=HOSTILE,
        hardware=HOSTILE,
        failures=(Failure("crash", HOSTILE, 1, HOSTILE, (HOSTILE,)),),
        environment={HOSTILE: HOSTILE},
        machine={HOSTILE: [HOSTILE]},
        fingerprint={HOSTILE: HOSTILE},
        validity_warnings=(ValidityWarning(HOSTILE, HOSTILE),),
        warnings=(HOSTILE, "half a character: \ud800"),
        logs=(f"{HOSTILE}/rank0.out.log",),
        stop_reason=HOSTILE,
        phases=(Phase(HOSTILE, 0.0, 1.0),),
    )
    store.save_outcome(case_dir / "round1", hostile)
    judged(case_dir, Verdict(HOSTILE, False, HOSTILE, HOSTILE, HOSTILE, HOSTILE), *verdicts.converges(hostile))
    store.write_run(tmp_path, RunInfo((HOSTILE,), {HOSTILE: HOSTILE}, unsupported=(HOSTILE,)), ())
    text = page.body(tmp_path, tmp_path)
    made = Page(text)
    assert made.open == []
    assert "img" not in made.tags
    assert text.count("<script") == text.count("</script>") == text.count('<script type="application/json">')
    assert "<!--" not in text
    assert "alert(" not in " ".join(data for data in made.data if not data.startswith("{"))
    for data in made.data:
        json.loads(data)
    assert "img" not in Page("".join(pieces.row_cells([hostile]))).tags


def test_the_command_can_be_copied(tmp_path: Path) -> None:
    store.write_run(tmp_path, RunInfo(("suites", "-k", "glm and converges"), {}), ())
    assert "<code>suites -k &#x27;glm and converges&#x27;</code>" in page.body(tmp_path, tmp_path)


@pytest.mark.parametrize(
    "plan", ["", "[]", '{"values": 3, "deviations": 4}', '{"values": {"a": 1}, "deviations": [2]}']
)
def test_a_plan_that_cannot_be_read_costs_only_the_config(tmp_path: Path, plan: str) -> None:
    case_dir = add_case(tmp_path, "converged_1x1")
    (case_dir / "round1" / "plan.json").write_text(plan, encoding="utf-8")
    assert "Training loss" in of(finish(tmp_path)).said


# -- the whole page ------------------------------------------------------------------------------------------


def test_a_page_alone_asks_nothing_of_a_network_and_links_from_where_it_lies(run: Path, tmp_path: Path) -> None:
    text = page.alone(run, tmp_path / "elsewhere" / "page.html")
    made = Page(text)
    assert made.open == []
    assert not [link for link in made.links if re.match(r"(\w+:)?//", link)]
    assert "@import" not in text
    assert "url(" not in text
    assert all(((tmp_path / "elsewhere") / link).resolve().is_file() for link in made.links if not link.startswith("#"))
    for wanted in ("prefers-color-scheme: dark", "@media print", "uPlot", 'name="viewport"'):
        assert wanted in text


def test_vendored_files_say_their_version_and_licence() -> None:
    folder = Path(pieces.__file__).with_name("vendored")
    version = re.search(r"v(\d+\.\d+\.\d+)", (folder / "uPlot.iife.min.js").read_text()[:100])
    assert version is not None
    assert f"| {version[1]} | MIT" in (folder / "README.md").read_text()
    assert "MIT License" in (folder / "uPlot.LICENSE").read_text()


# -- the rows of tests ---------------------------------------------------------------------------------------


def test_cells_match_their_header_and_link_to_the_case() -> None:
    outcome = recorded("converged_1x2")
    judged = verdicts.speedup([outcome], OneCard(1750.0, "this run"), 2, 0.5, "weak")
    cells = pieces.row_cells([outcome, outcome], judged)
    assert len(cells) == len(pieces.header_cells()) == len(pieces.row_cells([]))
    assert [Page(cell).text for cell in cells] == [
        ["toy:pytorch:CPU:1:2:1"], ["top1 0.924 (>= 0.900)"], ["3,368 images/s"], ["1.92x"],
    ]  # fmt: skip
    assert Page(cells[0]).links == ["#case-toy-pytorch-CPU-1-2-1"]
    assert "".join(pieces.row_cells([recorded("crashed_rank")])).count('"></td>') == 3


# -- the command ---------------------------------------------------------------------------------------------


def test_flagperf_report_writes_the_page_of_one_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "page.html"
    assert main(["report", str(run), "--to", str(to)]) == 0
    assert capsys.readouterr().out == f"{to}\n"
    assert to.read_text() == page.alone(run, to)
    copy = shutil.copytree(run, tmp_path / "runs" / "run1")
    assert main(["report", str(copy)]) == 0
    assert (copy / "report.html").is_file()


def test_flagperf_report_wants_one_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run1", "run2"):
        shutil.copytree(run, tmp_path / name)
    assert main(["report", str(tmp_path)]) == 2
    assert "holds 2 runs" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none")]) == 2
