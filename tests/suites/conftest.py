"""A slow test of a suite runs if the suite changed since it passed, one of many suites if any did: tests/trained.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_flagperf.catalog import Catalog, Suite
from tests import trained

REPO = Path(__file__).resolve().parents[2]


@pytest.hookimpl(trylast=True)  # after the selection by -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    slow = [item for item in items if item.path.parent == here and item.get_closest_marker("slow")]
    if slow:
        catalog = Catalog.scan([REPO])
        suites = list(catalog.suites.values())
        due = {suite.path for suite in trained.due(config, catalog, suites)}
        for item in slow:
            suite = _suite(item)
            if not due or (suite and suite not in due):
                item.add_marker(pytest.mark.skip(reason=trained.SKIPPED))


def _suite(item: pytest.Item) -> Path | None:
    """Return the folder of the suite that is a parameter of the test, if there is one."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    paths = (value.path if isinstance(value, Suite) else value for value in values)
    return next((path for path in paths if isinstance(path, Path)), None)
