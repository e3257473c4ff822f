"""The fixtures of a case: its plan, hosts, outcomes and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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


def _no_suites(request: pytest.FixtureRequest) -> NoReturn:
    """Fail a test that uses a case in a tree without suites; elsewhere the test is parametrized with cases."""
    pytest.fail(f"no suites/ in {request.config.rootpath}; a test that uses a case needs a tree with suites", False)


@pytest.fixture
def selected(request: pytest.FixtureRequest) -> Selected:
    """The selected case with its vendor, scale and data."""
    _no_suites(request)


@pytest.fixture
def round_number(request: pytest.FixtureRequest) -> int:
    """The number of the round that this test judges."""
    _no_suites(request)


@pytest.fixture
def flagperf_run(request: pytest.FixtureRequest) -> Run:
    """The run that this test belongs to."""
    if request.config.getoption("setuponly", False):
        pytest.skip("--setup-only starts no training")
    run = request.config.stash.get(RUN, None)
    return run if run is not None else _no_suites(request)


@pytest.fixture
def case(selected: Selected) -> Case:
    """The case that this test judges."""
    return selected.case


@pytest.fixture
def plan(selected: Selected, flagperf_run: Run) -> Plan:
    """The plan of this case: its config, command and environment."""
    return _or_fail(lambda: flagperf_run.plan(selected))


@pytest.fixture
def cluster(selected: Selected, flagperf_run: Run) -> Sequence[Host]:
    """The hosts of this case."""
    return flagperf_run.engine.hosts[: selected.case.nnodes]


@pytest.fixture
def container(selected: Selected, flagperf_run: Run) -> Interpreter:
    """The Python of the ranks: the interpreter and its environment."""
    return _or_fail(lambda: flagperf_run.rounds.interpreter(selected))


@pytest.fixture
def training(request: pytest.FixtureRequest, selected: Selected, round_number: int, flagperf_run: Run) -> Outcome:
    """The outcome of one round; the first test that uses it runs the round."""
    _end_if_too_large(flagperf_run, selected, request.config)
    outcome = _or_fail(lambda: flagperf_run.rounds.outcome(selected, round_number))
    _remember(request.node, [outcome])
    return outcome


@pytest.fixture
def trainings(request: pytest.FixtureRequest, selected: Selected, flagperf_run: Run) -> list[Outcome]:
    """The outcomes of all rounds of the case."""
    _end_if_too_large(flagperf_run, selected, request.config)
    outcomes = _or_fail(lambda: [flagperf_run.rounds.outcome(selected, number) for number in selected.rounds])
    _remember(request.node, outcomes)
    return outcomes


@pytest.fixture
def measurements(trainings: list[Outcome]) -> list[Outcome]:
    """The outcomes of all rounds of a case that measures."""
    return trainings


@pytest.fixture
def siblings(trainings: list[Outcome]) -> list[Outcome]:
    """The outcomes of all rounds of a case with several processes."""
    return trainings


@pytest.fixture
def promised(trainings: list[Outcome]) -> list[Outcome]:
    """The outcomes of all rounds of a case for whose peaks the vendor promises a share."""
    return trainings


@pytest.fixture
def scaling(selected: Selected, trainings: list[Outcome], flagperf_run: Run) -> Scaling:
    """The rounds of a case with several cards, and the throughput of one card."""
    from pytest_flagperf.running.scaling import NoSpeedup

    try:
        return _or_fail(lambda: flagperf_run.scaling.measure(selected, trainings))
    except NoSpeedup as reason:
        pytest.skip(str(reason))


@pytest.fixture
def plugin_verdicts(trainings: list[Outcome]) -> list[Verdict]:
    """The verdicts of the installed plugins on all rounds of the case."""
    from pytest_flagperf.plugin.further_verdicts import of_plugins

    return of_plugins(trainings)


@pytest.fixture
def monitors(training: Outcome, selected: Selected, flagperf_run: Run) -> Mapping[str, Any]:
    """The samples of each host during the round."""
    return flagperf_run.rounds.samples(selected, training.round)


@pytest.fixture
def gates(request: pytest.FixtureRequest, flagperf_run: Run) -> Gates:
    """The checks of rounds beside the verdicts: no validity warning, and the accepted baseline."""
    from pytest_flagperf.running.gates import Gates

    return Gates(flagperf_run.settings, strict=_is_strict(request.config))


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Callable[[Iterable[Verdict]], None]:
    """A function that records verdicts, and fails the test with the sentences of the failed verdicts."""
    from pytest_flagperf.report.export.junit import judged

    def record(verdicts: Iterable[Verdict]) -> None:
        recorded = _with_expected(request.node, list(verdicts))
        request.node.stash.setdefault(VERDICTS, []).extend(recorded)
        request.node.user_properties.extend(judged(recorded))
        _fail_or_xfail(request.config, recorded)

    return record


def _with_expected(item: pytest.Item, verdicts: list[Verdict]) -> list[Verdict]:
    from pytest_flagperf.running.judging import expected_of, with_expected
    from pytest_flagperf.running.memory_end import left_out

    run, selected = item.config.stash.get(RUN, None), selected_of(item)
    if run is None or selected is None:
        return verdicts
    sources = expected_of(run.settings, str(selected.case))
    marked = with_expected(verdicts, sources, strict=_is_strict(item.config))
    reason = left_out(run, selected) if not all(verdict.ok for verdict in marked) else None
    return [one if one.ok or one.expected_failure else replace(one, expected_failure=reason) for one in marked]


def _end_if_too_large(run: Run, selected: Selected, config: pytest.Config) -> None:
    """End the test of a variant whose size is too large, because a smaller one did not fit into memory."""
    from pytest_flagperf.running.memory_end import not_started

    if reason := not_started(run, selected):
        (pytest.skip if config.getoption("runxfail", False) else pytest.xfail)(reason)


def _fail_or_xfail(config: pytest.Config, verdicts: list[Verdict]) -> None:
    failed = [verdict for verdict in verdicts if not verdict.ok]
    known = [verdict for verdict in failed if verdict.expected_failure is not None]
    expected = [f"{verdict.expected_failure}: {verdict.sentence}" for verdict in known]
    others = [verdict.sentence for verdict in failed if verdict.expected_failure is None]
    if expected and not others and not config.getoption("runxfail", False):
        pytest.xfail("; ".join(expected))
    if failed or not verdicts:
        lines = [*others, *(f"expected failure: {text}" for text in expected)]
        pytest.fail("\n".join(lines) or "no verdicts", pytrace=False)


def _is_strict(config: pytest.Config) -> bool:
    return bool(config.getini("strict"))


def _remember(item: pytest.Item, outcomes: list[Outcome]) -> None:
    from pytest_flagperf.report.export.junit import properties

    item.stash[OUTCOMES] = outcomes
    item.user_properties.extend(properties(outcomes))


def _or_fail(work: Callable[[], T]) -> T:
    """Return the result of the work; fail the test without a traceback for a problem that a user can fix."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.stored import WriteError

    try:
        return work()
    except (Problems, WriteError) as problems:
        message = str(problems)
    # Outside the handler: otherwise pytest would report the problem twice, as the failure and as its cause.
    pytest.fail(message, pytrace=False)
