"""``tools.readme``: the generated sections of READMEs, and published results."""

import json
import re
import shutil
from pathlib import Path

import pytest

from pytest_flagperf.commands import main
from pytest_flagperf.results.tables import published
from tests.helpers import trees
from tests.helpers.results_help import edit_json
from tests.helpers.stored_runs import faster, run_of, submission
from tools import markers, run_tool
from tools import readme as tool

Capture = pytest.CaptureFixture[str]
REPO = Path(__file__).resolve().parents[2]
SHAPES = ("1x1", "1x8", "2x8")
CASE = "vendors/acme/toy-pytorch/README.md"
SUITE = "suites/toy/pytorch/README.md"
MARKED = "# Tree\n\n<!-- models: written by tools.readme -->\n<!-- end of models -->\n"


def run_readme(capsys: Capture, *arguments: object, code: int = 0) -> str:
    """Run the tool, which must end with this code; return its output."""
    exit_code = run_tool(tool, [*map(str, arguments)])
    out, err = capsys.readouterr()
    assert exit_code == code, out + err
    return out + err


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A suite, a vendor with configs of three shapes, and READMEs of two languages with empty sections."""
    trees.write_suite(tmp_path)
    trees.write_vendor(tmp_path)
    for shape in SHAPES:
        trees.write_config(tmp_path, "", f"config_X9x{shape}.py")
    trees.write(tmp_path, "README.md", MARKED)
    trees.write(tmp_path, "README.zh.md", MARKED)
    return tmp_path


@pytest.fixture
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def publish(tree: Path, run: Path, name: str = "first") -> Path:
    """Publish a run's results.json, as CONTRIBUTING.md describes."""
    file = tree / "reports" / "published" / name / "results.json"
    file.parent.mkdir(parents=True)
    shutil.copy(run / "SHA256SUMS", file.parent)
    return Path(shutil.copy(run / "results.json", file))


def rows(readme: Path, section: str = "results") -> list[list[str]]:
    name = re.escape(section)
    text = readme.read_text(encoding="utf-8")
    (body,) = re.findall(rf"<!-- {name}: .*? -->\n(.*?)<!-- end of {name} -->", text, re.DOTALL)
    lines = [line for line in body.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    ends = {place for place, line in enumerate(cells) if set(line) == {"---"}}
    return [line for place, line in enumerate(cells) if place not in ends and place + 1 not in ends]


def test_the_readmes_of_this_repository_are_up_to_date(capsys: Capture) -> None:
    run_readme(capsys, REPO, "--check")
    for name in ("docs/support.md", "docs/support.zh.md"):
        assert markers.has_sections((REPO / name).read_text(encoding="utf-8")), name
    for file in REPO.glob("vendors/*/*/config"):
        assert (file.parent / "README.md").is_file()
    for readme in [*REPO.glob("suites/*/README.md"), *REPO.glob("vendors/*/*-*/README.md")]:
        assert "TODO" not in readme.read_text(encoding="utf-8"), readme


def test_another_target_or_a_missing_table_of_models_is_reported(tree: Path, capsys: Capture) -> None:
    file = tree / "docs" / "support.md"
    file.parent.mkdir()
    file.write_text(MARKED)
    missing = "docs/support.md: no section vendors: add the lines '<!-- vendors: written by tools.readme -->'"
    assert missing in run_readme(capsys, tree, code=1)
    file.write_text("\n".join(MARKED.replace("models", name) for name in ("models", "vendors")))
    run_readme(capsys, tree)
    ((model, framework, reference, small, configs),) = rows(file, "models")
    assert (model, framework) == ("[toy](../suites/toy/README.md)", "[pytorch](../suites/toy/pytorch/README.md)")
    assert reference.startswith("top1 ≥ ")
    assert small.startswith("top1 ≥ ")
    assert configs == "[Acme](../vendors/acme/toy-pytorch)"
    assert rows(file, "vendors") == [["Acme `acme`", "X9, A1x2", "pytorch: acme, acl", "–", "your own"]]
    file.write_text(file.read_text().replace("top1 ≥", "top1 ≤"))
    assert "docs/support.md: section models is out of date" in run_readme(capsys, tree, "--check", code=1)


def test_missing_readmes_are_created_and_then_up_to_date(tree: Path, capsys: Capture) -> None:
    out = run_readme(capsys, tree, "--check", code=1)
    assert f"{CASE}: no such file; run: python -m tools.readme" in out
    assert not (tree / CASE).exists()
    run_readme(capsys, tree)
    for name in ("suites/toy/README.md", SUITE, CASE):
        assert markers.has_sections((tree / name).read_text(encoding="utf-8")), name
    assert "5 READMEs are up to date" in run_readme(capsys, tree, "--check")


@pytest.mark.parametrize(
    ("file", "text", "stale"),
    [
        ("vendors/acme/toy-pytorch/config/config_X9x1x1.py", "throughput_only = False\n", f"{CASE}: section config"),
        ("vendors/acme/toy-pytorch/config/config_X9x1x2.py", "", f"{CASE}: section results"),
        ("suites/toy/pytorch/suite.toml", trees.SUITE_TOML.replace("0.75", "0.5"), f"{SUITE}: section case"),
        ("vendors/acme/vendor.toml", trees.VENDOR_TOML.replace("80.5", "81"), f"{CASE}: section environment"),
    ],
)
def test_a_section_is_stale_after_a_change(tree: Path, file: str, text: str, stale: str, capsys: Capture) -> None:
    run_readme(capsys, tree)
    trees.write(tree, file, text)
    before = {readme: readme.read_bytes() for readme in tree.rglob("*.md")}
    assert f"{stale} is out of date; run: python -m tools.readme" in run_readme(capsys, tree, "--check", code=1)
    assert before == {readme: readme.read_bytes() for readme in tree.rglob("*.md")}
    run_readme(capsys, tree)
    run_readme(capsys, tree, "--check")


def test_hand_written_text_is_kept(tree: Path, capsys: Capture) -> None:
    run_readme(capsys, tree)
    text = (tree / CASE).read_text(encoding="utf-8")
    own = text.replace("TODO: what", "Mine: `a|b`, <b>.\n\n  - as it is  ")
    (tree / CASE).write_text(own.replace("| A", "| B"), encoding="utf-8")
    run_readme(capsys, tree)
    assert (tree / CASE).read_text(encoding="utf-8") == own


def test_each_changed_value_needs_its_reason(tree: Path, capsys: Capture) -> None:
    trees.write_config(tree, "width = 128\nthroughput_only = False\n")
    for arguments in ([], ["--check"]):
        out = run_readme(capsys, tree, *arguments, code=1)
        assert f"{CASE}: no reason for the changed value of width: add the line" in out
        assert "throughput_only" not in out
    readme = tree / CASE
    assert "`width`" in readme.read_text(encoding="utf-8")  # in the table, which gives no reason
    readme.write_text(readme.read_text(encoding="utf-8") + "\n- `width`, `ratio`: it is wide.\n", encoding="utf-8")
    out = run_readme(capsys, tree, "--check", code=1)
    assert out == f"{CASE}: no config here changes ratio: remove the reason\n"
    readme.write_text(readme.read_text(encoding="utf-8").replace(", `ratio`", ""), encoding="utf-8")
    run_readme(capsys, tree, "--check")


BEGIN, END = "<!-- a: written by tools.readme -->", "<!-- end of a -->"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([BEGIN, "x", END], None),
        (["text"], f"no section a: add the lines {BEGIN!r} and {END!r}"),
        ([BEGIN, "x"], "line 1: section a has no end"),
        ([BEGIN, BEGIN, END], "line 1: section a has no end"),
        ([BEGIN, END, BEGIN, END], "line 3: section a occurs twice"),
        ([END], "line 1: section a has no beginning"),
        ([BEGIN, END, BEGIN.replace("a:", "b:"), END.replace("a -", "b -")], "line 3: unknown section 'b'; allowed: a"),
    ],
)
def test_broken_markers_are_reported_with_their_line(lines: list[str], problem: str | None) -> None:
    problems = markers.marker_problems("\n".join(lines), {"a": ""})
    assert problems == [] if problem is None else any(problem in text for text in problems), problems


def test_a_readme_with_broken_markers_or_another_encoding_is_not_written(tree: Path, capsys: Capture) -> None:
    (tree / "README.md").write_text(BEGIN.replace("a:", "models:"), encoding="utf-8")
    assert "README.md: line 1: section models has no end" in run_readme(capsys, tree, code=1)
    assert (tree / "README.md").read_text(encoding="utf-8") == BEGIN.replace("a:", "models:")
    (tree / SUITE).write_bytes(b"caf\xe9")
    assert f"{SUITE}: byte 3 is not UTF-8" in run_readme(capsys, tree, code=2)


def test_a_folder_without_suites_and_vendors_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    assert "no suites and no vendors' cases" in run_readme(capsys, tmp_path, code=2)
    assert "no such directory" in run_readme(capsys, tmp_path / "none", code=2)


def test_new_vendor_writes_a_readme_that_readme_fills(tree: Path, capsys: Capture) -> None:
    assert main(["new-vendor", "made", "--hw=M1", "--suite=toy:pytorch", f"--to={tree}"]) == 2  # of another tree
    assert main(["new-vendor", "made", "--hw=M1", "--suite=glm:pytorch", f"--to={tree}"]) == 0
    capsys.readouterr()
    run_readme(capsys, tree, f"--roots={REPO}", code=0)
    readme = tree / "vendors" / "made" / "glm-pytorch" / "README.md"
    assert rows(readme) == [["Made M1", "1x1, 1x8, 2x8", "not measured", *["/"] * 8]]
    assert readme.read_text(encoding="utf-8").startswith("# glm:pytorch on Made\n")


def test_published_results_fill_the_tables(tree: Path, runs: Path, capsys: Capture) -> None:
    stored = submission(runs)
    run_readme(capsys, tree)
    publish(tree, stored[1])
    assert f"{CASE}: section results is out of date" in run_readme(capsys, tree, "--check", code=1)
    run_readme(capsys, tree)
    measured = json.loads((stored[1] / "results.json").read_text())["cases"][0]["metrics"]
    row, missing = rows(tree / CASE)
    assert row[1:3] == ["1x8", "reference scale"]
    assert float(row[7]) == pytest.approx(measured["p_core"]["median"], rel=1e-3)
    assert float(row[8]) == pytest.approx(measured["top1"]["median"], rel=1e-3)
    assert missing[1:3] == ["1x1, 2x8", "not measured"]
    assert "[results.json](../../../reports/published/first/results.json)" in (tree / CASE).read_text(encoding="utf-8")
    assert rows(tree / SUITE)[0][3:] == row[3:]
    assert rows(tree / "README.md", "models")[0][4] == "[Acme (1 of 3 measured)](vendors/acme/toy-pytorch)"
    assert rows(tree / "README.zh.md", "models")[0][4] == "[Acme（已测 1/3）](vendors/acme/toy-pytorch)"
    assert rows(tree / "suites/toy/README.md", "chips")[0][2:] == ["X9: 1x1, 1x8, 2x8", "X9: 1x8"]


def test_the_newest_result_counts(tree: Path, runs: Path) -> None:
    for name, factor, started in (("old", 3.0, 1), ("new", 2.0, 3), ("older", 4.0, 0)):
        run = run_of(runs / name, rounds=faster(factor))
        edit_results(publish(tree, run, name), started_ms=started)
    (one,) = published.load(tree / "reports" / "published")
    assert one.file.parent.name == "new"


@pytest.mark.parametrize(("width", "noted"), [(128, False), (96, True)])
def test_a_config_changed_since_is_noted(tree: Path, runs: Path, capsys: Capture, width: int, noted: bool) -> None:
    trees.write_config(tree, "width = 128\n", "config_X9x1x1.py")
    ran = {"key": "a", "deviations": {"width": [width, 64], "variable A": ["a", "b"]}}
    file = publish(tree, run_of(runs / "run"))
    edit_results(file, vendor="acme", hardware="X9", scale="reference", fingerprint=ran)
    run_readme(capsys, tree, code=1)  # the README gives no reason for the width
    text = (tree / CASE).read_text(encoding="utf-8")
    assert ("the config has changed since: width" in text) == noted


def test_a_result_that_was_changed_after_the_run_is_refused(tree: Path, runs: Path, capsys: Capture) -> None:
    file = publish(tree, run_of(runs / "run"))
    run_readme(capsys, tree)  # the control
    text = file.read_text()
    file.write_text(text.replace('"scale": "small"', '"scale": "reference"'))
    assert f"{file}: changed after the run" in run_readme(capsys, tree, code=2)
    file.write_text(text)
    (file.parent / "SHA256SUMS").unlink()
    assert f"{file}: changed after the run: no digest of it in SHA256SUMS" in run_readme(capsys, tree, code=2)


def edit_results(file: Path, **values: object) -> None:
    body = json.loads(file.read_text())
    for case in body["cases"]:
        for outcome in case["outcomes"]:
            outcome.update(values)
    edit_json(file, cases=body["cases"])


@pytest.mark.parametrize(
    ("replay", "changes", "result", "status"),
    [
        ("converged_1x1", {}, "reference scale", "[Acme (1 of 3 measured)]"),
        ("throughput_only", {"synthetic": True}, "reference scale, synthetic data", "(1 of 3 measured, 1 with syn"),
        ("converged_1x1", {"scale": "small"}, "small scale", "[Acme (small scale measured)]"),
        ("missed_target", {}, "reference scale, failed: target", "[Acme (1 of 3 measured)]"),
        ("crashed_rank", {}, "reference scale, no successful round", "[Acme]"),
    ],
)
def test_the_tables_show_the_kind_of_a_published_result(
    tree: Path, runs: Path, capsys: Capture, replay: str, changes: dict[str, object], result: str, status: str
) -> None:
    made = {"vendor": "acme", "hardware": "X9", "nproc": 1, "scale": "reference"}
    edit_results(publish(tree, run_of(runs / "run", replay)), **{**made, **changes})
    run_readme(capsys, tree)
    assert rows(tree / CASE)[0][2] == result
    assert status in rows(tree / "README.md", "models")[0][4]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"ended_ms": 10**17}, "ended_ms is 100000000000000000; expected milliseconds since 1970"),
        ({"fingerprint": {"deviations": [1]}}, "fingerprint.deviations must map keys to [value, reference]"),
        ({"fingerprint": {"deviations": {"width": 1}}}, "fingerprint.deviations must map keys to [value, reference]"),
    ],
)
def test_impossible_values_of_a_result_are_errors(
    tree: Path, runs: Path, capsys: Capture, values: dict[str, object], problem: str
) -> None:
    edit_results(publish(tree, run_of(runs / "run")), **values)
    assert problem in run_readme(capsys, tree, code=2)
