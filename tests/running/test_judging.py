"""Accepted baselines and expected failures."""

import shutil
from pathlib import Path

import pytest

from pytest_flagperf.commands import main
from pytest_flagperf.expected import Expected, ExpectedInFile
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.comparing import baselines
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import Verdict
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.running import judging
from pytest_flagperf.running.run import check_baseline
from pytest_flagperf.settings import SettingsError, read_settings
from tests.helpers.plugin_packages import Site
from tests.helpers.results_help import edit_json
from tests.helpers.stored_runs import add_case, faster, finish, run_of
from tests.helpers.trees import set_options, tree, write

SOURCE = ExpectedInFile(Expected("*", "efficiency", "one bus"), "flagperf.toml")


def verdict(name: str, *, ok: bool) -> Verdict:
    return Verdict(name, ok, "got", "expected", f"{name} is {'fine' if ok else 'bad'}")


def test_a_failed_case_is_refused_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run1", "missed_target")
    assert main(["accept", str(run), f"--baselines={tmp_path}"]) == 1
    assert capsys.readouterr().out.startswith("not accepted: toy:pytorch:CPU:1:1:1: round 1: top1 reached")
    assert not list(tmp_path.glob("*.json"))


def test_edited_bounds_are_kept_without_new_bounds(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run1")
    path = tmp_path / "toy_pytorch_CPU_1_1.json"
    for option, lower in ([], -0.05), ([], -0.01), (["--new-bounds"], -0.05):
        assert main(["accept", str(run), f"--baselines={tmp_path}", *option]) == 0
        figure = baselines.read(path).metrics["p_core"]
        assert figure.lower == lower
        text = path.read_text()
        path.write_text(text.replace('"lower": -0.05', '"lower": -0.01'))


def test_other_runs_of_the_folder_give_the_variation(tmp_path: Path) -> None:
    for number, factor in enumerate((1.0, 1.1, 0.92, 1.05, 0.95, 1.08)):
        run = run_of(tmp_path / f"run{number}", rounds=faster(factor))
        for path in run.glob("*/round*/outcome.json"):
            edit_json(path, started_ms=1_700_000_000_000 + number)
        finish(run)
    shutil.copytree(tmp_path / "run0", tmp_path / "away" / "run9")
    alone, _ = judging.accept(store.load_run(tmp_path / "away" / "run9"), tmp_path / "a")
    among_others, _ = judging.accept(store.load_run(tmp_path / "run0"), tmp_path / "b")
    rules = [item.baseline.metrics["p_core"].rule for item in (*alone, *among_others)]
    assert rules[0] == "a change counts from 5.0 % on (its bound, noise unknown)"
    assert "(its noise from run to run)" in rules[1]


def test_an_unreadable_baseline_is_not_overwritten(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run1")
    path = tmp_path / "toy_pytorch_CPU_1_1.json"
    path.write_text("{")
    written, refused = judging.accept(store.load_run(run), tmp_path)
    assert not written
    assert "cannot read the previous baseline" in refused[0]
    assert path.read_text() == "{"


def test_a_baseline_of_another_case_is_an_error(tmp_path: Path) -> None:
    written, _ = judging.accept(store.load_run(run_of(tmp_path / "run1")), tmp_path)
    written[0].path.rename(tmp_path / "toy_pytorch_CPU_1_2.json")
    set_options(tmp_path, baselines=str(tmp_path))
    settings = read_settings({}, tmp_path)
    check_baseline(settings, "toy:pytorch:CPU:1:1:1")
    with pytest.raises(Problems, match=r"CPU_1_2\.json: case is 'toy:pytorch:CPU:1:1'; expected 'toy:pytorch:CPU:1:2'"):
        check_baseline(settings, "toy:pytorch:CPU:1:2:5")


def test_a_folder_of_baselines_that_does_not_exist_or_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, problem in (("nowhere", "folder not found; create it"), ("file", "is a file; expected the folder")):
        set_options(tmp_path, baselines=name)
        with pytest.raises(Problems, match=rf"/flagperf\.toml: baselines = '.*{name}': {problem}"):
            check_baseline(read_settings({}, tmp_path), "toy:pytorch:CPU:1:1:1")


def test_of_cases_that_differ_only_in_rounds_the_one_with_most_is_accepted(tmp_path: Path) -> None:
    add_case(tmp_path / "run1", "converged_1x1", faster(1.0))
    add_case(tmp_path / "run1", "converged_1x1", faster(2.0, 2.0))
    written, refused = judging.accept(store.load_run(finish(tmp_path / "run1")), tmp_path)
    assert [item.baseline.metrics["p_core"].rounds for item in written] == [2]
    assert refused == ["toy:pytorch:CPU:1:1:1: toy:pytorch:CPU:1:1:2 of the same run has more rounds"]


def test_only_an_expected_failure_has_the_reason_and_an_unknown_one_is_reported() -> None:
    verdicts = [verdict("efficiency", ok=False), verdict("speedup", ok=False), verdict("finished", ok=True)]
    judged = judging.with_expected(verdicts, [SOURCE], strict=False)
    assert [item.expected_failure for item in judged] == ["one bus", None, None]
    both = [verdict("efficiency", ok=True), verdict("efficiency", ok=False)]
    assert len(judging.with_expected(both, [SOURCE], strict=True)) == 2
    assert len(judging.with_expected([verdict("target", ok=True)], [SOURCE], strict=True)) == 1
    cases = [CaseResult("a:b:c:1:2:1", (), {"test": (verdict("efficiency", ok=True),)})]
    misspelt = ExpectedInFile(Expected("*", "eficiency", "why"), "flagperf.toml")
    assert judging.unknown_verdicts([misspelt, SOURCE], cases) == [
        "warning: flagperf.toml: [[expected]]: unknown verdict 'eficiency'; did you mean efficiency?"
    ]
    assert judging.unknown_verdicts([ExpectedInFile(Expected("*", "learned", "why"), "f")], cases) == []


EXPECTED = '[[expected]]\ncase = "{case}"\nreason = "known"\nverdict = "{verdict}"\n'


@pytest.mark.parametrize(
    ("case", "verdict", "message"),
    [
        ("toy:*", "efficency", "5: [[expected]] 1: verdict = 'efficency': unknown verdict; did you mean efficiency?"),
        ("toy:*", "xyz", "5: [[expected]] 1: verdict = 'xyz': unknown verdict; choose from finished, own_log, "),
        ("toy:*", "lap.power", "5: [[expected]] 1: verdict = 'lap.power': unknown verdict; did you mean lab?"),
        ("toi:*", "target", "3: [[expected]] 1: case = 'toi:*': no suite toi; did you mean toy?"),
        ("toy:paddle:*", "target", "3: [[expected]] 1: case = 'toy:paddle:*': no suite toy:paddle; choose from toy:py"),
        *[(case, "target", "") for case in ("*", "t*:A100:*", "toy:pytorch:*", "toy:pytorch:X9:1:8")],
        *[("*", name, "") for name in ("*", "p_*", "baseline *", "baseline p_core", "lab.power", "lab.*", "*core")],
    ],
)
def test_an_expected_failure_that_can_never_occur_is_an_error(
    site: Site, tmp_path: Path, case: str, verdict: str, message: str
) -> None:
    site.install("@hookimpl\ndef flagperf_verdicts(rounds):\n    return []\n", name="lab")
    catalog = tree(tmp_path)
    file = write(tmp_path, "flagperf.toml", "repeat = 1\n" + EXPECTED.format(case=case, verdict=verdict))
    settings = read_settings({}, tmp_path)
    if not message:
        judging.check_expected(settings, catalog)
        return
    with pytest.raises(SettingsError) as error:
        judging.check_expected(settings, catalog)
    assert str(error.value).startswith(f"{file}:{message}")


@pytest.mark.parametrize("strict", [False, True])
def test_an_expected_failure_that_passes_is_a_verdict(strict: bool) -> None:
    first, second = judging.with_expected([verdict("efficiency", ok=True)], [SOURCE], strict=strict)
    assert (first.name, second.name) == ("efficiency", "expected")
    assert (second.ok, second.warning) == (not strict, not strict)
    assert "expected to fail but passed: efficiency (one bus)" in second.sentence
    assert "flagperf.toml" in second.sentence
