"""The flops_per_sample of every suite and scale are three times the counted forward pass; the MFU uses them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pytest_flagperf.catalog import Catalog, Scale

HERE = Path(__file__).parent
SUITES = [suite for suite in Catalog.scan([HERE.parents[1]]).suites.values() if suite.framework == "pytorch"]
SCALES = [(suite.path, scale) for suite in SUITES for scale in suite.scales.values()]
IDS = [f"{path.parent.name}-{scale.name}" for path, scale in SCALES]
WITHIN = 5e-4
"""Tolerance: the count is exact, suite.toml has four digits of it or more."""
Count = Callable[[Path], dict[str, float]]


@pytest.fixture(scope="module")
def counted(suite_python: Callable[[Path], str]) -> Count:
    """Return a function that counts a suite's forward pass of one sample by scale; each suite is counted once."""

    @cache
    def count(suite: Path) -> dict[str, float]:
        scales = [scale.name for path, scale in SCALES if path == suite]
        argv = [suite_python(suite), "-B", str(HERE / "flops.py"), str(suite), *scales]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        flops: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return flops

    return count


def problem(declared: float | None, forward: float) -> str | None:
    """Return the problem of a suite's flops_per_sample, None if they are right."""
    if declared is None:
        return f"suite.toml has no flops_per_sample; three forward passes are {3 * forward:.5g}"
    if abs(declared / (3 * forward) - 1) > WITHIN:
        return f"suite.toml has flops_per_sample = {declared:.5g}; three forward passes are {3 * forward:.5g}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize(("path", "scale"), SCALES, ids=IDS)
def test_flops_are_three_counted_forward_passes(counted: Count, path: Path, scale: Scale) -> None:
    forward = counted(path)[scale.name]
    assert problem(scale.flops_per_sample, forward) is None
    others = [other.flops_per_sample for other_path, other in SCALES if other_path == path and other is not scale]
    for wrong in (*others, forward, 2 * forward, 3.003 * forward, 1.5 * forward, None):
        assert problem(wrong, forward) is not None, f"{wrong} passes for three times {forward}"


def test_every_suite_is_counted() -> None:
    folders = {path.parent for path in (HERE.parents[1] / "suites").glob("*/pytorch/suite.toml")}
    assert {path for path, _ in SCALES} == folders
