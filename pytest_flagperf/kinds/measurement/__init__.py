"""A measurement: figures of the machine, such as the bandwidth of its memory."""

from __future__ import annotations

from pathlib import Path

from flagperf_driver import options
from pytest_flagperf.kind import Kind

from .suite import MeasurementTable


class MeasurementKind(Kind):
    """``kind = "measurement"``."""

    name = "measurement"
    table = MeasurementTable
    program = "run_measurement.py"
    driver = ("measuring", "training")
    guide = "docs/measurements.md"

    def defaults(self, framework: str, driver: Path) -> list[Path]:
        return options.files(framework, driver, measures=True)
