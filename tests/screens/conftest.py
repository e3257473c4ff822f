"""The browser as tests get it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.screens import browser as browsers

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Without one its tests are skipped, loudly; where skips count as errors they fail."""
    problem = browsers.missing()
    if problem:
        text = f"NO BROWSER ON THIS MACHINE, so nobody looks at the reports: {problem}"
        if request.config.getini("strict"):
            pytest.fail(text, pytrace=False)
        pytest.skip(text)
    with browsers.browser() as started:
        yield started


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept: $FLAGPERF_TEST_PICTURES, else a folder of pytest's own."""
    given = os.environ.get("FLAGPERF_TEST_PICTURES")
    folder = Path(given).resolve() if given else tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
