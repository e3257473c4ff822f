"""The first table of a comparison, its comment in Markdown, implausible improvements, and runs of two commits."""

import re
from pathlib import Path

import pytest

from tests.helpers.command_line import Capture, errors_of, output_of
from tests.helpers.stored_runs import add_case, faster, finish, run_of

CODE = {"suite_code": "s1", "vendor_code": "v1", "driver_code": "d1", "precision": "fp32", "key": "k1"}
HEAD = ["case", "metric", "old", "new", "change", "limit", "verdict"]


def rows_of(out: str) -> list[list[str]]:
    lines = out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.split() == HEAD)
    table = lines[start : lines.index("", start)]
    return [re.split(r" {2,}", line.strip()) for line in table]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.mark.usefixtures("wide")
def test_the_table_has_a_verdict_for_each_case(tmp_path: Path, capsys: Capture) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    add_case(old, "converged_1x1", faster(1.0, 1.01, 0.99))
    add_case(old, "converged_1x2", faster(1.0, 1.01, 0.99))
    add_case(old, "converged_1x1", model="gone")
    add_case(new, "converged_1x1", faster(0.85, 0.84, 0.86))
    add_case(new, "converged_1x2", faster(1.01, 1.02, 1.0))
    add_case(new, "converged_1x1", model="added")
    finish(old)
    finish(new)
    head, *rows = rows_of(output_of(capsys, "compare", old, new, "--common", code=1))
    assert head == HEAD
    by_case = {row[0]: row for row in rows}
    worse = by_case["toy:pytorch:CPU:1:1:3"]
    assert worse[1:5] == ["p_core", "1,684 images/s", "1,432 images/s", "-15.0 %"]
    assert worse[-1] == "worse"
    assert by_case["toy:pytorch:CPU:1:2:3"][-1] == "unchanged"
    assert by_case["gone:pytorch:CPU:1:1:1"][-1] == "left out"
    *_, gone, _ = rows_of(output_of(capsys, "compare", old, new, code=1))
    assert (gone[0], gone[-1]) == ("gone:pytorch:CPU:1:1:1", "missing")
    assert by_case["added:pytorch:CPU:1:1:1"][-1] == "new"


@pytest.mark.parametrize("columns", [80, 60])
def test_on_a_narrow_terminal_a_case_has_two_lines(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "a_model_with_a_very_long_name"
    old, new = run_of(tmp_path / "old", model=name), run_of(tmp_path / "new", model=name)
    lines = output_of(capsys, "compare", old, new).splitlines()
    table = lines[lines.index("case") : lines.index("", lines.index("case"))]
    assert max(map(len, table)) <= columns
    assert table[1].split() == ["metric", "old", "new", "change", "limit", "verdict"]
    assert table[2] == "a_model_with_a_very_long_name:pytorch:CPU:1:1:1"
    assert table[3].split()[0] == "p_core"


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("replay", "verdict", "reason"),
    [
        ("crashed_rank", "failed", "1 of 1 round failed, 0 of 1 did before: "),
        ("missed_target", "target missed", "0 of 1 round reached the target, 1 of 1 did before"),
    ],
)
def test_a_case_without_a_worse_metric_says_why(
    tmp_path: Path, capsys: Capture, replay: str, verdict: str, reason: str
) -> None:
    old, new = (run_of(tmp_path / one, one, nproc=1, fingerprint=CODE) for one in ("converged_1x1", replay))
    out = output_of(capsys, "compare", old, new, code=1)
    assert rows_of(out)[1][-1] == verdict
    assert reason in " ".join(out.split())


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(("factor", "verdict"), [(4.67, "not comparable: check the run"), (1.5, "better")])
def test_an_implausible_improvement_is_labelled(tmp_path: Path, capsys: Capture, factor: float, verdict: str) -> None:
    old = run_of(tmp_path / "old", fingerprint=CODE)
    new = run_of(tmp_path / "new", rounds=faster(factor), fingerprint=CODE)
    page, comment = tmp_path / "page.html", tmp_path / "comment.md"
    out = output_of(capsys, "compare", old, new, "--html", page, "--markdown", comment, code=2 if factor > 2 else 0)
    assert rows_of(out)[1][-1] == verdict
    warned = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert len(warned) == (1 if factor > 2 else 0)
    for text in (page.read_text(), comment.read_text()):
        assert ("check the run" in text) == (factor > 2)
    if warned:
        assert "p_core went from 1,684 images/s to 7,865 images/s, +367.0 % (also p_whole, p_train)" in warned[-1]


@pytest.mark.usefixtures("wide")
def test_runs_of_two_commits_are_compared_and_the_changed_code_is_noted(tmp_path: Path, capsys: Capture) -> None:
    values = [{"eval_samples": {"value": of, "file": "_base.py", "line": 3, "layer": "suite"}} for of in (200, 340)]
    old = run_of(tmp_path / "old", rounds=faster(1.0, 1.01, 0.99), fingerprint=CODE, values=values[0])
    changed = {**CODE, "suite_code": "s2", "driver_code": "d2", "key": "k2"}
    new = run_of(tmp_path / "new", rounds=faster(0.85, 0.84, 0.86), fingerprint=changed, values=values[1])
    out = output_of(capsys, "compare", old, new, code=1)
    assert "  note: suite_code: s1 -> s2" in out
    assert "note: toy:pytorch:CPU:1:1:3: eval_samples: 200 -> 340" in out, "the key that the hash does not name"
    assert "  note: driver_code: d1 -> d2" in out
    assert sum(line.startswith("regression: ") for line in out.splitlines()) == 3


def test_the_comment_and_the_page_have_the_verdict_and_the_figures(tmp_path: Path, capsys: Capture) -> None:
    old = run_of(tmp_path / "old", rounds=faster(1.0, 1.01, 0.99), model="toy", fingerprint=CODE)
    new = run_of(tmp_path / "new", rounds=faster(0.85, 0.84, 0.86), model="toy", fingerprint=CODE)
    comment, file = tmp_path / "made" / "comment.md", tmp_path / "page" / "compared.html"
    out = output_of(capsys, "compare", old, new, "--markdown", comment, "--html", file, code=1)
    assert "note: wrote the comment" in out
    assert f"note: wrote the page {file}" in out
    text, page = comment.read_text(), file.read_text()
    first, title, _, head, rule, row, *rest = text.splitlines()
    assert first == "<!-- flagperf compare -->"
    assert title == "### ❌ flagperf: 1 of 1 case regressed: old → new"
    assert head == "|  | case | metric | old | new | change | limit | verdict |"
    assert row.startswith("| ❌ | <code>toy:pytorch:CPU:1:1:3</code> | p_core | 1,684 images/s | 1,432 images/s | -15")
    assert row.endswith("| **worse** |")
    assert len({line.count("|") for line in (head, rule, row)}) == 1
    assert "15.0 % lower, a change counts from 5.0 % on" in "\n".join(rest)
    assert text.count("<details>") == text.count("</details>") == 1
    assert page.count("<strong>worse</strong>") == 3
    for words in (
        "<p>1 of 1 case regressed</p>", "1,684 images/s", "1,432 images/s", "-15.0 %",
        "measured on the 3 and 3 rounds alone",
    ):  # fmt: skip
        assert words in page
    assert set(re.findall(r"<figcaption>(Training loss|top1 and its target|Throughput, all cards)", page)) == {
        "Training loss", "top1 and its target", "Throughput, all cards",
    }  # fmt: skip
    assert "https://" not in page.split("</style>", 1)[1].split("<script>", 1)[0]
    curves = re.findall(r'<svg class="small apart".*?</svg>', page)
    assert [curve.count("<polyline") for curve in curves] == [2, 2], "of both runs: of the metric and the throughput"
    assert page.count('<div class="stacked">') == 2, "where the time of each run went"


def test_the_comment_has_the_reason_if_runs_are_not_compared(tmp_path: Path, capsys: Capture) -> None:
    old = run_of(tmp_path / "old", fingerprint=CODE)
    new = run_of(tmp_path / "new", fingerprint={**CODE, "precision": "bf16", "key": "k2"})
    errors_of(capsys, "compare", old, new, "--markdown", tmp_path / "comment.md")
    lines = (tmp_path / "comment.md").read_text().splitlines()
    assert lines[:2] == ["<!-- flagperf compare -->", "### ❔ flagperf: not compared: old → new"]
    assert "- toy:pytorch:CPU:1:1:1: precision: fp32 -&gt; bf16" in lines


def test_a_comment_of_many_cases_is_truncated_at_a_block(tmp_path: Path, capsys: Capture) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for number in range(60):
        for run in (old, new):
            add_case(run, "converged_1x1", model=f"model{number}", fingerprint=CODE)
    output_of(capsys, "compare", finish(old), finish(new), "--markdown", tmp_path / "comment.md")
    text = (tmp_path / "comment.md").read_text()
    assert len(text.encode()) <= 65_000
    assert text.count("<details>") == text.count("</details>")
    assert sum(line.startswith("|  | <code>model") for line in text.splitlines()) == 60
