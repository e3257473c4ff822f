"""The pytest surface: what is collected, what is said, how it ends."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from .conftest import Toy


def names(result: pytest.RunResult) -> list[str]:
    return [line.rsplit("::", 1)[1] for line in result.outlines if "::" in line]


# -- collection --------------------------------------------------------------------------------------------


def test_a_case_becomes_its_tests_one_card_first(toy: Toy) -> None:
    result = toy.run("suites/alpha", "--collect-only", "-q", "--repeat=2")
    assert names(result) == [
        "test_converges[alpha:plain:CPU:1:1:2-round1]",
        "test_converges[alpha:plain:CPU:1:1:2-round2]",
        "test_throughput[alpha:plain:CPU:1:1:2]",
        "test_converges[alpha:plain:CPU:1:2:2-round1]",
        "test_converges[alpha:plain:CPU:1:2:2-round2]",
        "test_throughput[alpha:plain:CPU:1:2:2]",
        "test_speedup[alpha:plain:CPU:1:2:2]",
    ]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["suites", "-k", "alpha"], 5),
        (["suites", "-k", "alpha and 1:2"], 3),
        (["suites", "-k", "CPU:1:2"], 6),
        (["suites/beta"], 5),
        (["suites/beta/test_beta.py::TestBeta::test_converges[beta:plain:CPU:1:2:1-round1]"], 1),
        (["suites", "--nodes=1x1"], 4),
        (["suites", "--case=alpha:plain:CPU:1:4:3"], 5),
    ],
)
def test_what_one_expects_is_selected(toy: Toy, arguments: list[str], wanted: int) -> None:
    assert len(names(toy.run(*arguments, "--collect-only", "-q"))) == wanted


def test_outside_a_tree_with_suites_it_is_silent(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess()
    assert result.ret == 0
    assert "flagperf" not in "\n".join(result.outlines[4:])
    assert not (pytester.path / "reports").exists()


def test_collecting_leaves_nothing_behind(toy: Toy) -> None:
    toy.run("suites", "--collect-only")
    assert toy.runs == []


# -- running ----------------------------------------------------------------------------------------------


def test_a_run_passes_and_leaves_its_reports(toy: Toy) -> None:
    result = toy.run("suites", "-k", "alpha")
    result.assert_outcomes(passed=5, deselected=5)
    (run,) = toy.runs
    assert {"report.html", "junit.xml", "results.json", "results.csv"} <= {path.name for path in run.iterdir()}
    with (run / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["case"] for row in rows] == ["alpha:plain:CPU:1:1:1", "alpha:plain:CPU:1:2:1"]
    results = json.loads((run / "results.json").read_text())
    assert results["schema"] >= 1
    assert "alpha:plain:CPU:1:2:1" in (run / "report.html").read_text()
    result.stdout.fnmatch_lines(["*alpha:plain:CPU:1:2:1*", f"*{run}/report.html*"])


def test_junit_carries_the_metrics(toy: Toy) -> None:
    toy.run("suites", "-k", "alpha and 1:1:1 and converges")
    tree = ET.parse(toy.runs[0] / "junit.xml")
    properties = {item.get("name"): item.get("value") for item in tree.iter("property")}
    assert any(name and "p_core" in name for name in properties)


def test_reports_that_the_user_asked_for_are_where_they_were_asked_for(toy: Toy) -> None:
    toy.run("suites", "-k", "alpha and 1:1:1", "--html=mine.html", "--junitxml=mine.xml")
    assert "alpha" in (toy.root / "mine.html").read_text()
    assert "alpha" in (toy.root / "mine.xml").read_text()
    assert {"report.html", "junit.xml"} <= {path.name for path in toy.runs[0].iterdir()}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("import", ["*round 1: rank 1*ModuleNotFoundError*no_such_module*"]),
        ("kill", ["*round 1: rank 1*SIGKILL*"]),
        ("exit", ["*round 1: rank 1*7*"]),
        ("nan", ["*round 1*loss was NaN at step 1*"]),
        ("no_finished", ["*round 1: rank 1*FINISHED*"]),
        ("hang", ["*round 1: rank 1*"]),
    ],
)
def test_a_fault_fails_the_item_and_names_round_rank_and_cause(toy: Toy, fault: str, said: list[str]) -> None:
    toy_arguments = [f"--set=fault={fault}", "--set=hang_timeout_s=1.0"]
    result = toy.run("suites", "-k", "alpha and 1:2 and converges", *toy_arguments)
    result.assert_outcomes(failed=1, deselected=9)
    assert result.ret == 1
    result.stdout.fnmatch_lines(said)
    assert "Traceback" not in result.stdout.str().split("short test summary")[0].split("FAILURES")[1][:200]


def test_a_training_that_does_not_learn_fails(toy: Toy) -> None:
    result = toy.run("suites", "-k", "alpha and 1:1:1 and converges", "--set=learning_rate=0")
    result.assert_outcomes(failed=1, deselected=9)
    result.stdout.fnmatch_lines(["*accuracy reached 0* wanted accuracy >= 0.8*"])


def test_a_poor_speedup_fails(toy: Toy) -> None:
    result = toy.run("suites", "-k", "alpha", "--set=efficiency=0.5")
    result.assert_outcomes(passed=4, failed=1, deselected=5)
    result.stdout.fnmatch_lines(["*efficiency 50.0 %, wanted at least 80.0 %*"])


def test_a_round_runs_once_whoever_asks_first(toy: Toy) -> None:
    (toy.root / "suites" / "alpha" / "test_mine.py").write_text(
        "def test_mine(case, training, cluster, container, monitors, plan):\n"
        "    assert training.value('p_core') > 0\n"
        "    assert str(case) == training.case\n"
        "    assert container.python\n"
        "    assert list(monitors) and len(cluster) == 1\n"
    )
    result = toy.run("suites/alpha", "--nodes=1x1", "-v")
    result.assert_outcomes(passed=3)
    rounds = list(toy.runs[0].glob("alpha*/round*"))
    assert len(rounds) == 1


def test_the_speedup_measures_one_card_when_nobody_has(toy: Toy) -> None:
    result = toy.run("suites", "-k", "alpha and speedup", "--nodes=1x4")
    result.assert_outcomes(passed=1, deselected=5)
    assert list(toy.runs[0].glob("alpha*/one_card/plan.json"))


def test_the_speedup_takes_the_one_card_figure_of_an_earlier_run(toy: Toy) -> None:
    toy.run("suites", "-k", "alpha", "--nodes=1x1")
    toy.run("suites", "-k", "alpha and speedup", "--nodes=1x4")
    assert len(toy.runs) == 2
    assert not list(toy.runs[1].glob("alpha*/one_card"))


def test_a_stored_figure_of_another_config_is_not_taken(toy: Toy) -> None:
    toy.run("suites", "-k", "alpha", "--nodes=1x1")
    toy.run("suites", "-k", "alpha and speedup", "--nodes=1x4", "--set=train_batch_size=8")
    assert list(toy.runs[1].glob("alpha*/one_card"))


# -- what cannot run ----------------------------------------------------------------------------------------


def test_a_suite_without_a_config_is_listed_and_skipped(toy: Toy) -> None:
    toy.config("alpha", "1x1", "train_batch_size = 8\n")
    result = toy.run("suites", "--vendor=acme", "--nodes=1x1", "--synthetic")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*beta:plain:X1:1:1:1*no config*"])


def test_strict_makes_the_skip_an_error(toy: Toy) -> None:
    toy.config("alpha", "1x1", "train_batch_size = 8\n")
    result = toy.run("suites", "--vendor=acme", "--nodes=1x1", "--synthetic", "--strict")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*--strict*beta*"])


def test_nothing_that_ran_is_not_green(toy: Toy) -> None:
    result = toy.run("suites", "--vendor=acme", "--nodes=1x1")
    result.assert_outcomes(skipped=2)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_named_case_that_cannot_run_is_an_error_before_anything_starts(toy: Toy) -> None:
    result = toy.run("suites", "--case=alpha:plain:X1:1:1:1", "--case=gamma:plain:CPU:1:1:1", "--case=alpha:plain:CPU")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*alpha:plain:X1:1:1:1*no config*", "*gamma*", "*missing: nnodes*"])
    assert toy.runs == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--vendor=acm"], "*vendor 'acm'*did you mean acme*"),
        (["--hw=CPX"], "*CPX*did you mean CPU*"),
        (["--nodes=1by2"], "*1by2*NxP*"),
        (["--set=learning_rat=1"], "*learning_rat*did you mean*learning_rate*"),
        (["--set=learning_rate=fast"], "*learning_rate*fast*"),
        (["--repeat=0"], "*repeat*at least one*"),
        (["--runtime=docker"], "*docker*venv*"),
        (["--nodes=2x1"], "*2 hosts*"),
    ],
)
def test_bad_input_is_told_with_what_is_allowed(toy: Toy, arguments: list[str], said: str) -> None:
    result = toy.run("suites", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
    assert toy.runs == []


def test_a_reference_case_without_data_says_so(toy: Toy) -> None:
    toy.config("alpha", "1x1", "train_batch_size = 8\n")
    result = toy.run("suites/alpha", "--vendor=acme", "--nodes=1x1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*data*--data-dir*--synthetic*"])


# -- plan, settings, the original's file ----------------------------------------------------------------------


def test_the_plan_is_printed_and_nothing_starts(toy: Toy) -> None:
    result = toy.run("suites", "-k", "alpha and 1:2", "--plan", "--set=learning_rate=0.2")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*alpha:plain:CPU:1:2:1*"])
    result.stdout.fnmatch_lines(["*learning_rate*0.2*setting*--set*"])
    result.stdout.fnmatch_lines(["*train_batch_size*2*scale*_small.py:1*"])
    result.stdout.fnmatch_lines(["*run_pretraining.py*"])
    assert toy.runs == []


def test_a_settings_file_is_taken(toy: Toy) -> None:
    (toy.root / "flagperf.toml").write_text('nodes = "1x4"\nreports = "elsewhere"\n')
    assert "alpha:plain:CPU:1:4:1" in toy.run("suites", "--collect-only", "-q").stdout.str()
    toy.run("suites", "-k", "alpha and throughput")
    assert list((toy.root / "elsewhere").glob("run*/results.json"))


def test_the_originals_test_conf_is_taken_as_it_is(toy: Toy) -> None:
    toy.config("alpha", "1x2", "train_batch_size = 8\n")
    data = toy.root / "data"
    data.mkdir()
    (toy.root / "test_conf.py").write_text(
        "VENDOR = 'acme'\nACCE_CONTAINER_OPT = ' --gpus all'\nSHM_SIZE = '32G'\nCLEAR_CACHES = True\n"
        f"CASES = {{'alpha:plain:X1:1:2:1': '{data}'}}\n"
    )
    result = toy.run("suites", "--test-conf=test_conf.py", "-k", "converges")
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines(["*ACCE_CONTAINER_OPT*"])


def test_throughput_only_shapes_have_no_convergence_test(toy: Toy) -> None:
    toy.config("alpha", "1x1", "throughput_only = True\n")
    toy.config("alpha", "1x2", "train_batch_size = 4\n")
    data = toy.root / "data"
    data.mkdir()
    result = toy.run("suites/alpha", "--vendor=acme", f"--data-dir={data}", "--collect-only", "-q")
    assert "test_converges[alpha:plain:X1:1:1:1-round1]" not in result.stdout.str()
    assert "test_converges[alpha:plain:X1:1:2:1-round1]" in result.stdout.str()
    shown = toy.run("suites/alpha", "--vendor=acme", f"--data-dir={data}", "--collect-only").stdout.str()
    assert "throughput only" in shown


def test_a_whole_run_for_throughput(toy: Toy) -> None:
    result = toy.run("suites/alpha", "--throughput-only", "-v")
    result.assert_outcomes(passed=3)
    assert "test_converges" not in result.stdout.str()


# -- parallel, quiet, interrupted -----------------------------------------------------------------------------


def test_parallel_workers_share_the_cases_and_one_report(toy: Toy) -> None:
    result = toy.run("suites", "-n2")
    result.assert_outcomes(passed=10)
    (run,) = toy.runs
    with (run / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
    assert (run / "report.html").is_file()


def test_a_parallel_failure_is_a_failure(toy: Toy) -> None:
    result = toy.run("suites", "-n2", "-k", "alpha", "--set=fault=exit")
    assert result.ret == 1


def test_a_case_of_a_suite_stays_on_one_worker(toy: Toy) -> None:
    result = toy.run("suites", "-n2", "-v")
    worker: dict[str, set[str]] = {}
    for line in result.outlines:
        if line.startswith("[gw") and "suites/" in line:
            model = line.split("suites/")[1].split("/")[0]
            worker.setdefault(model, set()).add(line[:5])
    assert all(len(workers) == 1 for workers in worker.values())
    assert set(worker) == {"alpha", "beta"}


def test_the_original_reports_of_a_run_without_rounds_are_not_left(toy: Toy) -> None:
    (toy.root / "suites" / "alpha" / "test_other.py").write_text("def test_other(): pass\n")
    toy.run("suites", "-k", "other")
    assert toy.runs == []


def test_verbose_follows_the_ranks_logs(toy: Toy) -> None:
    result = toy.run("suites/alpha", "--nodes=1x1", "-s")
    assert any("[rank 0]" in line for line in result.outlines)
    quiet = toy.run("suites/alpha", "--nodes=1x1", "-q")
    assert not any("[rank 0]" in line for line in quiet.outlines)


def test_no_process_is_left_after_a_fault(toy: Toy) -> None:
    toy.run("suites", "-k", "alpha and 1:2", "--set=fault=kill")
    assert _processes_of(toy.root) == []


def _processes_of(root: Path) -> list[int]:
    """Processes whose environment names a file of this tree's reports."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"FLAGPERF_CASE=" + str(root).encode() in environment:
            found.append(int(folder.name))
    return found
