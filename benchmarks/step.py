"""The overhead of the training loop per step, compared with a hand-written step (``loop_steps.py``)."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from . import whole_run
from .section import REPO, Goal, Section, table, timed

FRAMEWORKS = ("pytorch", "paddle", "tensorflow2", "mindspore")


def measure() -> Section:
    """Run the steps of each framework in its environment of the suites."""
    rows, goals, points = [], [], []
    for framework in FRAMEWORKS:
        measured = _measured(framework)
        steps = {name: (figures["bare"], figures["added"]) for name, figures in measured["steps"].items()}
        for name, (bare, added) in steps.items():
            like = ", as the small suites'" if name == "suite" else ""
            rows.append((framework, f"{bare / 1000:.3g} ms{like}", f"{added:.0f} us ({added / bare:.2%})"))
        bare, added = steps["suite"]
        goals += [
            Goal(f"{framework}: added to the shortest step", 50, steps["tiny"][1], "us", noise=0.2),
            Goal(f"{framework}: added to a small suite's step", 1, 100 * added / bare, "%", noise=0.2),
        ]
        points.append(f"{measured['log_point'] / 1000:.1f} ms in {framework}")
    beside = f"A log point, which is shared among its 50 steps, takes {', '.join(points)}."
    return Section([table(("framework", "step by hand (median)", "the loop adds"), rows), beside], goals)


def _measured(framework: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        python = whole_run.python_of(whole_run.first_round(Path(folder), framework))
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = timed([python, "benchmarks/loop_steps.py", framework], environment=environment)
    return json.loads(done.stdout.splitlines()[-1])
