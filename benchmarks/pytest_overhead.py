"""A whole pytest run of a local 2-rank round against the same training under bare torchrun; goal <= torchrun + 1 s.

    .venv/bin/python benchmarks/pytest_overhead.py [pairs]

The training is a small-scale suite with a fixed seed, so both do the same steps. Runs alternate; the environment must
have been built before (``make bench``), and the rest of the machine should be idle.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
MODEL = "resnet50"


def by_pytest(reports: Path) -> float:
    """Seconds of pytest, from the shell and back."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        f"suites/{MODEL}",
        "--nodes=1x2",
        "-k",
        "converges",
        f"--reports={reports}",
    ]
    return timed(command, dict(os.environ))


def by_torchrun(case: Path) -> float:
    """Seconds of torchrun on the same program, case and Python."""
    plan = json.loads((case / "plan.json").read_text())
    python = plan["python"]
    environment = dict(
        os.environ, FLAGPERF_CASE=str(case / "case.json"), OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE"
    )
    environment["PYTHONPATH"] = os.pathsep.join([str(REPO), str(REPO / "suites")])
    program = REPO / "suites" / MODEL / "pytorch" / "run_pretraining.py"
    return timed([python, "-m", "torch.distributed.run", "--nproc-per-node=2", str(program)], environment)


def timed(command: list[str], environment: dict[str, str]) -> float:
    """Wall seconds of a command that has to succeed."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return time.perf_counter() - start


def main() -> None:
    """Alternate the two and print both and their difference, pair by pair."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder)
        by_pytest(reports)  # warm-up: page cache, bytecode
        case = next(reports.glob("run*/*/round1"))
        results = [(by_pytest(reports), by_torchrun(case)) for _ in range(pairs)]
    for ours, theirs in results:
        print(f"pytest {ours:6.2f} s   torchrun {theirs:6.2f} s   difference {ours - theirs:+.2f} s")
    ours, theirs = (statistics.median(column) for column in zip(*results, strict=True))
    difference = statistics.median(a - b for a, b in results)
    print(f"medians: pytest {ours:.2f} s, torchrun {theirs:.2f} s, difference of pairs {difference:+.2f} s")


if __name__ == "__main__":
    main()
