"""The short form of the random faults: eight of them, in trainings of seconds."""

import copy
import json
from pathlib import Path

import pytest

from tests.lab.needs import SLURM, missing_programs
from tests.lab.random_faults import SHORT, Trial, differences, line_of, run_all

# One of each kind but the shortest cuts.
SEEDS = (1, 3, 4, 5, 6, 8, 9, 10)


@pytest.mark.slow
def test_trainings_finish_with_the_right_figures_or_end_with_a_reason(
    lab_or_skip: None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if problems := missing_programs(SLURM):
        (pytest.fail if request.config.getini("strict") else pytest.skip)("; ".join(problems))
    verdicts = list(run_all([Trial.drawn(seed, SHORT) for seed in SEEDS], 5, SHORT, tmp_path))
    assert not [line_of(verdict) for verdict in verdicts if verdict.problems]
    assert sum(verdict.starts > 1 for verdict in verdicts) >= 4, [line_of(verdict) for verdict in verdicts]
    (file,) = tmp_path.glob("undisturbed3/reports/run*/alpha*/round1/outcome.json")
    right = json.loads(file.read_text())
    assert differences(right, right, SHORT.tolerance) == []
    figures = [metric["name"] for metric in right["metrics"]]
    lost, other, slow = (copy.deepcopy(right) for _ in range(3))
    del lost["steps"][7]
    other["metrics"][figures.index("final_loss")]["value"] *= 1.0000001
    slow["metrics"][figures.index("p_core")]["value"] /= 10
    assert all(len(differences(wrong, right, SHORT.tolerance)) == 1 for wrong in (lost, other, slow))
