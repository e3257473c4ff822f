"""The time of collecting 1,000 to 10,000 cases, compared with the same number of plain parametrized tests."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from tests.helpers.trees import PLAIN_SUITE_TOML, PLAIN_VENDOR_TOML, write

from .section import PYTEST, Goal, Section, Took, table, timed

SIZES = (10, 25, 50, 100)
"""Numbers of suites with 100 cases each."""
PAIRS = 3

OUTPUTS = {"without the header": ["-qq"], "with the header": ["-o", "verbosity_test_cases=-2"]}
"""Options that print the number of items of each file; printing the items would take longer than collecting them."""

PLAIN = """
import pytest
class TestIt:
    @pytest.mark.parametrize("case", range(100))
    def test_one(self, case): pass
    @pytest.mark.parametrize("case", range(100))
    def test_two(self, case): pass
    @pytest.mark.parametrize("case", range(99))
    def test_three(self, case): pass
"""
TEST = "from pytest_flagperf.benchmark import TrainingBenchmark\nclass TestIt(TrainingBenchmark): pass\n"
SHAPES = [f"{hosts}x{cards}" for hosts in range(1, 11) for cards in range(1, 11)]


def tree(root: Path, suites: int, scale: str) -> None:
    """Write a tree of suites with 100 shapes each."""
    vendor = PLAIN_VENDOR_TOML.format(name="Acme", scale=scale, chip="X1")
    write(root, "vendors/acme/vendor.toml", vendor.replace('"device"', '"host"').replace("host = 8", "host = 64"))
    for number in range(suites):
        name = f"model{number:03}"
        write(root, f"suites/{name}/test_{name}.py", TEST)
        write(root, f"suites/{name}/plain/suite.toml", PLAIN_SUITE_TOML)
        write(root, f"suites/{name}/plain/config/_base.py", "train_batch_size = 8\nlearning_rate = 0.1\n")
        write(root, f"suites/{name}/plain/config/mutable_params.py", "mutable_params = []\n")
        if scale == "reference":
            tuned = f"vendors/acme/{name}-plain/config"
            write(root, f"{tuned}/config_common.py", "learning_rate = 0.2\n")
            for shape in SHAPES:
                write(root, f"{tuned}/config_X1x{shape}.py", "from config_common import *\ntrain_batch_size = 4\n")


def plain_tree(root: Path, files: int) -> None:
    """Write the same number of tests without this plugin."""
    (root / "suites").mkdir()
    for number in range(files):
        (root / "suites" / f"test_plain{number:03}.py").write_text(PLAIN)


def collect(root: Path, output: str, *options: str) -> tuple[Took, int]:
    """Run ``pytest --collect-only`` and return its time and the number of items."""
    took = timed([*PYTEST, "suites", "--collect-only", *OUTPUTS[output], *options], root)
    return took, sum(int(line.rsplit(":", 1)[1]) for line in took.stdout.splitlines() if ".py: " in line)


def ours(suites: int, scale: str, output: str) -> tuple[Took, int]:
    """Collect a new tree of so many suites."""
    with tempfile.TemporaryDirectory() as folder:
        tree(Path(folder), suites, scale)
        return collect(Path(folder), output, "--vendor=acme", "--nodes=" + ",".join(SHAPES))


def plain(files: int, output: str) -> tuple[Took, int]:
    """Collect a new tree of plain tests, without our plugin."""
    with tempfile.TemporaryDirectory() as folder:
        plain_tree(Path(folder), files)
        return collect(Path(folder), output, "-p", "no:flagperf")


def measure() -> Section:
    """Measure both scales at four sizes, and the largest beside plain pytest, by turns."""
    rows = []
    for suites in SIZES:
        took = {scale: ours(suites, scale, "with the header") for scale in ("small", "reference")}
        seconds = [f"{took[scale][0].wall_s:.2f} s" for scale in took]
        rows.append((f"{suites * len(SHAPES):,}", f"{took['small'][1]:,}", *seconds))
    compared = [beside_plain(SIZES[-1], PAIRS, output) for output in OUTPUTS]
    times = [row for _, both in compared for row in both]
    return Section(
        [
            table(("cases", "items", "small scale", "reference scale, one config file each"), rows),
            table((f"{SIZES[-1] * 299:,} items", f"CPU time, median of {PAIRS}"), times),
        ],
        [goal for goal, _ in compared],
    )


def beside_plain(suites: int, pairs: int, output: str) -> tuple[Goal, list[tuple[str, str]]]:
    """Return the ratio of the CPU times of collecting with and without this plugin, the median of alternating pairs."""
    took = [(ours(suites, "small", output)[0].cpu_s, plain(suites, output)[0].cpu_s) for _ in range(pairs)]
    mine, theirs = (statistics.median(column) for column in zip(*took, strict=True))
    ratio = statistics.median(ours_s / plain_s for ours_s, plain_s in took)
    goal = Goal(f"CPU time {output}, times that of plain pytest", 1.5, ratio, noise=0.1)
    return goal, [(f"pytest-flagperf, {output}", f"{mine:.2f} s"), (f"plain pytest, {output}", f"{theirs:.2f} s")]
