"""Write a suite's reference from MLPerf's reference convergence points, a file rcps_NAME.json of mlperf-logging.

The points are the samples at which rounds of several batch sizes were evaluated at the target. They have no curves, so
the reference judges only whether a round reaches the target too early.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_flagperf.catalog import REFERENCE, Suite
from pytest_flagperf.commands import tree
from pytest_flagperf.config.module import load
from pytest_flagperf.kinds.training.verdicts.reference import Batch, Curves, Reference
from pytest_flagperf.problems import Problems
from pytest_flagperf.stored import write_text
from tools import run_tool
from tools.reference_curves import describe

REACHED = ("Epochs to converge", "samples to converge")
"""The names of the numbers of samples at which rounds reached the target, which differ between the files."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", metavar="MODEL:FRAMEWORK", help="the suite, such as llama31_8b:pytorch")
    parser.add_argument("points", metavar="FILE", type=Path, help="mlperf_logging/rcp_checker/training_*/rcps_*.json")


def run(arguments: argparse.Namespace) -> int:
    model, _, framework = arguments.suite.partition(":")
    suite = tree.catalog().suite(model, framework)
    try:
        reference = of_points(suite, json.loads(arguments.points.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise Problems([f"{arguments.points}: expected a file of reference convergence points: {error!r}"]) from error
    file = suite.reference_file(REFERENCE)
    write_text(file, reference.text())
    print("\n".join(describe(str(file), reference)))
    return 0


def of_points(suite: Suite, points: Mapping[str, Mapping[str, Any]]) -> Reference:
    """Return the reference of the suite's reference scale; MLPerf counts items of a batch, such as sequences."""
    own = load(suite.path / "config" / "_base.py").names
    per_item: Any = own["samples_per_item"].value if "samples_per_item" in own else 1
    batches = sorted((_batch(name, each, per_item) for name, each in points.items()), key=lambda one: one.global_batch)
    return Reference(
        suite.model, suite.framework, REFERENCE, suite.sample_unit, suite.scales[REFERENCE].target, tuple(batches)
    )


def _batch(name: str, points: Mapping[str, Any], per_item: int) -> Batch:
    """Return the rounds of one batch size: each crossed the target in the interval before its evaluation."""
    reached = points[next(name for name in REACHED if name in points)]
    interval = math.gcd(*reached)
    origin = f"{name}, {points['Platform']}, {points['Precision']}, {points['Hyperparams']}"
    return Batch(
        global_batch=points["BS"],
        shapes=(),
        seeds=(None,) * len(reached),
        runs=(origin,),
        to_target=tuple((items - interval / 2) * per_item for items in reached),
        interval=float(interval * per_item),
        metric=Curves((), ()),
        loss=Curves((), ()),
    )


if __name__ == "__main__":
    sys.exit(run_tool(sys.modules[__name__]))
