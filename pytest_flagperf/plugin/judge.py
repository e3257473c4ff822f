"""How verdicts become the end of a test: a failure in sentences, or one that was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pytest

from .items import selected_of
from .keys import RUN, VERDICTS

if TYPE_CHECKING:
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.running.gates import Gates
    from pytest_flagperf.running.run import Run


@pytest.fixture
def gates(request: pytest.FixtureRequest, flagperf_run: Run) -> Gates:
    """What rounds must get past: nothing bent them, and the accepted baseline."""
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
