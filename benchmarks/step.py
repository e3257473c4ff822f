"""The overhead of the training loop per step, compared with a hand-written step (``loop_steps.py``)."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from . import whole_run
from .section import REPO, Goal, Section, table, timed


def measure() -> Section:
    """Run the steps in the PyTorch environment of the suites."""
    with tempfile.TemporaryDirectory() as folder:
        python = whole_run.torch_python(whole_run.first_round(Path(folder)))
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    measured = json.loads(timed([python, "benchmarks/loop_steps.py"], environment=environment).stdout)
    steps = {name: (figures["bare"], figures["added"]) for name, figures in measured["steps"].items()}
    rows = []
    for name, (bare, added) in steps.items():
        like = ", as the small suites'" if name == "suite" else ""
        rows.append((f"{bare / 1000:.3g} ms{like}", f"{added:.0f} us ({added / bare:.2%})"))
    bare, added = steps["suite"]
    goals = [
        Goal("added to the shortest step", 50, steps["tiny"][1], "us", noise=0.2),
        Goal("added to a small suite's step", 1, 100 * added / bare, "%", noise=0.2),
    ]
    beside = f"A log point takes {measured['log_point'] / 1000:.1f} ms, which is shared among its 50 steps."
    return Section([table(("step by hand (median)", "the loop adds"), rows), beside], goals)
