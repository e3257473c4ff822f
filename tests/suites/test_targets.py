"""Each small target is three standard deviations below the mean of ten seeds, by the tables in the suites' READMEs."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, Suite
from pytest_flagperf.plan import make_plan

REPO = Path(__file__).resolve().parents[2]
SUITES = [suite for suite in Catalog.scan([REPO]).suites.values() if "small" in suite.scales]
SEEDS, DEVIATIONS = 10, 3
_ROW = re.compile(r"^\| (\d+) \| ([\d.]+) \| (\d+) \| ([\d.]+) \| (\d+) \|$", re.MULTILINE)
LATEST = 0.8
"""Each seed must reach the target within this share of max_steps."""
_CHECKED = re.compile(r"^\| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Calibration:
    """The trainings in a suite's README from which its target was derived."""

    seeds: tuple[int, ...]
    reached: dict[str, tuple[float, ...]]
    """By shape, the metric at the end of trainings of full length."""
    checked: tuple[int, ...]
    """Seeds of other trainings, which reached the target."""
    last_step: int
    """The latest step at which one of them reached the target."""

    @classmethod
    def read(cls, text: str) -> Calibration:
        rows = _ROW.findall(text)
        checks = _CHECKED.findall(text)
        reached = {shape: tuple(float(row[place]) for row in rows) for shape, place in (("1x1", 1), ("1x2", 3))}
        seeds, checked = (tuple(int(row[0]) for row in table) for table in (rows, checks))
        return cls(seeds, reached, checked, max((int(step) for row in checks for step in row[1:]), default=0))

    def problems(self, target: float, sign: int, max_steps: int) -> list[str]:
        problems = [f"{len(seeds)} seeds" for seeds in (self.seeds, self.checked) if len({*seeds}) < SEEDS]
        if twice := {*self.seeds} & {*self.checked}:
            problems.append(f"seeds {twice} twice")
        for shape, values in self.reached.items():
            limit = statistics.fmean(values) - sign * DEVIATIONS * statistics.stdev(values) if len(values) > 1 else 0.0
            problems += [f"{shape}: target {target}, limit {limit:.4f}"] if (limit - target) * sign < 0 else []
        if self.last_step > LATEST * max_steps:
            problems.append(f"step {self.last_step} of {max_steps}")
        return problems


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.model)
def test_a_small_target_is_three_deviations_below_the_mean_of_ten_seeds(suite: Suite) -> None:
    case = Case.parse(f"{suite.name}:CPU:1:1:1")
    steps = make_plan(Catalog.scan([REPO]), case, vendor="cpu", scale="small").config["max_steps"]
    calibration = Calibration.read((suite.path / "README.md").read_text())
    sign = 1 if suite.metric.direction == "higher" else -1
    assert calibration.problems(suite.scales["small"].target, sign, steps) == []


def test_an_insufficient_table_is_reported() -> None:
    """The control: each kind of insufficient table."""
    values = [0.95 + 0.002 * (seed % 3) for seed in range(SEEDS)]
    rows = [f"| {seed} | {value} | 60 | {value} | 50 |" for seed, value in enumerate(values, 1)]
    checks = [f"| {seed} | 70 | 80 |" for seed in range(11, 21)]
    good = "\n".join([*rows, *checks])
    assert Calibration.read(good).problems(0.94, 1, 100) == []
    for text, target, steps, words in [
        (good, 0.951, 100, "limit"),
        ("\n".join([*rows[1:], *checks]), 0.94, 100, "9 seeds"),
        ("\n".join([*rows, *checks[1:]]), 0.94, 100, "9 seeds"),
        ("\n".join([*rows, *checks, "| 1 | 70 | 80 |"]), 0.94, 100, "twice"),
        (good, 0.94, 99, "step 80 of 99"),
        ("", 0.94, 100, "0 seeds"),
    ]:
        assert words in "; ".join(Calibration.read(text).problems(target, 1, steps)), words
