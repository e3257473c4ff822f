"""The short form of the random faults: eight of them, in trainings of seconds."""

import copy
import fcntl
import json
import types
from pathlib import Path
from typing import Any, cast

import pytest

from tests.lab.lab import Lab
from tests.lab.needs import SLURM, missing_programs, require
from tests.lab.random_faults import SHORT, FaultyTraining, Trial, Verdict, differences, line_of, run_all
from tests.lab.runs import left_on
from tests.plugin.conftest import Going

# One of each kind but the shortest cuts.
SEEDS = (1, 3, 4, 5, 6, 8, 9, 10)
REASON = "alpha: not started again: no restart is left: h1 is lost"


def ended(folder: Path, code: int | None, text: str = "", **more: Any) -> FaultyTraining:
    """Return a training whose run has ended so."""
    process = types.SimpleNamespace(poll=lambda: code)
    training = FaultyTraining(cast(Lab, None), folder, SHORT, [], **{"nodes": 4, **more})
    training.going = cast(Going, types.SimpleNamespace(process=process, text=text))
    return training


@pytest.mark.slow
def test_trainings_finish_with_the_right_figures_or_end_with_a_reason(
    lab_or_skip: None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    require(request.config, missing_programs(SLURM))
    verdicts = list(run_all([Trial.drawn(seed, SHORT) for seed in SEEDS], 5, SHORT, tmp_path))
    lines = [line_of(verdict) for verdict in verdicts]
    assert not [line for line, verdict in zip(lines, verdicts, strict=True) if verdict.problems]
    assert sum(verdict.starts > 1 for verdict in verdicts) >= 4, lines
    assert sum(verdict.result == "missed" for verdict in verdicts) <= 1, lines
    (file,) = tmp_path.glob("undisturbed3/reports/run*/alpha*/round1/outcome.json")
    right = json.loads(file.read_text())
    assert differences(right, right, SHORT.tolerance) == []
    figures = [metric["name"] for metric in right["metrics"]]
    lost, other, slow, warned = (copy.deepcopy(right) for _ in range(4))
    del lost["steps"][7]
    other["metrics"][figures.index("final_loss")]["value"] *= 1.0000001
    for wrong in (slow, warned):
        wrong["metrics"][figures.index("p_core")]["value"] /= 10
    warned["validity_warnings"] = [{"kind": "restarted"}]
    assert all(len(differences(wrong, right, SHORT.tolerance)) == 1 for wrong in (lost, other, slow, warned))
    warned["validity_warnings"] = [{"kind": "unreachable"}]
    assert differences(warned, right, SHORT.tolerance) == []

    def judged(folder: Path, *how: Any, **more: Any) -> list[str]:
        return list(ended(folder, *how, **more).judged(verdict, lambda: right))

    # The controls of the judgement of a run.
    folder, verdict = tmp_path / "undisturbed3", Verdict(Trial(0, 3), hosts=["h1"])
    assert (judged(folder, 0), verdict.result) == ([], "finished")
    assert (judged(folder, 0, last_strike=float("inf")), verdict.result) == ([], "missed")
    assert (judged(folder, 1, REASON), verdict.result) == ([], "ended")
    assert judged(folder, 1, REASON, nodes=3) == ["it ended, although a spare host was there"]
    assert judged(folder, 1, "h1\n" + REASON.replace("h1", "it")) == ["it ended without a reason that names a host"]
    assert judged(folder, None) == ["the run does not end"]
    assert judged(folder, 3) == ["exit code 3"]
    assert judged(folder, 0, "Traceback") == ["the output has a traceback"]
    cut = copy.deepcopy(right)
    del cut["steps"][0]
    for kind, found in (("disk", 0), ("agent", 1)):
        cut["starts"] = [{"folder": "", "kind": kind, "last_step": 0, "from_step": at} for at in (0, 1)]
        cut["validity_warnings"] = [{"kind": "restarted"}]
        assert len(differences(cut, right, SHORT.tolerance)) == found
    started_again = next(tmp_path.glob("seed1/reports/run*/alpha*/failed1-round1"))
    next(started_again.glob("*_noderank0/rank0.out.log")).unlink()
    assert judged(tmp_path / "seed1", 0)[0].startswith("the log of rank 0 on {'h")


def test_what_is_left_is_found(lab: Lab, tmp_path: Path) -> None:
    """The control: a process, a lock and logs, which may stay on a host that was away."""
    (host,) = lab.hosts(1)
    host.wear()
    host.start(["sleep", "77"])
    leases, logs = host.root / "tmp/pytest-flagperf-leases", host.root / "tmp/pytest-flagperf-0/rounds/one"
    leases.mkdir(exist_ok=True)
    logs.mkdir(parents=True)
    with (leases / "device0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for away, kinds in ((set(), ["process", "lock", "folder"]), ({host.name}, ["process", "lock"])):
            left = left_on([host], 0, ended(tmp_path, 0, away=away).leftovers)
            assert [each.split()[0] for each in left[host.name]] == kinds
