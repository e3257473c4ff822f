"""Fixtures for the tests of the code that runs on hosts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as lab:
        yield lab
