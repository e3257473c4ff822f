"""What tests take: a case, its plan, hosts and rounds, and a way to judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest

from .items import selected_of
from .shared import OUTCOMES, RUN, VERDICTS

if TYPE_CHECKING:
    from pytest_flagperf.case import Case
    from pytest_flagperf.hosts import Host
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.running.gates import Gates
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
    return _or_fail(lambda: flagperf_run.scaling.measure(selected, trainings))


@pytest.fixture
def monitors(training: Outcome, selected: Selected, flagperf_run: Run) -> Mapping[str, Any]:
    """What was sampled on each host while the round ran."""
    return flagperf_run.rounds.samples(selected, training.round)


@pytest.fixture
def gates(request: pytest.FixtureRequest, flagperf_run: Run) -> Gates:
    """The checks of rounds beside the verdicts: no validity warning, and the accepted baseline."""
    from pytest_flagperf.running.gates import Gates

    return Gates(flagperf_run.settings, strict=_is_strict(request.config))


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Callable[[Iterable[Verdict]], None]:
    """Record verdicts; those that are not ok are the failure, as sentences."""
    from pytest_flagperf.report.export.junit import judged

    def record(verdicts: Iterable[Verdict]) -> None:
        found = _with_expected(request.node, list(verdicts))
        request.node.stash.setdefault(VERDICTS, []).extend(found)
        request.node.user_properties.extend(judged(found))
        _end(request.config, found)

    return record


def _with_expected(item: pytest.Item, found: list[Verdict]) -> list[Verdict]:
    from pytest_flagperf.running.judging import expected_of, with_expected

    run, one = item.config.stash.get(RUN, None), selected_of(item)
    if run is None or one is None:
        return found
    return with_expected(found, expected_of(run.settings, one.vendor, str(one.case)), strict=_is_strict(item.config))


def _end(config: pytest.Config, found: list[Verdict]) -> None:
    failed = [verdict for verdict in found if not verdict.ok]
    expected = [f"{verdict.expected}: {verdict.sentence}" for verdict in failed if verdict.expected is not None]
    others = [verdict.sentence for verdict in failed if verdict.expected is None]
    if expected and not others and not config.getoption("runxfail", False):
        pytest.xfail("; ".join(expected))
    if failed or not found:
        told = [*others, *(f"expected, {text}" for text in expected)]
        pytest.fail("\n".join(told) or "nothing was judged", pytrace=False)


def _is_strict(config: pytest.Config) -> bool:
    return bool(config.getini("strict"))


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
