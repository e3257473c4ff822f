"""Every framework's trainer computes what the loop and the suites expect of it: table.py has the trainings."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flagperf_driver import perflog
from flagperf_driver.heartbeat import read_heartbeat
from pytest_flagperf.catalog import Catalog
from tests import trained
from tests.driver.frameworks import toy_data, toy_reference
from tests.driver.frameworks.ranks import HERE, RankResults, Trained, distance, run_ranks, run_scenarios, wait
from tests.driver.frameworks.table import MISSING_ON_CPU, ROUNDING, TABLE, Scenario
from tests.helpers import loop_figures
from tests.helpers.processes import running
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow

FRAMEWORKS = ("mindspore", "paddle", "pytorch", "tensorflow2")


@dataclass(frozen=True)
class Framework:
    """A framework with the results of all its trainings."""

    name: str
    alone: RankResults
    pair: list[RankResults]

    @property
    def ranks(self) -> Iterator[tuple[int, RankResults]]:
        """The results of the single rank, then those of each of two ranks, with the number of the rank."""
        yield 0, self.alone
        yield from enumerate(self.pair)


@pytest.fixture(scope="module")
def run(
    repo: Path, framework_python: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Framework]:
    """A function that runs a framework's trainings on its first call and returns their results."""

    @cache
    def results(name: str) -> Framework:
        return Framework(name, *run_scenarios(name, framework_python(name), repo, tmp_path_factory.mktemp(name)))

    return results


@pytest.fixture(params=FRAMEWORKS)
def name(request: pytest.FixtureRequest, repo: Path) -> str:
    """PyTorch, and each other framework whose trainer or suites have changed since they passed."""
    catalog = Catalog.scan([repo])
    suites = [suite for suite in catalog.suites.values() if suite.framework == request.param]
    if request.param != "pytorch" and not trained.due(request.config, catalog, suites):
        pytest.skip(trained.SKIPPED)
    return str(request.param)


@pytest.fixture
def framework(name: str, run: Callable[[str], Framework]) -> Framework:
    """Each of them in turn."""
    return run(name)


def test_every_training_of_the_table_ends_as_declared(framework: Framework) -> None:
    seen, problems = set(), []
    for rank, results in framework.ranks:
        for name in results.scenarios.keys() & TABLE.keys():
            seen.add(name)
            found = _problems(framework, rank, results[name], name, TABLE[name])
            problems += [f"{name}, rank {rank}: {problem}" for problem in found]
    assert problems == []
    assert seen == set(TABLE)


def _problems(framework: Framework, rank: int, trained: Trained, name: str, scenario: Scenario) -> Iterator[str]:
    """Yield what differs from the scenario."""
    error = trained.error or ""
    if scenario.error:
        if scenario.error not in error and (rank or not error.startswith(scenario.error.partition(" ")[0])):
            yield f"the error is {error!r}"
        return
    if name in MISSING_ON_CPU.get(framework.name, ()):
        if "DeviceError: precision='" not in error:
            yield f"the error is {error!r}"
        return
    if error:
        yield error
        return
    if not all(np.isfinite(loss) for loss in trained.losses.values()):
        yield f"losses {trained.losses}"
    got = {field: trained.finished[field] for field in scenario.finished}
    if got != scenario.finished:
        yield f"FINISHED has {got}"
    if scenario.formula is not None:
        expected = toy_reference.train(framework.name, **scenario.formula)
        off = distance({key: trained.weights[key] for key in expected}, expected)
        if off > scenario.within:
            yield f"the weights are {off} away from those by hand"
    if scenario.near:
        other = framework.alone[scenario.near]
        loss, its_loss = (one.finished["final_loss"] for one in (trained, other))
        if abs(loss - its_loss) > max(scenario.within, 0.2) * abs(its_loss):
            yield f"the last loss is {loss}, and {its_loss} of {scenario.near}"
        off = distance(trained.weights, other.weights)
        if not 1e-5 < off < scenario.within:
            yield f"the weights are {off} away from those of {scenario.near}"
    if scenario.exact and trained.finished["final_metrics"] != (by_hand := _evaluated(trained.weights)):
        yield f"metrics {trained.finished['final_metrics']}, by hand {by_hand}"


def _evaluated(weights: Mapping[str, Any]) -> dict[str, Any]:
    values, labels = toy_data.samples(toy_data.EVAL, seed=1)
    end = {name: np.asarray(value) for name, value in weights.items()}
    hidden = np.maximum(values @ end["first.weight"] + end["first.bias"], 0)
    right = (hidden @ end["last.weight"] + end["last.bias"]).argmax(1) == labels
    return {"accuracy": pytest.approx(right.mean()), "count": toy_data.EVAL}


def test_a_mistake_in_the_training_by_hand_would_show() -> None:
    """The weights by hand depend on every setting that a scenario tests."""
    for name, scenario in TABLE.items():
        for control in scenario.controls:
            expected, other = (toy_reference.train("paddle", **how) for how in (scenario.formula or {}, control))
            assert distance(expected, other) > 10 * ROUNDING, name
    moved = distance(toy_reference.train("paddle"), toy_data.initial())
    assert moved > 1e-2, "the control of lr0"


def test_two_ranks_train_like_one_and_log_the_same(framework: Framework) -> None:
    one = framework.alone["strong"]
    for name in ("strong", "accumulated"):
        for rank in (framework.alone, *framework.pair):
            assert distance(rank[name].weights, one.weights) < ROUNDING
    for rank in framework.pair:
        assert rank["strong"].finished["final_metrics"] == one.finished["final_metrics"]
        assert rank["strong"].finished["measured_samples"] == one.finished["measured_samples"]
        # The ranks log at the end of their shorter epoch too.
        both = {step: loss for step, loss in rank["strong"].losses.items() if step in one.losses}
        assert both == pytest.approx(one.losses, rel=1e-4)
    for name, scenario in TABLE.items():
        if 2 in scenario.ranks and not scenario.error:
            first, second = (rank[name].finished for rank in framework.pair)
            for key in ("stop_reason", "steps", "samples", "final_metrics", "measured_samples", "final_loss"):
                assert first[key] == second[key], name


def test_statistics_are_averaged_over_ranks_at_each_evaluation(framework: Framework) -> None:
    def statistics(trained: Trained, kind: str = "") -> dict[str, Any]:
        return {name: value for name, value in trained.weights.items() if "statistics" in name and kind in name}

    for names in (("lr0",), ("resumed", "whole")):
        first, second = (statistics(rank.within(*names)) for rank in framework.pair)
        assert first, "the batch norm's statistics"
        assert distance(first, second) == 0
    expected = statistics(framework.alone["lr0"], "mean")
    assert len(expected) == 1
    assert distance(statistics(framework.pair[0]["lr0"], "mean"), expected) < ROUNDING
    assert distance(expected, {name: np.zeros_like(value) for name, value in expected.items()}) > 0.1, "the control"


def test_a_resumed_training_continues_bit_for_bit(framework: Framework) -> None:
    """The single rank's data can skip batches; those of two ranks are read again."""
    for _, rank in framework.ranks:
        whole, first, second = (rank.within("resumed", name) for name in ("whole", "first", "second"))
        assert "Stopped: asked to stop at batch 8" in (first.error or "")
        assert "FINISHED" not in first.names
        assert sorted(second.losses) == list(range(6, 15)), "from the checkpoint of step 5"
        assert second.losses == {step: loss for step, loss in whole.losses.items() if step > 5}
        for name in toy_data.initial():
            assert second.weights[name] == whole.weights[name]
        assert distance(second.weights, whole.weights) < 1e-6, "statistics, which PyTorch averages before it saves"
        for key in ("samples", "epochs"):
            assert second.finished[key] == whole.finished[key]
        assert rank.value("resumed", "left") == [f"toy_{framework.name}_CPU_1_1_1_round1.finished"]


def test_no_training_contradicts_itself(framework: Framework, tmp_path: Path) -> None:
    seen = 0
    for number, results in framework.ranks:
        for name, training in trainings(results.scenarios):
            seen += 1
            assert contradictions(tmp_path, number, training) == [], name
    assert seen >= 24


def trainings(results: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all finished trainings with the names of their scenarios."""
    if '"FINISHED"' in str(results.get("log", "")):
        yield name, dict(results)
    for key, inner in results.items():
        if isinstance(inner, dict) and "log" not in results:
            yield from trainings(inner, f"{name} {key}".strip())


def contradictions(folder: Path, rank: int, trained: dict[str, Any]) -> list[str]:
    """Return how the figures of one training contradict each other."""
    path = folder / f"rank{rank}.out.log"
    path.write_text(trained["log"])
    case = trained["case"]
    with path.open("rb") as log:
        return loop_figures.contradictions(perflog.read_records(log), case["config"], case["nnodes"] * case["nproc"])


def test_a_training_describes_itself(framework: Framework) -> None:
    for world, rank in ((1, framework.alone), (2, framework.pair[0])):
        (described,) = rank["strong"].of("INIT_END")
        assert described["parameters"] == sum(value.size for value in toy_data.initial().values())
        library = {"pytorch": "torch"}.get(framework.name, framework.name)
        assert described["libraries"][library] == described["framework_version"]
        assert (described["precision"], described["world_size"]) == ("fp32", world)
        end = rank["strong"].finished
        assert end["timing"]
        assert end["p_core"] > 0
        assert end["threads"] == 1


def test_the_tokens_of_batches_are_counted_before_their_preparation(framework: Framework) -> None:
    for _, rank in framework.ranks:
        padded, without = rank["padded"].finished, rank["strong"].finished
        assert (padded["padding_share"], padded["token_share"]) == (0.5, 0.75)
        assert (without["padding_share"], without["token_share"]) == (None, None), "the control"


# -- the whole process of a rank -----------------------------------------------------------------------------


def _environment(name: str, folder: Path, **settings: Any) -> dict[str, str]:
    path = folder / "case.json"
    path.write_text(json.dumps(toy_data.case(name, **settings)))
    return {"FLAGPERF_CASE": str(path), "FLAGPERF_LOG_DIR": str(folder)}


def _records(folder: Path, rank: int) -> list[Any]:
    with (folder / f"rank{rank}.out.log").open("rb") as stream:
        return list(perflog.read_records(stream))


@pytest.fixture
def toy(name: str, framework_python: Callable[[str], str]) -> tuple[str, list[str]]:
    """A framework and the command of its toy."""
    return name, [framework_python(name), str(HERE / f"toy_{name}.py")]


def test_a_program_ends_with_its_last_event_and_leaves_no_process(
    toy: tuple[str, list[str]], repo: Path, tmp_path: Path
) -> None:
    environment = _environment(toy[0], tmp_path, train_batch_size=16)
    ranks = run_ranks(toy[1], repo, tmp_path, 2, **environment)
    wait(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0]
    for rank in range(2):
        records = _records(tmp_path, rank)
        assert (records[0].event, records[-1].event) == ("INIT_START", "FINISHED")
        assert records[-1].value["init_time"] > 0.5, "init_time includes the start of Python and of the framework"
    assert _processes_with(str(tmp_path)) == []


@pytest.mark.parametrize("fault", ["raises", "killed"])
def test_when_a_rank_ends_the_other_ends_too(
    toy: tuple[str, list[str]], repo: Path, tmp_path: Path, fault: str
) -> None:
    at = {"stop_at": [1, 8]} if fault == "raises" else {"hang_at": [1, 8]}
    environment = _environment(toy[0], tmp_path, train_batch_size=16, **at)
    ranks = run_ranks(toy[1], repo, tmp_path, 2, **environment)
    if fault == "killed":
        _wait_for_step(tmp_path / "rank1.progress", 7)
        assert [rank.poll() for rank in ranks] == [None, None], "the control: a hanging rank ends nothing"
        ranks[1].send_signal(signal.SIGKILL)
    ranks[1].wait(120)
    ended = time.monotonic()
    wait(ranks)
    assert time.monotonic() - ended < 20
    assert ranks[1].returncode == (1 if fault == "raises" else -signal.SIGKILL)
    assert ranks[0].returncode in (1, -signal.SIGABRT), "some frameworks abort where a collective operation fails"
    if fault == "raises":
        last = _records(tmp_path, 1)[-1]
        assert (last.event, last.value["error"]) == ("FAILED", "asked to stop at batch 8")
    assert _records(tmp_path, 0)[-1].event != "FINISHED"
    assert _processes_with(str(tmp_path)) == []


def _wait_for_step(progress: Path, step: int) -> None:
    def reached() -> bool:
        beat = read_heartbeat(progress)
        return beat is not None and beat.step >= step

    until(reached, f"step {step}", 120)


def _processes_with(text: str) -> list[int]:
    """Return the processes whose environment contains ``text``, except zombies."""
    return [process.pid for process in running() if any(text in value for value in process.environment.values())]
