"""flagperf compare over stored runs: tables, the noise that changes are judged by, comment, page, and exit code."""

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_flagperf.results.comparing import baselines
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored.round_dir import RoundFault
from pytest_flagperf_compare import comment as comment_module
from pytest_flagperf_compare import page as page_module
from pytest_flagperf_compare.comparison import CaseRuns, match
from tests.helpers import many_cases
from tests.helpers.command_line import Capture, errors_of, flagperf, output_of
from tests.helpers.results_help import recorded, with_metric
from tests.helpers.stored_runs import INFO, Change, add_case, dated, faster, finish, history, run_of
from tests.results.comparing.test_baselines import ACCEPTED, case_of, p_core, rounds

SAME = {"suite_code": "s1", "driver_code": "d1"}


def compared(tmp_path: Path, capsys: Capture, old: Path, new: Path, code: int = 0) -> tuple[str, str, str]:
    """Compare two runs; return the output as one line, the comment and the page."""
    comment, page = tmp_path / "comment.md", tmp_path / "page.html"
    out = output_of(capsys, "compare", old, new, "--markdown", comment, "--html", page, code=code)
    return " ".join(out.split()), comment.read_text(), page.read_text()


def test_a_regression_beyond_the_threshold_is_exit_code_1(tmp_path: Path, capsys: Capture) -> None:
    old = run_of(tmp_path / "old", rounds=faster(1.0, 1.01, 0.99))
    new = run_of(tmp_path / "new", rounds=faster(0.92, 0.91, 0.93))
    out = output_of(capsys, "compare", old, new, code=1)
    regressions = [line for line in out.splitlines() if line.startswith("regression: ")]
    assert [line.split(": ")[3].split()[0] for line in regressions] == ["p_whole", "p_train", "p_core"]
    assert "8.0 % lower, a change counts from 5.0 % on (the threshold); noise goes this far once in" in regressions[2]
    assert "no regression" in output_of(capsys, "compare", old, new, "--threshold", "10%")
    assert "better" in output_of(capsys, "compare", new, old)
    assert "no regression" in output_of(capsys, "compare", old, new, "--metric", "e2e_time")
    slow = run_of(tmp_path / "slow", rounds=[lambda one: with_metric(one, "e2e_time", 15.0)])
    assert "e2e_time went from" in output_of(capsys, "compare", old, slow, "--metric=e2e_time", code=1)


def invalid(change: Change) -> Change:
    warning = ValidityWarning("busy", "localhost: a rank waited for a core in 49 % of the training")
    return lambda outcome: replace(change(outcome), validity_warnings=(warning,))


def test_an_invalid_round_decides_nothing_and_is_named(tmp_path: Path, capsys: Capture) -> None:
    old = run_of(tmp_path / "old", rounds=faster(1.0, 1.01, 0.99))
    good, slow = faster(1.0), faster(0.46, 0.46)
    new = run_of(tmp_path / "new", rounds=[*good, *map(invalid, slow)])
    out, *written = compared(tmp_path, capsys, old, new)
    assert "toy:pytorch:CPU:1:1:3 (valid rounds: 3 -> 1)" in out
    for text in (out, *written):
        assert "new: round 2 is invalid and decides nothing: localhost: a rank waited for a core in 49 %" in text
        assert "round 1 is invalid" not in text
    valid = run_of(tmp_path / "valid", rounds=slow)
    assert "p_core went from" in output_of(capsys, "compare", old, valid, code=1)


@pytest.mark.parametrize("side", ["old", "new"])
def test_a_case_without_a_valid_round_is_not_judged(tmp_path: Path, capsys: Capture, side: str) -> None:
    for name in ("old", "new"):
        slow = faster(0.46, 0.46)
        add_case(tmp_path / name, "converged_1x2", [*map(invalid, slow)] if name == side else slow)
    old, new = (finish(tmp_path / name) for name in ("old", "new"))
    out, *written = compared(tmp_path, capsys, old, new, code=2)
    assert out.endswith(" no case was judged")
    assert f"warning: toy:pytorch:CPU:1:2:2: not judged: no valid round in {side}" in out
    for text in written:
        assert f"{side}: round 2 is invalid and decides nothing: localhost: a rank waited" in text
        assert "o case was judged" in text
        assert "not judged" in text
        assert "no regression" not in text.lower()
    for run in (old, new):
        add_case(run, "converged_1x1", faster(1.0))
        finish(run)
    assert output_of(capsys, "compare", old, new, code=2).endswith("; 1 case not judged\n")


def test_a_change_within_the_noise_is_no_regression(tmp_path: Path, capsys: Capture) -> None:
    """8 % slower, of rounds that differ by 10 % themselves."""
    old = run_of(tmp_path / "old", rounds=faster(0.9, 1.0, 1.1))
    new = run_of(tmp_path / "new", rounds=faster(0.82, 0.92, 1.02))
    out = output_of(capsys, "compare", old, new)
    assert "no regression; a change below 36.7 % cannot be seen (p_train of" in out
    assert max(map(len, out.splitlines()[1:])) <= 80
    worse = run_of(tmp_path / "worse", rounds=faster(0.44, 0.5, 0.56))
    assert "(its noise of the rounds alone)" in output_of(capsys, "compare", old, worse, code=1)


def test_runs_like_the_old_one_tell_the_noise_from_run_to_run(tmp_path: Path, capsys: Capture) -> None:
    """Rounds that agree in runs that do not: 8 % lower is nothing, 30 % is. Runs that are unlike do not count."""
    reports = tmp_path / "reports"
    for number, factor in enumerate((1.0, 1.06, 0.95, 1.04, 0.97, 1.05, 0.94)):
        run_of(reports / f"run{number}", rounds=dated(number, factor, factor * 1.001), fingerprint={"key": "k"})
    run_of(reports / "run7", rounds=dated(7, 5.0, 0.1), fingerprint={"key": "other"})
    new = run_of(reports / "run8", rounds=dated(8, 0.92, 0.921), fingerprint={"key": "k"})
    out = output_of(capsys, "compare", reports / "run0", new)
    assert "noise: chance exceeds it once in 100 runs; measured on 7 runs like the old one" in out
    slow = run_of(tmp_path / "slow", rounds=dated(9, 0.6, 0.6), fingerprint={"key": "k"})
    assert "(its noise from run to run); noise goes" in output_of(capsys, "compare", reports / "run0", slow, code=1)
    moved = shutil.copytree(reports / "run0", tmp_path / "moved" / "run0")
    out = output_of(capsys, "compare", moved, new, code=1)
    assert "on the 2 and 2 rounds alone" in " ".join(out.split())


def test_unlike_fingerprints_are_named_field_by_field_and_refused(tmp_path: Path, capsys: Capture) -> None:
    old = run_of(tmp_path / "old", fingerprint={**SAME, "precision": "fp32", "key": "a"})
    new = run_of(tmp_path / "new", fingerprint={**SAME, "precision": "bf16", "key": "b"})
    lines = errors_of(capsys, "compare", old, new, "--markdown", tmp_path / "comment.md")
    assert lines[0] == "toy:pytorch:CPU:1:1:1: precision: fp32 -> bf16"
    assert "--ignore-differences" in lines[1]
    assert len(lines) == 2
    comment = (tmp_path / "comment.md").read_text().splitlines()
    assert comment[:2] == ["<!-- flagperf compare -->", "### ❔ flagperf: not compared: old → new"]
    assert "- toy:pytorch:CPU:1:1:1: precision: fp32 -&gt; bf16" in comment
    out = output_of(capsys, "compare", old, new, "--ignore-differences")
    assert "different: precision: fp32 -> bf16" in out
    assert out.endswith("), noise unknown\n")


def test_other_hardware_is_compared_only_when_asked_and_may_be_several_times_as_fast(
    tmp_path: Path, capsys: Capture
) -> None:
    old, other = run_of(tmp_path / "old"), {"key": "x", "hardware": "X9"}
    new = run_of(tmp_path / "new", rounds=faster(5.0), hardware="X9", vendor="acme<b>", fingerprint=other)
    assert "no case in common" in errors_of(capsys, "compare", old, new)[0]
    out = output_of(capsys, "compare", old, new, "--ignore-differences", "--html", tmp_path / "compared.html")
    assert "toy:pytorch:CPU:1:1:1 -> toy:pytorch:X9:1:1:1" in out
    assert "vendor: cpu -> acme<b>" in out
    assert "check the run" not in out
    page = (tmp_path / "compared.html").read_text()
    assert "<p>X9 compared with CPU: 5.00x the p_core" in page
    assert "regress" not in output_of(capsys, "compare", new, old, "--ignore-differences")
    assert 'class="warning">different: ' in page
    assert "vendor: cpu -&gt; acme&lt;b&gt;" in page
    assert "acme<b>" not in page


def test_on_other_hardware_a_variant_is_compared_with_the_same_variant() -> None:
    def swept(hardware: str) -> list[CaseResult]:
        names = [f"toy:pytorch:{hardware}:1:1:1{variant}" for variant in ("", ":seed-1", ":seed-2")]
        return [CaseResult(name, (replace(recorded("converged_1x1"), case=name, hardware=hardware),)) for name in names]

    matched = match(("old", "new"), swept("CPU"), swept("X9")[1:], across_hardware=True)
    pairs = {row.old.case: row.new.case for row in matched.rows}
    assert pairs == {f"toy:pytorch:CPU:1:1:1:seed-{seed}": f"toy:pytorch:X9:1:1:1:seed-{seed}" for seed in (1, 2)}
    assert (matched.lost, matched.fresh) == (("toy:pytorch:CPU:1:1:1",), ())


def test_a_case_that_is_gone_is_a_regression(tmp_path: Path, capsys: Capture) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for name in ("converged_1x1", "converged_1x2"):
        add_case(old, name)
    add_case(new, "converged_1x1")
    finish(old)
    finish(new)
    out = " ".join(output_of(capsys, "compare", old, new, code=1).split())
    missing = f"{new} does not have 1 case of the old run: toy:pytorch:CPU:1:2:1"
    assert f"missing: {missing}; --common compares without them" in out
    assert "no regression; a change below" in out, "what is missing did not get worse"
    assert out.endswith("; 1 case missing")
    out = " ".join(output_of(capsys, "compare", old, new, "--common").split())
    assert f"note: {missing}" in out
    assert "is only in" in output_of(capsys, "compare", new, old)


def test_one_failed_round_is_a_regression_with_its_reason(tmp_path: Path, capsys: Capture) -> None:
    """The other round of the new run is invalid: nothing else is judged."""
    fault = RoundFault("killed", "localhost", 0, "rank 0 on localhost was killed by SIGKILL")
    old = run_of(tmp_path / "old", rounds=faster(1.0, 1.01))
    good, killed = faster(1.0, 1.0)
    new = run_of(
        tmp_path / "new",
        rounds=[invalid(good), lambda one: replace(killed(one), state="failed", failures=(fault,), metrics=())],
    )
    for text in compared(tmp_path, capsys, old, new, code=1):
        assert f"1 of 2 rounds failed, 0 of 2 did before: {fault.sentence}" in text
        assert f"new: round 2 failed: {fault.sentence}" in text
        assert "1 of 1 case regressed" in text
    assert output_of(capsys, "compare", new, new, code=2), "as many failed before"


def test_what_was_interrupted_is_not_judged(tmp_path: Path, capsys: Capture) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    cut = recorded("interrupted")
    rounds: list[Change] = [lambda one: replace(one, state=cut.state, failures=cut.failures, metrics=cut.metrics)]
    add_case(old, "converged_1x1", faster(1.0, 1.0))
    add_case(new, "converged_1x1", [*faster(1.0), *rounds])
    add_case(old, "converged_1x2")
    add_case(new, "converged_1x2", rounds)
    add_case(old, "converged_1x1", model="later")
    finish(old)
    finish(new, replace(INFO, exit_status=2))
    out, comment, _ = compared(tmp_path, capsys, old, new, code=2)
    assert "no regression; " in out
    assert out.endswith("; 2 cases not judged")
    assert "interrupted: new: round 2 was interrupted and decides nothing" in out
    assert "not judged: no valid round in new, which was interrupted" in out
    assert "later:pytorch:CPU:1:1:1: not judged: new was interrupted and does not have the case" in out
    assert "round 2 was interrupted" in comment
    assert "missing: " in output_of(capsys, "compare", old, finish(new), code=1), "the control: it ended by itself"


def test_a_metric_that_chance_changes_by_more_than_half_is_not_judged(tmp_path: Path, capsys: Capture) -> None:
    old = run_of(tmp_path / "old", rounds=faster(0.6, 1.0, 1.4))
    new = run_of(tmp_path / "new", rounds=faster(0.5, 0.9, 1.3))
    for text in compared(tmp_path, capsys, old, new, code=2):
        assert "o case was judged; 1 case too noisy to judge" in text
        assert "no regression" not in text.lower()
        assert "and chance alone reaches 1" in text
    steady = run_of(tmp_path / "steady", rounds=faster(0.9, 0.9, 0.91))
    even = run_of(tmp_path / "even", rounds=faster(1.0, 1.0, 1.0))
    assert "p_core went from" in output_of(capsys, "compare", even, steady, code=1), "the control"
    assert "no regression" in output_of(capsys, "compare", old, new, "--threshold=300%"), "the user allows more"


def test_a_figure_that_is_missing_now_is_a_regression(tmp_path: Path, capsys: Capture) -> None:
    old = run_of(tmp_path / "old")
    new = run_of(tmp_path / "new", rounds=[lambda one: with_metric(one, "p_core", None)])
    assert "p_core was" in output_of(capsys, "compare", old, new, code=1)


def test_of_more_runs_the_first_and_last_are_compared(tmp_path: Path, capsys: Capture) -> None:
    days = {"a": (3, 1.0), "b": (1, 1.2), "c": (2, 0.8), "d": (0, 0.5)}
    runs = {name: run_of(tmp_path / name, rounds=dated(day, factor)) for name, (day, factor) in days.items()}
    lines = output_of(capsys, "compare", *runs.values(), code=1).splitlines()
    assert lines[0] == f"{runs['a']} -> {runs['d']}"
    assert f"note: 2 runs between not compared; flagperf report --all {tmp_path} shows all" in lines
    row = next(line for line in lines if line.startswith("  p_core")).split()
    assert row[1:] == ["1,684", "images/s", "842.1", "images/s", "-50.0", "%", "worse", "?"]
    assert "noise: unknown with one round on each side, judged by the threshold of 5.0 %" in " ".join(lines)
    by_time = output_of(capsys, "compare", tmp_path, code=2).splitlines()
    assert by_time[0] == f"{runs['d']} -> {runs['a']}", "a folder's runs are in the order of their times"


def test_one_run_alone_and_contradictory_options_are_refused(tmp_path: Path, capsys: Capture) -> None:
    run = run_of(tmp_path / "runs" / "run1")
    for path in (run, run.parent):
        assert "expected two runs, got 1" in errors_of(capsys, "compare", path)[0]
    run = run_of(tmp_path / "run")
    assert "did you mean p_core" in errors_of(capsys, "compare", run, run, "--metric=p_cor")[0]
    with pytest.raises(SystemExit) as ended:
        flagperf("compare", run, run, "--threshold=much")
    assert ended.value.code == 2
    assert "expected a percentage" in capsys.readouterr().err


def test_a_page_of_runs_without_a_success_is_written(tmp_path: Path, capsys: Capture) -> None:
    same = {"key": "key-1", "one_card_key": "key-1"}
    old, new = (run_of(tmp_path / name, "crashed_rank", fingerprint=same) for name in ("old", "new"))
    output_of(capsys, "compare", old, new, "--html", tmp_path / "compared.html", code=1)
    assert "1 of 1 round failed, 1 of 1 did before" in (tmp_path / "compared.html").read_text()


@pytest.mark.integration
def test_the_page_of_many_cases_stays_small_and_says_what_it_leaves_out(tmp_path: Path, capsys: Capture) -> None:
    for name in ("old", "new"):
        many_cases.make(tmp_path / name, 6)
    sizes = {}
    for name, most in (("wide", page_module._CHART_BYTES), ("narrow", 40_000)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(page_module, "_CHART_BYTES", most)
            flagperf("compare", tmp_path / "old", tmp_path / "new", "--ignore-differences", "--html", tmp_path / name)
        page = (tmp_path / name).read_text()
        sizes[name] = len(page)
        assert ("without the charts of hosts and devices" in page) == (name == "narrow")
    capsys.readouterr()
    assert sizes["wide"] < 3_000_000
    assert sizes["narrow"] < sizes["wide"] / 2


def test_the_change_of_the_level_is_named_with_its_run_and_commit(tmp_path: Path, capsys: Capture) -> None:
    runs = history(tmp_path / "reports")
    sentence = (
        "p_core: 20.0 % lower from run20261111 (commit 000000000000) on; the run before is run20261110 (commit "
        "000000000000)"
    )
    out, comment, page = compared(tmp_path, capsys, runs[0], runs[-1], code=1)
    assert sentence in out
    assert sentence in comment
    assert f'<span class="advice">{sentence}</span>' in page, "beside the regression"
    assert "16 runs like this one" in page, "also the stored runs between"
    assert sentence not in " ".join(output_of(capsys, "compare", runs[0], runs[9]).split()), "before the change"


@pytest.mark.parametrize("earlier_runs", [0, 8])
def test_a_baseline_and_a_comparison_of_the_same_runs_give_the_same_answer(earlier_runs: int) -> None:
    rng = random.Random(37)
    words = []
    for _ in range(60):
        slower = rng.uniform(0.8, 1.0)
        earlier = [rounds(*(rng.gauss(1, 0.03) for _ in range(3))) for _ in range(earlier_runs)]
        old, new = (rounds(*(level * rng.gauss(1, 0.03) for _ in range(3))) for level in (1.0, slower))
        baseline = baselines.accept(case_of(old), earlier, ACCEPTED)
        row = CaseRuns(("old", "new"), case_of(old), case_of(new))
        (compared,) = [one for one in row.changes(like=[*earlier, old]) if one.name == "p_core"]
        verdict = p_core(new, baseline)
        assert (verdict.ok, compared.word == noise.WORSE) in ((True, False), (False, True)), verdict.sentence
        assert compared.judgement.rule(baselines.BOUND) in verdict.sentence
        words.append(compared.judgement.word)
    assert set(words) >= {noise.WORSE, noise.WITHIN}


# -- the first table of a comparison, and its comment ------------------------------------------------------------

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


def test_the_comment_and_the_page_have_the_verdict_and_the_figures(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(comment_module, "LIMIT", len(text.encode()) // 2)
    output_of(capsys, "compare", old, new, "--markdown", comment, code=1)
    assert "<details>" not in comment.read_text(), "a block that does not fit is left out"
    assert "This comment is truncated; see the page" in comment.read_text()
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
