"""Real trainings of the included suites at their small scale, and control trainings that must fail.

The suites of ``make bench`` train to their targets on one card and on two. Of the others, those train that changed
since they last did (tests/trained.py), or all with ``--train-all``. They train on two cards only; a short round
measures one card for their speed-up. Controls are trainings of the suites that changed;
tests/commands/test_new_model.py has some that always run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.catalog import Catalog, Suite
from pytest_flagperf.commands import main
from tests import trained
from tests.helpers.trees import set_options
from tests.suites import programs

pytestmark = pytest.mark.slow
alone = pytest.mark.alone
CATALOG = Catalog.scan([Path(__file__).resolve().parents[1]])
SMALL = [suite for suite in CATALOG.trainings.values() if "small" in suite.scales]
MEASUREMENTS = [suite for suite in CATALOG.suites.values() if suite.figures]
"""The suites that measure the machine, and those that serve a model."""
BENCHED = [suite for suite in SMALL if {f"suites/{suite.model}", suite.framework} <= {*trained.benched()}]
OTHERS = [suite for suite in SMALL if suite not in BENCHED]
GLM, RESNET50 = (CATALOG.suite(model, "pytorch") for model in ("glm", "resnet50"))
OF_HOMES = programs.first_of_homes([*BENCHED, *OTHERS])
OF_HOMES_AND_FRAMEWORKS = programs.first_of_homes([*BENCHED, *OTHERS], each_framework=True)
HONEST = 1.2
"""A training without learning is as long as this many of the longest honest trainings."""
MINUTES = 60


class Finished:
    """A finished pytest run on the repository's suites, and its results."""

    def __init__(self, code: int, out: str, reports: Path) -> None:
        self.code, self.out = code, out
        runs = sorted(reports.glob("run*"))
        self.directory = runs[-1] if runs else None

    @property
    def results(self) -> dict[str, Any]:
        assert self.directory is not None, self.out
        results: dict[str, Any] = json.loads((self.directory / "results.json").read_text())
        return results


def command(reports: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--reports={reports}", *arguments]


def only(suites: Sequence[Suite], tests: str = "") -> list[str]:
    """Return the arguments that select the tests of these suites that match an expression of ``-k``."""
    names = " or ".join(suite.name for suite in suites)
    paths = dict.fromkeys(f"suites/{suite.model}" for suite in suites)
    return [*paths, "-k", f"({names}) and {tests}" if tests else names]


def run(repo: Path, reports: Path, *arguments: str, tests: str = "", suites: Sequence[Suite] = SMALL) -> Finished:
    argv = command(reports, *only(suites, tests), *arguments)
    done = subprocess.run(
        argv, cwd=repo, env=own_leases(reports), capture_output=True, text=True, check=False, timeout=30 * MINUTES
    )
    return Finished(done.returncode, done.stdout + done.stderr, reports)


def own_leases(reports: Path) -> dict[str, str]:
    """Return an environment in which a run does not wait for the devices of other tests."""
    return {**os.environ, "FLAGPERF_LEASES": str(reports / "leases")}


def site(repo: Path, folder: Path, **options: Any) -> list[str]:
    """Write a site's settings to another folder and return the arguments of a run with them."""
    set_options(folder, roots=[str(repo)], **options)
    return [f"--rootdir={folder}"]


@pytest.fixture(scope="module")
def bench(repo: Path, torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run of ``make bench``: three suites at 1x1 and 1x2."""
    return run(repo, tmp_path_factory.mktemp("bench"), suites=BENCHED)


@pytest.fixture(scope="module")
def training(request: pytest.FixtureRequest) -> list[Suite]:
    """The suites beside those of ``make bench`` that must train."""
    return trained.due(request.config, CATALOG, OTHERS)


@pytest.fixture(scope="module")
def others(
    repo: Path, torch_python: str, training: list[Suite], tmp_path_factory: pytest.TempPathFactory
) -> Finished | None:
    """A run of these suites at 1x2; None without any."""
    return run(repo, tmp_path_factory.mktemp("others"), "--nodes=1x2", suites=training) if training else None


@pytest.fixture(scope="module")
def measured(
    repo: Path, torch_python: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Finished | None:
    """A run at 1x2 of the suites that measure the machine; None if none of them changed.

    Whether the cards are alike is left out: that is a matter of this machine, not of the suites. A virtual machine's
    cores often differ. tests/driver/measuring/test_uniform.py tests that judgement.
    """
    suites = trained.due(request.config, CATALOG, MEASUREMENTS)
    folder = tmp_path_factory.mktemp("measured")
    return run(repo, folder, "--nodes=1x2", tests="not uniform", suites=suites) if suites else None


def cases(*runs: Finished | None) -> list[dict[str, Any]]:
    return [case for finished in runs if finished for case in finished.results["cases"]]


@alone
def test_the_suites_of_make_bench_converge_on_one_card_and_on_two(bench: Finished) -> None:
    assert bench.code == 0, bench.out
    converged = {case["case"]: case["converged"] for case in cases(bench)}
    assert converged == {f"{suite.name}:CPU:1:{cards}:1": 1 for suite in BENCHED for cards in (1, 2)}


@alone
def test_every_other_suite_that_changed_converges_on_two_cards(others: Finished | None, training: list[Suite]) -> None:
    if others is None:
        pytest.skip(trained.SKIPPED)
    assert others.code == 0, others.out
    assert {case["case"]: case["converged"] for case in cases(others)} == {
        trained.CASE.format(suite.name): 1 for suite in training
    }


@alone
def test_every_suite_that_measures_the_machine_passes_on_two_cards_if_it_changed(measured: Finished | None) -> None:
    if measured is None:
        pytest.skip(trained.SKIPPED)
    assert measured.code == 0, measured.out
    for case in cases(measured):
        figures = CATALOG.suite(*case["case"].split(":")[:2]).figures
        required = {name for name, figure in figures.items() if not figure.optional}
        assert {name for name, metric in case["metrics"].items() if metric["median"] > 0} >= required, case["case"]


@pytest.fixture
def other_work() -> Iterator[list[int]]:
    """Start a busy process for each core and return their pids."""
    busy = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(busy, start_new_session=True) for _ in os.sched_getaffinity(0)]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


@alone
def test_other_work_causes_a_warning_and_prevents_a_baseline(
    repo: Path, torch_python: str, tmp_path: Path, other_work: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    finished = run(repo, tmp_path, *site(repo, tmp_path), tests="throughput and 1:2:1", suites=[RESNET50])
    assert finished.code == 0, finished.out
    # The warning comes before the first round, and after each case.
    assert "flagperf: warning: localhost: load: other processes use " in finished.out
    assert main(["accept", str(finished.directory), f"--baselines={tmp_path / 'baselines'}"]) == 1
    refused = capsys.readouterr().out
    for case in cases(finished):
        (outcome,) = case["outcomes"]
        # The hypervisor may add another warning.
        assert {warning["kind"] for warning in outcome["validity_warnings"]} == {"busy"}, outcome["validity_warnings"]
        (waited,) = (metric["value"] for metric in outcome["metrics"] if metric["name"] == "core_wait")
        assert waited > 0.2
        assert f"not accepted: {case['case']}: round 1: localhost: a rank waited for a core" in refused
    named = [pid for pid in other_work if f"(pid {pid}, " in finished.out]
    assert named


def due(config: pytest.Config, suites: Sequence[Suite]) -> list[Suite]:
    """Return the suites that this run must train; skip the test if no suite has changed."""
    return trained.due(config, CATALOG, suites) or pytest.skip(trained.SKIPPED)


def two_at_a_time(repo: Path, folder: Path) -> list[str]:
    """Return the arguments to train two cases at a time, for tests that do not judge the speed."""
    return ["-n2", *site(repo, folder, lease="device")]


def failed_converging(finished: Finished, number: int) -> None:
    assert finished.code == 1, finished.out
    assert f"{number} failed" in finished.out, finished.out
    for case in cases(finished):
        assert case["converged"] == 0
        ((test, verdicts),) = case["verdicts"].items()
        assert test.startswith("test_converges[")
        assert [verdict["ok"] for verdict in verdicts if verdict["name"] == "target"] == [False]


def test_learning_rate_0_fails(repo: Path, torch_python: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    arguments = ["--set=learning_rate=0", "--set=max_steps=20", *two_at_a_time(repo, tmp_path)]
    suites = due(pytestconfig, OF_HOMES_AND_FRAMEWORKS)
    failed_converging(run(repo, tmp_path, *arguments, tests="converges and 1:1:1", suites=suites), len(suites))


def longest(suite: Suite) -> int:
    """Return the samples of the longest honest training on one card, of those that the suite's reference lists."""
    batches = json.loads((suite.path / "reference" / "small.json").read_text())["of"]["batches"]
    (to_target,) = (batch["to_target"] for batch in batches if "1x1" in batch["shapes"])
    return int(max(to_target))


@pytest.fixture(scope="module")
def mislabelled(
    repo: Path, torch_python: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Finished]:
    """Runs with shuffled labels by suite, two at a time, each a little longer than an honest training."""
    selected = [suite for (suite,) in programs.selected(request, "mislabelled_suite")]
    suites = trained.due(request.config, CATALOG, selected)

    def train(suite: Suite, folder: Path) -> Finished:
        samples = int(HONEST * longest(suite))
        arguments = ["--set=shuffle_labels=True", f"--set=max_samples={samples}", *site(repo, folder, lease="device")]
        return run(repo, folder, *arguments, tests="converges and 1:1:1", suites=[suite])

    folders = [tmp_path_factory.mktemp(suite.model) for suite in suites]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip([suite.name for suite in suites], pool.map(train, suites, folders), strict=True))


@pytest.mark.parametrize("mislabelled_suite", OF_HOMES, ids=lambda suite: suite.name)
def test_labels_that_belong_to_other_samples_fail(mislabelled: dict[str, Finished], mislabelled_suite: Suite) -> None:
    if mislabelled_suite.name not in mislabelled:
        pytest.skip(trained.SKIPPED)
    failed_converging(mislabelled[mislabelled_suite.name], 1)


def test_synthetic_data_give_a_rate(repo: Path, torch_python: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    arguments = ["--nodes=1x1", "--synthetic", "--set=throughput_steps=20", "-v"]
    suites = due(pytestconfig, OF_HOMES_AND_FRAMEWORKS)
    finished = run(repo, tmp_path, *arguments, *two_at_a_time(repo, tmp_path), suites=suites)
    assert finished.code == 0, finished.out
    assert "test_converges" not in finished.out
    assert [case["converged"] for case in cases(finished)] == [None] * len(suites)


def test_suites_that_all_passed_are_recorded(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--train-all"):
        pytest.skip("make train records")
    assert request.session.testsfailed == 0
    trained.record(CATALOG, [*SMALL, *MEASUREMENTS])
