"""The fixtures with the browser and the folder of pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.needs import require
from tests.screens import browser as browsers

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """The browser; without a browser the tests are skipped with a message, or fail with --strict."""
    require(request.config, browsers.missing(), "NO BROWSER: the reports are not tested: ")
    with browsers.browser() as started:
        yield started


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of screenshots: $FLAGPERF_TEST_PICTURES, else a temporary folder of pytest."""
    given = os.environ.get("FLAGPERF_TEST_PICTURES")
    folder = Path(given).resolve() if given else tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
