"""A slow test of one suite runs if the suite is one of ``make bench`` or changed since it passed: tests/trained.py."""

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
        unchanged = {suite.path for suite in suites} - {suite.path for suite in trained.due(config, catalog, suites)}
        for item in slow:
            if _suite(item) in unchanged:
                item.add_marker(pytest.mark.skip(reason=trained.SKIPPED))


def _suite(item: pytest.Item) -> Path | None:
    """Return the folder of the suite that is a parameter of the test, if there is one."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    paths = (value.path if isinstance(value, Suite) else value for value in values)
    return next((path for path in paths if isinstance(path, Path)), None)
