"""The tests of every case, which suites import from here; each kind of suites has its own."""

from __future__ import annotations

from .kinds.benchmark import Benchmark
from .kinds.measurement.benchmark import MeasurementBenchmark
from .kinds.training.benchmark import TrainingBenchmark

__all__ = ["Benchmark", "MeasurementBenchmark", "TrainingBenchmark"]
