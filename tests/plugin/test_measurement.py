"""Suites that measure the machine: plan, run, reports and commands, beside suites that train."""

import csv
import shutil

import pytest

from tests.helpers.trees import PLAIN_MEASUREMENT_TOML

from .conftest import Toy

pytestmark = pytest.mark.slow
CASE, TRAINING = "gamma:plain:CPU:1:2:2", "alpha:plain:CPU:1:1:1"


@pytest.fixture
def measuring(toy: Toy) -> Toy:
    toy.measurement()
    return toy


def test_a_measurement_runs_beside_a_training_and_every_command_reads_both(measuring: Toy) -> None:
    result = measuring.run("suites", f"--case={CASE}", f"--case={TRAINING}", "--throughput-only", "--strict", "-v")
    result.assert_outcomes(passed=3)
    (run,) = map(str, measuring.runs)
    with (measuring.runs[0] / "results.csv").open() as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    assert float(rows[CASE]["copy_B/s"]) == float(rows[CASE]["metric_value"]) == pytest.approx(20e9)
    assert rows[CASE]["converged"] == rows[CASE]["p_core"] == rows[TRAINING]["copy_B/s"] == ""
    assert "20 GB/s" in measuring.flagperf("show", run, "--figures").stdout
    assert "0 differences" in measuring.flagperf("verify", run).stdout
    assert "copy" in measuring.flagperf("compare", run, run).stdout
    assert "gamma:plain" in measuring.flagperf("list").stdout
    measuring.flagperf("export", run, "--format=markdown")
    assert "| 20 GB/s |" in (measuring.runs[0] / "performance.md").read_text()
    measuring.flagperf("report", run)
    assert "20 GB/s" in (measuring.runs[0] / "report.html").read_text()
    (measuring.root / "baselines").mkdir()
    assert "accepted: gamma:plain:CPU:1:2: copy 20 GB/s" in measuring.flagperf("accept", run).stdout
    slower = measuring.run("suites", "-m", "measurement", f"--case={CASE}", "--set=speed=10e9", "--resume", run)
    slower.assert_outcomes(passed=2)  # its rounds are those of the run
    slower = measuring.run("suites", "-m", "measurement", f"--case={CASE}", "--set=speed=10e9", "--ignore-differences")
    slower.assert_outcomes(failed=1, passed=1)
    slower.stdout.fnmatch_lines(["*copy is 10 GB/s*"])


def test_a_case_with_too_few_processes_is_one_skipped_test(toy: Toy) -> None:
    toy.measurement(toml=f"least_ranks = 2\n{PLAIN_MEASUREMENT_TOML}")
    result = toy.run("suites/gamma", "--nodes=1x1", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*gamma:plain needs at least 2 processes; the shape 1x1 has 1"])
    both = toy.run("suites/gamma", "--nodes=1x1,1x2", "--collect-only", "-q")
    assert "gamma:plain:CPU:1:2:1" in str(both.stdout)
    assert "gamma:plain:CPU:1:1:1" not in str(both.stdout), "the other shape is measured, and --strict has no skip"


def test_a_setting_of_one_kind_of_suite_does_not_concern_the_other(measuring: Toy) -> None:
    both = ("suites", f"--case={CASE}", f"--case={TRAINING}", "--throughput-only", "--plan", "-v")
    result = measuring.run(*both, "--set=max_steps=10", "--set=interval=0.02")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*max_steps*10*--set max_steps=10*"])
    result.stdout.fnmatch_lines(["*interval*0.02*--set interval=0.02*"])
    for case, setting, message in [
        (CASE, "max_steps=10", "*--set max_steps: gamma:plain has no such key*"),
        (TRAINING, "interval=0.02", "*--set interval: alpha:plain has no such key*"),
    ]:
        result = measuring.run("suites", f"--case={case}", "--plan", f"--set={setting}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([message])
    result = measuring.run(*both, "--set=stepps=10")
    result.stderr.fnmatch_lines(["*--set stepps: gamma:plain has no such key*"])


def test_a_benchmark_of_the_other_kind_is_reported(measuring: Toy) -> None:
    test = measuring.root / "suites" / "gamma" / "test_gamma.py"
    test.write_text(test.read_text().replace("MeasurementBenchmark", "TrainingBenchmark"))
    result = measuring.run("suites/gamma", "--collect-only")
    result.stdout.fnmatch_lines(["*is for suites of kind 'training'; gamma:plain is a measurement (suite.toml)*"])


def test_a_models_folder_may_have_suites_of_several_kinds(toy: Toy) -> None:
    toy.measurement("alpha2")
    folder = toy.root / "suites" / "alpha2"
    shutil.move(folder / "plain", toy.root / "suites" / "alpha" / "second")
    shutil.move(folder / "test_alpha2.py", toy.root / "suites" / "alpha")
    vendor = toy.root / "vendors" / "cpu" / "vendor.toml"
    vendor.write_text(vendor.read_text() + '[framework.second]\ndevice = "cpu"\nbackend = "none"\n')
    ids = toy.run("suites/alpha", "--nodes=1x1", "--collect-only", "-q").stdout
    ids.fnmatch_lines(["*::test_converges[[]alpha:plain:*", "*::TestAlpha2::test_measured[[]alpha:second:CPU:1:1:1]"])
    ids.no_fnmatch_line("*test_measured[[]alpha:plain*")
    ids.no_fnmatch_line("*test_converges[[]alpha:second*")
    alone = toy.run("suites/alpha", "--case=alpha:second:CPU:1:1:1", "--collect-only", "-q")
    assert alone.ret == 0, "the other class has no case in this run"


def test_a_short_measurement_before_the_run_refuses_to_start_with_a_slow_device(toy: Toy) -> None:
    toy.measurement(toml=PLAIN_MEASUREMENT_TOML + 'preflight = ["slow_rank=1"]\n')
    case = "--case=alpha:plain:CPU:1:2:1"
    result = toy.run("suites", case, "--preflight=measure")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*localhost: rank 1 is slow: copy 1024 takes 100.0 % longer than on the *leave-out*"])
    result = toy.run("suites", case, "--preflight=leave-out")
    result.stderr.fnmatch_lines(["*left out: localhost: rank 1 is slow*", "*1 host needed, 0 left*"])
    # The control: even devices, and an accepted figure that they do not reach.
    suite = toy.root / "suites" / "gamma" / "plain" / "suite.toml"
    suite.write_text(PLAIN_MEASUREMENT_TOML + 'preflight = ["step_s=0.02"]\n')
    result = toy.run("suites", case, "--preflight=measure")
    result.stdout.fnmatch_lines(["*preflight: gamma on localhost: copy 20 GB/s", "*preflight: measured in *"])
    assert result.ret == 0
    assert list(toy.runs[-1].glob("preflight/gamma_plain_CPU_1_2_1/round1/outcome.json"))
    (toy.root / "baselines").mkdir()
    measured = ("suites", "--case=gamma:plain:CPU:1:2:1", "-m", "measurement")
    toy.run(*measured, "--set=speed=30e9").assert_outcomes(passed=2)
    toy.flagperf("accept", str(toy.runs[-1]))
    result = toy.run("suites", case, "--preflight=measure")
    result.stdout.fnmatch_lines(["*copy 20 GB/s; not compared with the accepted baseline: config: speed 3*"])
    assert result.ret == 0
    toy.run(*measured, "--ignore-differences")
    toy.flagperf("accept", str(toy.runs[-1]))
    suite.write_text(PLAIN_MEASUREMENT_TOML + 'preflight = ["step_s=0.02", "speed=10e9"]\n')
    result = toy.run("suites", case, "--preflight=measure")
    result.stderr.fnmatch_lines(["*localhost: rank 0: copy is 10 GB/s, more than 10.0 % below the accepted 20 GB/s*"])
    suite.write_text(PLAIN_MEASUREMENT_TOML)
    result = toy.run("suites", case, "--preflight=measure")
    result.stderr.fnmatch_lines(["*--preflight=measure: no suite of plain declares preflight in [[]scales.small[]]*"])
