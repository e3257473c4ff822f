"""Sweeps, ``--each``: a case once for each value, with all that holds for a case."""

import csv
import json
import xml.etree.ElementTree as ET

import pytest

from pytest_flagperf.results import verification

from .conftest import Toy

pytestmark = pytest.mark.slow
CASE = "alpha:plain:CPU:1:1:1"
EACH = ("suites/alpha", "--nodes=1x1", "-k", "converges or throughput")


def steps(toy: Toy, case: str) -> int:
    logs = toy.runs[-1].glob(f"{case.replace(':', '_')}/round*/*/rank0.out.log") if toy.runs else ()
    return sum(path.read_text(errors="replace").count("STEP_END") for path in logs)


@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_a_value_with_which_the_training_does_not_converge_is_red_and_the_others_are_green(
    toy: Toy, workers: tuple[str, ...]
) -> None:
    result = toy.run(*EACH, "--each=learning_rate=0.05,0.01,0.04", "-v", *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["flagperf: 2 of 3 cases passed, 1 failed*"])
    (run,) = toy.runs
    cases = {case["case"]: case for case in json.loads((run / "results.json").read_text())["cases"]}
    states = {f"{CASE}:learning_rate-{value}": value != "0.01" for value in ("0.01", "0.04", "0.05")}
    assert {name: case["ok"] for name, case in cases.items()} == states
    fingerprints = [case["outcomes"][0]["fingerprint"] for case in cases.values()]
    assert {one["variant"] for one in fingerprints} == {name.rpartition(":")[2] for name in states}
    assert len({one["key"] for one in fingerprints}) == len(states)
    with (run / "results.csv").open(newline="") as file:
        assert {row["case"] for row in csv.DictReader(file)} == {*states}
    failed = [test for test in ET.parse(run / "junit.xml").iter("testcase") if test.find("failure") is not None]
    assert [test.get("name") for test in failed] == [f"test_converges[{CASE}:learning_rate-0.01-round1]"]
    page = (run / "report.html").read_text()
    assert "Sweeps</h2>" in page
    assert f"--case={CASE}:learning_rate-0.01 --scale=small</code>" in page, "without --set of the same value"
    assert all(name in page for name in states)
    assert verification.verify(run) == (3, ())


def test_a_plan_has_the_number_of_variants_what_cannot_run_and_how_long_all_take(toy: Toy) -> None:
    toy.suite("gamma", "depth = 1\n")
    mutable = toy.root / "suites/gamma/plain/config/mutable_params.py"
    mutable.write_text('mutable_params = ["depth"]\n')
    asked = ("suites/alpha", "suites/gamma", "--nodes=1x1", "--each=depth=1,2", "--each=learning_rate=0.05,0.1")
    shown = toy.run(*asked, "--plan").stdout
    name = "gamma:plain:CPU:1:1:1:depth"
    shown.fnmatch_lines(
        [
            "flagperf: 8 cases selected, 4 can run: *",
            f"  cannot run: {CASE}:depth-1+learning_rate-0.05, * and 1 more: --each depth: alpha:plain has no such key",
            *(f"{name}-{depth}+learning_rate-{rate} *no estimate" for depth in "12" for rate in ("0.05", "0.1")),
            "flagperf: 4 cases, no estimate of how long they take",
        ]
    )
    toy.run("suites/gamma", "--nodes=1x1", "-k", "converges").stdout.fnmatch_lines(["*1 of 1 case passed*"])
    toy.run(*asked, "--plan").stdout.fnmatch_lines(["flagperf: 4 of 4 cases take about *"])
    assert not any("depth-" in path.name for run in toy.runs for path in run.iterdir())


def test_a_killed_sweep_is_resumed_where_it_ended(toy: Toy) -> None:
    each = "--each=learning_rate=0.05,0.04,0.03"
    first, second, third = (f"{CASE}:learning_rate-{value}" for value in ("0.05", "0.04", "0.03"))
    going = toy.start(*EACH, each, "--set=step_s=0.1")
    going.wait_for(lambda: steps(toy, second), "the second variant")
    going.kill()
    (run,) = toy.runs
    record = run / first.replace(":", "_") / "round1" / "round.json"
    before = record.stat().st_mtime_ns
    assert steps(toy, third) == 0, "the control"
    result = toy.run(*EACH[:1], *EACH[2:], f"--resume={run}", "--set=step_s=0.01")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["flagperf: 3 of 3 cases passed*"])
    assert record.stat().st_mtime_ns == before
    assert {path.name for path in run.glob("alpha_*")} == {name.replace(":", "_") for name in (first, second, third)}


def test_a_variant_has_its_own_baseline_and_is_compared_with_itself_alone(toy: Toy) -> None:
    each = "--each=step_s=0.001,0.002"
    toy.run(*EACH, each).assert_outcomes(passed=4)
    (run,) = toy.runs
    accepted = toy.pytester.run("flagperf", "accept", str(run))
    assert accepted.ret == 0
    files = {path.name for path in (toy.root / "reports/baselines").iterdir()}
    assert files == {f"alpha_plain_CPU_1_1_step_s-{value}.json" for value in ("0.001", "0.002")}
    toy.run(*EACH, each).assert_outcomes(passed=4)
    program = toy.root / "suites/alpha/plain/run_pretraining.py"
    program.write_text(program.read_text().replace("rate = config.speed", "rate = 0.5 * config.speed"))
    slower = toy.run(*EACH, f"--case={CASE}:step_s-0.001")
    slower.assert_outcomes(passed=1, failed=1)
    slower.stdout.fnmatch_lines(["p_core is 50 samples/s*baseline*"])
    toy.run(*EACH, f"--case={CASE}").assert_outcomes(passed=2)


LIMITED = """
import resource
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))
held = bytearray(config.train_batch_size << 22)
"""


def with_little_memory(toy: Toy) -> None:
    """Give the ranks 40 MiB more than they have, of which each sample needs 4 MiB."""
    program = toy.root / "suites/alpha/plain/run_pretraining.py"
    begin = "    log(events.TRAIN_START)\n"
    lines = "".join(f"    {line}\n" for line in LIMITED.strip().splitlines())
    program.write_text(program.read_text().replace(begin, begin + lines))


@pytest.mark.parametrize("options", [(), ("--strict", "-n2")])
def test_a_size_that_does_not_fit_is_an_answer_if_a_smaller_one_ran_and_larger_ones_are_not_started(
    toy: Toy, options: tuple[str, ...]
) -> None:
    with_little_memory(toy)
    result = toy.run(*EACH, "--each=train_batch_size=64,4,16,2,32", *options)
    assert result.ret == 0
    result.assert_outcomes(passed=4, xfailed=6)
    result.stdout.fnmatch_lines(
        [
            f"{CASE} by train_batch_size: ? reaches the target first, in *",
            "*x as long; out of memory: 16",
            f"not run: {CASE}:train_batch_size-32: not started: memory ended at*",
            f"not run: {CASE}:train_batch_size-64: not started: memory ended at*",
            f"expected: {CASE}:train_batch_size-16: *",
            "flagperf: 2 of 5 cases passed, 1 failed as expected, 2 not run*",
        ]
    )
    (run,) = toy.runs
    assert {path.name.rpartition("-")[2] for path in run.glob("alpha_*")} == {"2", "4", "16"}
    cases = {case["case"].rpartition("-")[2]: case for case in json.loads((run / "results.json").read_text())["cases"]}
    (failure,) = cases["16"]["outcomes"][0]["failures"]
    assert "MemoryError" in failure["sentence"]
    reasons = {
        one["expected_failure"] for judged in cases["16"]["verdicts"].values() for one in judged if not one["ok"]
    }
    assert reasons == {"left out: memory ended at train_batch_size=16; 4 ran"}
    assert verification.verify(run) == (3, ())
    assert ">out of memory</span>" in (run / "report.html").read_text()


@pytest.mark.parametrize("each", ["train_batch_size=16,32", "seed=1,2"])
def test_without_a_smaller_size_that_ran_a_lack_of_memory_is_red(toy: Toy, each: str) -> None:
    with_little_memory(toy)
    result = toy.run(*EACH, f"--each={each}", *(["--set=train_batch_size=16"] if "seed" in each else []))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    started = 2 if "seed" in each else 1
    result.assert_outcomes(failed=2 * started, xfailed=4 - 2 * started)
    assert len(list(toy.runs[-1].glob("alpha_*"))) == started
