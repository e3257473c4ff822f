"""A training: a model is trained to a target, and its throughput is measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flagperf_driver import options
from pytest_flagperf.kind import Kind

from .suite import TrainingTable

if TYPE_CHECKING:
    from pytest_flagperf.case import Shape
    from pytest_flagperf.catalog import Suite
    from pytest_flagperf.config import Resolved


class TrainingKind(Kind):
    """``kind = "training"``."""

    name = "training"
    table = TrainingTable
    program = "run_pretraining.py"
    driver = ("training",)
    converges = True
    needs_config = True
    guide = "docs/models.md"

    def defaults(self, framework: str, driver: Path) -> list[Path]:
        return options.files(framework, driver)

    def check(self, suite: Suite, scale: str, shape: Shape, resolved: Resolved) -> tuple[Resolved, list[str]]:
        from .plan import check

        return check(suite, scale, shape, resolved)
