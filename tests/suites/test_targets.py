"""Each small target keeps its margin, by the table that ``tools.calibrate`` wrote into the suite's README."""

from __future__ import annotations

import itertools
import re
import statistics
from pathlib import Path

from flagperf_driver.target import Target
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.kinds.training.verdicts.reference import FEWEST
from pytest_flagperf.plan import PlanRequest, make_plan
from tools import markers
from tools.calibration import DEVIATIONS, LATEST, FullTraining, table

REPO = Path(__file__).resolve().parents[2]
CATALOG = Catalog.scan([REPO])
SUITES = [suite for suite in CATALOG.trainings.values() if "small" in suite.scales]


def trainings(text: str, metrics: int) -> dict[str, list[FullTraining]]:
    """The rows of the table in a README, by shape."""
    lines = itertools.dropwhile(lambda line: not line.startswith("| seed |"), text.splitlines())
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in itertools.takewhile(lambda line: line.startswith("| "), lines)
    ]
    head = rows[0] if rows else ["seed"]
    shapes = [name.partition(":")[0] for name in head[1 :: metrics + 1]]
    found: dict[str, list[FullTraining]] = {shape: [] for shape in shapes}
    for row in (row for row in rows if re.fullmatch(r"\d+", row[0]) and len(row) == len(head)):
        for place, shape in enumerate(shapes):
            *values, step = row[1 + place * (metrics + 1) :][: metrics + 1]
            if step:  # a shape may have fewer seeds
                found[shape].append(FullTraining(int(row[0]), tuple(map(float, values)), int(step)))
    return found


def problems(text: str, target: Target, max_steps: int) -> list[str]:
    found, sign = trainings(text, len(target.values)), -1 if target.direction == "lower" else 1
    texts = [] if {"1x1", "1x2"} <= found.keys() else [f"shapes {', '.join(found)}"]
    for shape, of_shape in found.items():
        if (seeds := len({one.seed for one in of_shape})) < FEWEST:
            texts.append(f"{shape}: {seeds} seeds")
            continue
        for number, (name, value) in enumerate(target.values.items()):
            values = [one.at_end[number] for one in of_shape]
            limit = statistics.fmean(values) - sign * DEVIATIONS * statistics.stdev(values)
            if value is None or (limit - value) * sign < 0:
                texts.append(f"{shape}: target of {name} {value}, limit {limit:.4f}")
        if (last := max(one.step for one in of_shape)) > LATEST * max_steps:
            texts.append(f"{shape}: step {last} of {max_steps}")
    return texts


def test_a_small_target_is_three_deviations_below_the_mean() -> None:
    for suite in SUITES:
        case = Case.parse(f"{suite.name}:CPU:1:1:1")
        steps = make_plan(CATALOG, PlanRequest(case, vendor="cpu", scale="small")).config["max_steps"]
        text, target = (suite.path / "README.md").read_text(encoding="utf-8"), suite.scales["small"].target
        assert problems(text, target, steps) == [], suite.name
        # The table has the form that the command writes.
        section = table(target, steps, trainings(text, len(target.values)))
        assert markers.stale(text, {markers.CALIBRATION: section}) == [], suite.name


def test_an_insufficient_table_is_reported() -> None:
    """The control: each kind of insufficient table."""
    target = Target("top1", "higher", "fraction", 0.94)
    rows = [FullTraining(seed, (0.95 + 0.002 * (seed % 3),), 60 + seed) for seed in range(1, 6)]
    good = table(target, 100, {"1x1": rows, "1x2": rows})
    assert problems(good, target, 100) == []
    for text, value, steps, words in [
        (good, 0.951, 100, "limit"),
        (table(target, 100, {"1x1": rows[1:], "1x2": rows[1:]}), 0.94, 100, "4 seeds"),
        (table(target, 100, {"1x1": rows}), 0.94, 100, "shapes 1x1"),
        (good, 0.94, 80, "step 65 of 80"),
        ("", 0.94, 100, "shapes"),
    ]:
        assert words in "; ".join(problems(text, Target("top1", "higher", "fraction", value), steps)), words
