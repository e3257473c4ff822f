"""The kinds of suites, a folder each. The layers below find them by name, with ``kind_of``."""

from __future__ import annotations

from ..kind import CaseWords, Criterion, Kind
from .measurement import MeasurementKind
from .training import TrainingKind

__all__ = ["CaseWords", "Criterion", "Kind", "MeasurementKind", "TrainingKind"]


def flagperf_kinds() -> list[Kind]:
    """Return the kinds of pytest-flagperf, as the hook of a package does."""
    return [TrainingKind(), MeasurementKind()]
