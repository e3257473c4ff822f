"""The page of a run: the headline, the overview, the sections, and the escaping of texts."""

import html.parser
import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.addresses import HIDDEN
from flagperf_driver.node.sampling import devices
from pytest_flagperf.kinds.training import verdicts as training_verdicts
from pytest_flagperf.report.case_cell import case_cell
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.store import RunInfo
from pytest_flagperf.results.verdicts import OneCard, Verdict, VerdictKind
from pytest_flagperf.stored.round_dir import RoundFault
from pytest_flagperf_page import html as pieces
from pytest_flagperf_page import page
from tests.helpers.command_line import Capture, errors_of, output_of
from tests.helpers.results_help import NAMES, edit_json, recorded, with_metric
from tests.helpers.stored_runs import INFO, add_case, faster, finish

HOSTILE = "</pre></script><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;<!--"


class ParsedPage(html.parser.HTMLParser):
    """The elements and texts of a page; every element must be closed."""

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
        if tag not in {"br", "img", "meta", "link", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.data if self.open and self.open[-1] in {"script", "style"} else self.text).append(data)

    @property
    def content(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def of(run_dir: Path, to: Path | None = None) -> ParsedPage:
    parsed = ParsedPage(page.body(run_dir, to or run_dir))
    assert parsed.open == []
    return parsed


def save_verdicts(case_dir: Path, *recorded: Verdict) -> None:
    store.save_verdicts(case_dir, "test_more", recorded)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with several models, machines and shapes, some of them failed."""
    run_dir = tmp_path_factory.mktemp("run")
    same: dict[str, Any] = {"framework": "pytorch", "scale": "reference"}
    add_case(run_dir, "converged_1x1", faster(1.0, 1.02, 0.98), model="glm", vendor="acme", hardware="A1", **same)
    case_dir = add_case(run_dir, "converged_1x2", model="glm", vendor="acme", hardware="A1", **same)
    store.save_one_card(case_dir, OneCard(1750.0, "this run"))
    add_case(run_dir, "converged_1x1", faster(0.5), model="glm", vendor="borealis", hardware="B2", **same)
    add_case(run_dir, "crashed_rank", model="bert", vendor="acme", hardware="A1", **same)
    return finish(run_dir, replace(INFO, not_run=("resnet50:pytorch:A1:1:1:1: no config for it",)))


def test_the_headline_has_the_states_and_the_reasons(run: Path) -> None:
    parsed = of(run)
    first = parsed.content[: parsed.content.index("Overview")]
    assert first.startswith("1 of 4 cases failed , 3 passed , 1 not run; glm on 2 cards is 1.92 times as fast as on")
    assert "bert:pytorch:A1:1:2:1 : round 1: rank 1 on localhost" in first
    assert "read the last lines of that rank's log" in first, "what to do"
    assert "not run: resnet50:pytorch:A1:1:1:1: no config for it" in first
    for expected in (
        "acme A1, up to 1 host x 2 devices; borealis B2, up to 1 host x 1 device; 2023-11-14",
        "hardware acme A1 borealis B2",
        "2023-11-14 22:13:20 UTC, took 1 min 40 s",
    ):
        assert expected in first
    assert "#case-bert-pytorch-A1-1-2-1" in parsed.links


def test_an_expected_failure_is_listed_with_its_reason_and_hides_no_other(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x1")
    parsed = of(finish(tmp_path))
    assert parsed.content.startswith("1 of 1 case converged")
    assert "failed" not in parsed.kinds
    expected = Verdict("efficiency", False, "40 %", "at least 55 %", "too slow together", "the switch is old")
    save_verdicts(case_dir, expected)
    parsed = of(finish(tmp_path))
    assert parsed.content.startswith("1 of 1 case failed as expected")
    assert "too slow together (expected failure: the switch is old)" in parsed.content
    assert "failed-as-expected" in parsed.kinds
    assert "failed" not in parsed.kinds
    save_verdicts(case_dir, expected, Verdict("target", False, "0.1", "0.9", "it did not learn"))
    parsed = of(finish(tmp_path))
    assert parsed.content.startswith("1 of 1 case failed")
    assert "target 0.1, expected 0.9" in parsed.content[: parsed.content.index("Overview")]
    assert parsed.content.count("it did not learn") == 1


def test_the_number_of_compared_baselines_is_shown(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x1")
    assert "baseline" not in of(finish(tmp_path)).content
    same = Verdict("baseline p_core", True, "99", "at least 95", "as good", kind=VerdictKind.BASELINE, change=-0.01)
    save_verdicts(case_dir, same)
    text = of(finish(tmp_path)).content
    assert text.startswith("1 of 1 case converged ; 1 compared with accepted baselines, none worse")
    assert "-1.0 % not worse, baseline" in text
    slower = replace(same, ok=False, got="90", expected="100", sentence="slower than the baseline", change=-0.1)
    save_verdicts(case_dir, slower)
    text = of(finish(tmp_path)).content
    assert text.startswith("1 of 1 case regressed ; 1 compared with accepted baselines, 1 worse")
    assert "-10.0 % worse, baseline" in text
    assert "flagperf accept" in text, "what to do"


def test_an_interrupted_run_and_a_run_without_results_have_a_page(tmp_path: Path) -> None:
    add_case(tmp_path / "broken", "converged_1x1")
    assert "1 of 1 case converged" in of(tmp_path / "broken").content
    (tmp_path / "empty").mkdir()
    assert "No results" in of(tmp_path / "empty").content


def test_the_overview_has_a_row_for_each_case(run: Path) -> None:
    text = page.body(run, run)
    table = ParsedPage(
        text[text.index('<table id="flagperf-cases">') : text.index("</table>", text.index("flagperf-cases")) + 8]
    )
    assert table.tags.count("tr") == 1 + 4
    for expected in (
        "3 rounds", "MFU", "speed-up", "e2e", "0.924 (>= 0.900)", "images/s ± 2.0 %", "1.92x", "96.2 % of 2",
        "0 of 1 round finished", "evaluations",
    ):  # fmt: skip
        assert expected in table.content, expected
    assert table.tags.count("svg") == 2 * 3, "two curves of each case but the crashed one"
    assert table.content.index("bert:") < table.content.index("glm:"), "failures first"
    assert "change" not in table.content, "without a baseline or an earlier run"


def test_every_anchor_exists_and_machines_are_compared(run: Path) -> None:
    parsed = of(run)
    inside = {link.removeprefix("#") for link in parsed.links if link.startswith("#")}
    assert inside <= set(parsed.ids)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert len([name for name in inside if name.startswith("case-")]) == 4
    comparison = parsed.content[parsed.content.index("Hardware comparison") :]
    assert comparison.index("acme A1") < comparison.index("borealis B2")
    assert "50 %" in comparison[: comparison.index("Cases")]


def test_cases_are_sorted_by_cards_and_the_case_with_most_rounds_is_in_the_scaling_chart(tmp_path: Path) -> None:
    for name in ("1x1", "1x1", "1x2"):
        rounds = faster(2.0) if not any(tmp_path.glob("*")) else faster(1.0, 1.0)
        add_case(tmp_path, f"converged_{name}", rounds)
    parsed = of(finish(tmp_path))
    cases = [name for name in parsed.ids if name.startswith("case-")]
    assert cases == [f"case-toy-pytorch-CPU-1-{rest}" for rest in ("1-1", "1-2", "2-2")]
    assert "Scaling" not in parsed.content, "the overview has the two throughputs of one machine"
    for name in ("1x1", "1x2"):
        add_case(tmp_path, f"converged_{name}", hardware="B2")
    (scaling,) = (json.loads(text) for text in of(finish(tmp_path)).data if "ideal" in text)
    assert [line[2] for line in scaling["charts"][0]["lines"]] == [[1, 2]] * 3


def test_every_recorded_round_gives_valid_html_and_scales_are_not_compared(tmp_path: Path) -> None:
    add_case(tmp_path, "converged_1x1", vendor="acme", hardware="A1", scale="small")
    add_case(tmp_path, "converged_1x1", vendor="borealis", hardware="B2", scale="reference")
    assert "Hardware comparison" not in of(finish(tmp_path)).content
    for name in NAMES:
        add_case(tmp_path / name, name)
        parsed = of(finish(tmp_path / name), tmp_path)
        logs = [link for link in parsed.links if link.endswith(".log")]
        assert len(logs) == len(recorded(name).logs), name
        assert all((tmp_path / link).is_file() for link in logs), name


def test_a_section_has_charts_figures_over_rounds_config_and_environment(tmp_path: Path) -> None:
    add_case(tmp_path, "converged_1x1", faster(1.0, 1.0, 1.0, 1.5))
    text = of(finish(tmp_path)).content
    for expected in (
        "Training loss", "and its target", "Throughput", "95 % confidence interval of the mean",
        "coefficient of variation",
        "round 4", "(outlier)",
        "host clock over 195 steps", "Config: 1 value differs from the suite's",
        "vendors/cpu/toy-pytorch/config/config_CPUx1x1.py:1",
        "pytorch 2.9.1", "seed 45",
    ):  # fmt: skip
        assert expected in text, expected


def test_warnings_invalid_rounds_and_the_machine_are_shown(tmp_path: Path) -> None:
    good = partial(replace, machine={"h1": {"cpu": "a fast one", "cards": ["x", "y"]}, "kernel": "6.1"})
    warning = ValidityWarning("throttled", "device 0 was throttled")
    bad = partial(good, validity_warnings=(warning,), warnings=("a rank was slow",))
    add_case(tmp_path, "converged_1x1", [bad, good])
    add_case(tmp_path, "converged_1x1", model="good")
    text = of(finish(tmp_path)).content
    for expected in (
        "round 1: device 0 was throttled", "round 1: a rank was slow", "h1, cpu a fast one", "x, y", "kernel 6.1",
        "2 warnings in 1 case", "invalid: round 1 (see the warnings)", "2 rounds, 1 invalid",
    ):  # fmt: skip
        assert expected in text, expected
    assert text.count("1 invalid") == 1


def test_throttled_clocks_have_a_line_for_each_reason_except_idle(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x2")
    (folder,) = {path.parent for path in (case_dir / "round1").glob("*/rank0.out.log")}
    lines = [",".join(devices.COLUMNS)]
    for second in range(4):
        for device, reason in enumerate(["sw_power_cap", "sw_power_cap" if second else "none", "idle"]):
            lines.append(f"{1_700_000_000 + second},{device},50,300,1024,4096,80,1410,1593,{reason},")
    (folder / "devices.series.csv").write_text("\n".join(lines) + "\n")
    text = of(finish(tmp_path)).content
    assert text.count("clocks throttled by") == 1
    assert f"{folder.name}, devices 0, 1: clocks throttled by sw_power_cap for 75.0 % to 100.0 % of the time" in text


def test_the_time_and_the_memory_of_a_round_are_bars_of_their_parts(tmp_path: Path) -> None:
    def change(outcome: Outcome) -> Outcome:
        figures = {"compile_time": 3.0, "e2e_time": 22.0, "input_wait_share": 0.25, "peak_memory": 3 * 2**30}
        for name, value in figures.items():
            outcome = with_metric(outcome, name, value)
        phases = (Phase("init", 0, 4), Phase("warm-up", 4, 6), Phase("train", 6, 20), Phase("evaluate", 8, 12))
        return replace(outcome, phases=phases)

    add_case(tmp_path, "converged_1x1", [change], memory={"weights": 2**30, "activations": 2**30})
    text = of(finish(tmp_path)).content
    parts = "start 4 s (18.2 %) compile 3 s (13.6 %) train 6 s (27.3 %) evaluate 4 s (18.2 %) wait for input 3 s"
    assert f"Time round 1: 22 s {parts} (13.6 %) end 2 s" in text
    assert "Memory of a rank estimate, measured peak 3 GiB: 2 GiB weights 1 GiB (50.0 %) activations 1 GiB" in text
    assert "evaluations 25.0 % of the time" in text, "in the overview"


def test_facts_that_differ_between_rounds_are_listed_for_each(tmp_path: Path) -> None:
    def other(outcome: Outcome) -> Outcome:
        return replace(outcome, environment={**outcome.environment, "device": "another"})

    add_case(tmp_path, "converged_1x1", [*faster(1.0), other])
    text = of(finish(tmp_path)).content
    assert "round 1: a processor; round 2: another" in text
    assert "round 1: pytorch" not in text


def test_texts_of_logs_and_configs_do_not_become_markup(tmp_path: Path) -> None:
    case_dir = add_case(tmp_path, "converged_1x1")
    metric = {"name": HOSTILE, "direction": "higher", "unit": HOSTILE, "target": 0.9}
    value = {"value": HOSTILE, "file": HOSTILE, "line": 3, "layer": HOSTILE}
    edit_json(
        case_dir / "round1" / "plan.json",
        metric=metric, sample_unit=HOSTILE, scale=HOSTILE, values={HOSTILE: value},
        deviations=[{"key": HOSTILE, "reference": HOSTILE}], vendor=HOSTILE,
    )  # fmt: skip
    hostile = replace(
        measure(case_dir / "round1"), case=HOSTILE, model=HOSTILE, hardware=HOSTILE,
        failures=(RoundFault("crash", HOSTILE, 1, HOSTILE, (HOSTILE,)),), environment={HOSTILE: HOSTILE},
        machine={HOSTILE: [HOSTILE]}, fingerprint={HOSTILE: HOSTILE},
        validity_warnings=(ValidityWarning(HOSTILE, HOSTILE),), warnings=(HOSTILE, "half a character: \ud800"),
        logs=(f"{HOSTILE}/rank0.out.log",), stop_reason=HOSTILE, phases=(Phase(HOSTILE, 0.0, 1.0),),
    )  # fmt: skip
    store.save_outcome(case_dir / "round1", hostile)
    save_verdicts(
        case_dir, Verdict(HOSTILE, False, HOSTILE, HOSTILE, HOSTILE, HOSTILE), *training_verdicts.converges(hostile)
    )
    store.write_run(tmp_path, RunInfo((HOSTILE,), {HOSTILE: HOSTILE}, not_run=(HOSTILE,)), ())
    text = page.body(tmp_path, tmp_path)
    parsed = ParsedPage(text)
    assert parsed.open == []
    assert "img" not in parsed.tags
    assert text.count("<script") == text.count("</script>") == text.count('<script type="application/json">')
    assert "<!--" not in text
    assert "alert(" not in " ".join(data for data in parsed.data if not data.startswith("{"))
    for data in parsed.data:
        json.loads(data)
    assert "img" not in ParsedPage(case_cell(HOSTILE)).tags


def test_the_command_can_be_copied(tmp_path: Path) -> None:
    store.write_run(tmp_path, RunInfo(("suites", "-k", "glm and converges"), {}), ())
    body = page.body(tmp_path, tmp_path)
    assert "<code>pytest suites -k &#x27;glm and converges&#x27;</code><button" in body
    assert "data-copy" in body
    store.write_run(tmp_path, RunInfo(("suites", f"--pip-source={HIDDEN}"), {}), ())
    assert f"replace {HIDDEN} by the hidden value" in page.body(tmp_path, tmp_path)


def test_a_standalone_page_needs_no_network_and_has_relative_links(run: Path, tmp_path: Path) -> None:
    text = page.standalone(run, tmp_path / "elsewhere" / "page.html")
    parsed = ParsedPage(text)
    assert parsed.open == []
    assert not [link for link in parsed.links if re.match(r"(\w+:)?//", link)]
    assert "@import" not in text
    assert "url(" not in text
    links = [link for link in parsed.links if not link.startswith("#")]
    assert all((tmp_path / "elsewhere" / link).resolve().is_file() for link in links)
    for expected in ("prefers-color-scheme: dark", "@media print", "uPlot", 'name="viewport"'):
        assert expected in text


def test_vendored_files_have_their_version_and_licence() -> None:
    folder = Path(pieces.__file__).with_name("vendored")
    version = re.search(r"v(\d+\.\d+\.\d+)", (folder / "uPlot.iife.min.js").read_text()[:100])
    assert version is not None
    assert f"| {version[1]} | MIT" in (folder / "README.md").read_text()
    assert "MIT License" in (folder / "uPlot.LICENSE").read_text()


def test_the_command_writes_the_page_of_one_run(run: Path, tmp_path: Path, capsys: Capture) -> None:
    to = tmp_path / "page.html"
    assert output_of(capsys, "report", run, "--to", to) == f"{to}\n"
    assert to.read_text() == page.standalone(run, to)
    for name in ("run1", "run2"):
        shutil.copytree(run, tmp_path / "runs" / name)
    output_of(capsys, "report", tmp_path / "runs" / "run1")
    assert (tmp_path / "runs" / "run1" / "report.html").is_file()
    assert "contains 2 runs" in errors_of(capsys, "report", tmp_path / "runs")[0]
