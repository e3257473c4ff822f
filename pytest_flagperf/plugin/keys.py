"""What the parts of the plugin keep on pytest's objects for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.running.run import Run

RUN: pytest.StashKey[Run] = pytest.StashKey()
SESSION: pytest.StashKey[pytest.Session] = pytest.StashKey()
BEGUN: pytest.StashKey[bool] = pytest.StashKey()
"""Set when it is known what will run: whether any of it takes a case."""
VERDICTS: pytest.StashKey[list[Verdict]] = pytest.StashKey()
OUTCOMES: pytest.StashKey[list[Outcome]] = pytest.StashKey()
