"""What tests take: a case, its plan, hosts and rounds, and a way to judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest

from .keys import OUTCOMES, RUN

if TYPE_CHECKING:
    from pytest_flagperf.case import Case
    from pytest_flagperf.hosts import Host
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.running.run import Run
    from pytest_flagperf.running.scaling import Scaling
    from pytest_flagperf.runtime import Interpreter
    from pytest_flagperf.selection import Selected

T = TypeVar("T")


def _none_selected(request: pytest.FixtureRequest) -> NoReturn:
    """End a test that takes a case where there is none: in a tree with suites it is given one for each."""
    pytest.fail(
        f"{request.config.rootpath} has no suites/: a test that takes a case is run in a tree with suites", False
    )


@pytest.fixture
def selected(request: pytest.FixtureRequest) -> Selected:
    """The case as the run selected it."""
    _none_selected(request)


@pytest.fixture
def round_number(request: pytest.FixtureRequest) -> int:
    """The round that this test is about."""
    _none_selected(request)


@pytest.fixture
def flagperf_run(request: pytest.FixtureRequest) -> Run:
    """The run that this test is part of."""
    run = request.config.stash.get(RUN, None)
    return run if run is not None else _none_selected(request)


@pytest.fixture
def case(selected: Selected) -> Case:
    """The case that this test is about."""
    return selected.case


@pytest.fixture
def plan(selected: Selected, flagperf_run: Run) -> Plan:
    """What exactly runs where for this case."""
    return _or_fail(lambda: flagperf_run.plans.plan(selected))


@pytest.fixture
def cluster(selected: Selected, flagperf_run: Run) -> Sequence[Host]:
    """The hosts of this case."""
    return flagperf_run.engine.hosts[: selected.case.nnodes]


@pytest.fixture
def container(selected: Selected, flagperf_run: Run) -> Interpreter:
    """Where the ranks' Python lives: the interpreter and its environment."""
    return _or_fail(lambda: flagperf_run.rounds.interpreter(selected))


@pytest.fixture
def training(request: pytest.FixtureRequest, selected: Selected, round_number: int, flagperf_run: Run) -> Outcome:
    """The outcome of one round; it runs once, whoever asks first."""
    outcome = _or_fail(lambda: flagperf_run.rounds.outcome(selected, round_number))
    _remember(request.node, [outcome])
    return outcome


@pytest.fixture
def trainings(request: pytest.FixtureRequest, selected: Selected, flagperf_run: Run) -> list[Outcome]:
    """The outcomes of all rounds of the case."""
    outcomes = _or_fail(lambda: [flagperf_run.rounds.outcome(selected, number) for number in selected.rounds])
    _remember(request.node, outcomes)
    return outcomes


@pytest.fixture
def scaling(selected: Selected, trainings: list[Outcome], flagperf_run: Run) -> Scaling:
    """The rounds of a case of many cards, and what one card does."""
    return _or_fail(lambda: flagperf_run.scaling.scaling(selected, trainings))


@pytest.fixture
def monitors(training: Outcome, selected: Selected, flagperf_run: Run) -> Mapping[str, Any]:
    """What was sampled on each host while the round ran."""
    return flagperf_run.rounds.samples(selected, training.round)


def _remember(item: pytest.Item, outcomes: list[Outcome]) -> None:
    from pytest_flagperf.report.export.junit import properties

    item.stash[OUTCOMES] = outcomes
    item.user_properties.extend(properties(outcomes))


def _or_fail(work: Callable[[], T]) -> T:
    """The work's result; a problem that a user can mend is a failure in sentences, not a traceback."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.stored import WriteError

    try:
        return work()
    except (Problems, WriteError) as problems:
        said = str(problems)
    # Not in the handler: pytest would tell the problem twice, as the failure and as its cause.
    pytest.fail(said, pytrace=False)
