"""What the far side's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    left = lab.left()
    lab.close()
    for stream in (lab.agent.stdin, lab.agent.stdout):
        if stream is not None and not stream.closed:
            stream.close()
    lab.agent.wait(10)
    assert left == [], "the test left processes of its ranks"
