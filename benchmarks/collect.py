"""How long collecting takes: 1,000 to 10,000 cases, one process each; goal: linear, 1.5 times plain pytest.

python benchmarks/collect.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUITE = """
sample_unit = "samples"
[metric]
name = "accuracy"
direction = "higher"
unit = "fraction"
range = [0, 1]
[scales.reference]
target = 0.9
[scales.small]
target = 0.5
"""
VENDOR = """
name = "Acme"
device = "cpu"
backend = "gloo"
runtime = "host"
scale = "{scale}"
shapes = ["1x1"]
lease = "host"
[chips.X1]
devices_per_host = 64
"""
TEST = "from pytest_flagperf.benchmark import TrainingBenchmark\nclass TestIt(TrainingBenchmark): pass\n"
SHAPES = [f"{hosts}x{cards}" for hosts in range(1, 11) for cards in range(1, 11)]


def tree(root: Path, suites: int, scale: str) -> None:
    """A tree of suites that all run at 100 shapes."""
    (root / "vendors" / "acme").mkdir(parents=True)
    (root / "vendors" / "acme" / "vendor.toml").write_text(VENDOR.format(scale=scale))
    for number in range(suites):
        model = root / "suites" / f"model{number:03}"
        config = model / "pytorch" / "config"
        config.mkdir(parents=True)
        (model / f"test_model{number:03}.py").write_text(TEST)
        (model / "pytorch" / "suite.toml").write_text(SUITE)
        (config / "_base.py").write_text("train_batch_size = 8\nlearning_rate = 0.1\n")
        (config / "mutable_params.py").write_text("mutable_params = []\n")
        if scale == "reference":
            tuned = root / "vendors" / "acme" / f"model{number:03}-pytorch" / "config"
            tuned.mkdir(parents=True)
            (tuned / "config_common.py").write_text("learning_rate = 0.2\n")
            for shape in SHAPES:
                (tuned / f"config_X1x{shape}.py").write_text("from config_common import *\ntrain_batch_size = 4\n")


def collect(root: Path) -> tuple[float, int]:
    """Seconds of one whole ``pytest --collect-only``, and the number of items."""
    command = [sys.executable, "-m", "pytest", "suites", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    command += ["--vendor=acme", "--nodes=" + ",".join(SHAPES)]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    return seconds, sum(int(line.rsplit(":", 1)[1]) for line in done.stdout.splitlines() if ".py: " in line)


def main() -> None:
    """Measure both scales at four sizes, three times each."""
    print(f"{'scale':10} {'cases':>7} {'items':>7} {'min s':>7} {'median s':>9} {'ms/case':>8}")
    for scale in ("small", "reference"):
        for suites in (10, 25, 50, 100):
            with tempfile.TemporaryDirectory() as folder:
                root = Path(folder)
                tree(root, suites, scale)
                runs = [collect(root) for _ in range(3)]
            seconds = [run[0] for run in runs]
            cases = suites * len(SHAPES)
            print(
                f"{scale:10} {cases:7} {runs[0][1]:7} {min(seconds):7.2f} {statistics.median(seconds):9.2f}"
                f" {1000 * statistics.median(seconds) / cases:8.3f}"
            )


if __name__ == "__main__":
    main()
