"""Each small target lies three standard deviations below what ten seeds reach, by the tables in the suites' READMEs."""

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
"""The share of max_steps by which each seed must be at the target."""
_CHECKED = re.compile(r"^\| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Calibration:
    """What the README of a suite says of the trainings that its target was set by."""

    seeds: tuple[int, ...]
    reached: dict[str, tuple[float, ...]]
    """By shape: the metric at the end of trainings of full length."""
    checked: tuple[int, ...]
    """The other seeds, which converged with the target."""
    last_step: int
    """The latest at which any of them was at the target."""

    @classmethod
    def read(cls, text: str) -> Calibration:
        rows = _ROW.findall(text)
        checks = _CHECKED.findall(text)
        reached = {shape: tuple(float(row[place]) for row in rows) for shape, place in (("1x1", 1), ("1x2", 3))}
        seeds, checked = (tuple(int(row[0]) for row in found) for found in (rows, checks))
        return cls(seeds, reached, checked, max((int(step) for row in checks for step in row[1:]), default=0))

    def problems(self, target: float, sign: int, max_steps: int) -> list[str]:
        found = [f"{len(each)} seeds" for each in (self.seeds, self.checked) if len({*each}) < SEEDS]
        found += [f"seeds {each} twice" for each in [{*self.seeds} & {*self.checked}] if each]
        for shape, values in self.reached.items():
            limit = statistics.fmean(values) - sign * DEVIATIONS * statistics.stdev(values) if len(values) > 1 else 0.0
            found += [f"{shape}: target {target}, limit {limit:.4f}"] if (limit - target) * sign < 0 else []
        return [*found, *([f"step {self.last_step} of {max_steps}"] if self.last_step > LATEST * max_steps else [])]


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.model)
def test_a_small_target_lies_three_deviations_below_what_ten_seeds_reach(suite: Suite) -> None:
    case = Case.parse(f"{suite.name}:CPU:1:1:1")
    steps = make_plan(Catalog.scan([REPO]), case, vendor="cpu", scale="small").config["max_steps"]
    found = Calibration.read((suite.path / "README.md").read_text())
    sign = 1 if suite.metric.direction == "higher" else -1
    assert found.problems(suite.scales["small"].target, sign, steps) == []


def test_a_table_that_shows_too_little_is_refused() -> None:
    """The control: each way in which a table may fall short."""
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
