"""A whole run of pytest with one local round of two ranks, compared with the same training under torchrun alone.

The training is a small suite with a fixed seed, so both run the same steps. The two alternate.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from flagperf_driver.layout import CASE
from pytest_flagperf.stored.round_dir import RoundDir

from .section import REPO, Goal, Section, table, timed

MODEL = "resnet50"
MODELS = {"paddle": "bert"}
"""The models of frameworks that do not have the usual one."""
PAIRS = 5


def by_pytest(reports: Path, framework: str = "pytorch") -> float:
    """Return the seconds of a pytest command."""
    options = ["--nodes=1x2", "-k", f"converges and {framework}", f"--reports={reports}"]
    return timed([sys.executable, "-m", "pytest", f"suites/{MODELS.get(framework, MODEL)}", *options]).wall_s


def by_torchrun(round_: Path) -> float:
    """Return the seconds of torchrun with the same program, case and Python."""
    environment = {
        **os.environ,
        "FLAGPERF_CASE": str(round_ / CASE),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "suites")]),
    }
    program = REPO / "suites" / MODEL / "pytorch" / "run_pretraining.py"
    command = [python_of(round_), "-m", "torch.distributed.run", "--nproc-per-node=2", str(program)]
    return timed(command, environment=environment).wall_s


def python_of(round_: Path) -> str:
    """Return the Python of a round's ranks."""
    return RoundDir(round_).read_plan().python


def first_round(reports: Path, framework: str = "pytorch") -> Path:
    """Run a round that is not measured; it builds the environment and fills the caches."""
    by_pytest(reports, framework)
    return next(reports.glob("run*/*/round1"))


def measure() -> Section:
    """Compare pairs of runs."""
    with tempfile.TemporaryDirectory() as folder:
        round_ = first_round(Path(folder))
        pairs = [(by_pytest(Path(folder)), by_torchrun(round_)) for _ in range(PAIRS)]
    more = [ours - theirs for ours, theirs in pairs]
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    pairwise = f"difference, median of {PAIRS} pairs ({min(more):.2f} to {max(more):.2f})"
    rows = [("pytest", f"{ours:.2f}"), ("torchrun", f"{theirs:.2f}"), (pairwise, f"{statistics.median(more):+.2f}")]
    goal = Goal("pytest beyond torchrun", 1.0, statistics.median(more), "s", noise=0.3)
    return Section([table(("", "seconds"), rows)], [goal])
