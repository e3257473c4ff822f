"""The limits of a step by the rates of this core are never above the measured step of three models."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.catalog import Catalog
from pytest_flagperf.results.measured.limits import COMPUTE, MachineRates, Place, StepWork, of_step
from tests.suites import programs

CATALOG = Catalog.scan([Path(__file__).parents[2]])
MODELS = ("bert", "resnet50", "transformer")
FASTER = 20
"""A machine of which a core was measured so many times too slow cannot be that of the steps."""


@pytest.mark.slow
@pytest.mark.alone  # steps and rates are measured
def test_no_limit_is_above_the_measured_step(suite_python: Callable[[Path], str]) -> None:
    suites = {CATALOG.suite(model, "pytorch").path: CATALOG.suite(model, "pytorch") for model in MODELS}
    tasks: dict[Path, list[Any]] = {path: [] for path in suites}
    results = programs.run(suite_python, tasks, "limits")
    for path in suites:
        got = results[path]
        scale = suites[path].scales["small"]
        assert scale.flops_per_sample is not None
        work = StepWork(
            Place("cpu", "CPU", "pytorch", frozenset(["localhost"]), 1, 1),
            "fp32",
            got["seconds"],
            got["samples"],
            flops=scale.flops_per_sample * got["samples"],
            bytes=got["least"],
        )
        rates = MachineRates(got["flops"], got["bytes"])
        limits = of_step(work, rates)
        assert limits is not None
        assert limits.above == (), f"{path.parent.name}: {limits}"
        assert limits.share(limits.times[COMPUTE]) > 0.1, f"{path.parent.name}: {limits}"
        control = of_step(work, replace(rates, flops=got["flops"] / FASTER))
        assert control is not None
        assert control.above == (COMPUTE,)
