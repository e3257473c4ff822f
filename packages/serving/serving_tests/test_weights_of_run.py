"""A run that trains a model and serves it serves the weights that it trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.running.directory import RunDirectory
from pytest_flagperf.running.records import Records
from pytest_flagperf.running.restarts import Restarts
from pytest_flagperf.running.rounds import Rounds
from pytest_flagperf.running.run import Run
from pytest_flagperf.selection import Selected
from serving_tests.conftest import REPO


def opened(folder: Path, *frameworks: str, **options: Any) -> tuple[Run, dict[str, Selected]]:
    """Return a run of one model on one device and on two, and its cases."""
    run = Run.open(REPO, REPO, {"nodes": "1x1,1x2", "reports": str(folder), **options}, None)
    assert run is not None
    chosen = [one for one in run.selection.cases if one.case.model == "llama31_8b"]
    run.requested = tuple(one for one in chosen if one.case.framework in frameworks)
    return run, {f"{one.case.framework} {one.case.shape}": one for one in chosen}


def test_the_case_that_serves_reads_the_checkpoint_of_the_training_of_its_shape(tmp_path: Path) -> None:
    run, cases = opened(tmp_path, "pytorch", "transformers")
    for shape in ("1x1", "1x2"):
        trains, serves = run.plan(cases[f"pytorch {shape}"]), run.plan(cases[f"transformers {shape}"])
        assert trains.config["checkpoint_dir"] == serves.config["weights_dir"] == str(run.directory.path / "weights")
        assert serves.config["weights_of_run"] == str(trains.case)
    own, cases = opened(tmp_path, "pytorch", "transformers", set=["checkpoint_dir=/saved"])
    assert own.plan(cases["transformers 1x1"]).config["weights_dir"] == "/saved", "the user's folder"


def test_a_case_without_the_training_in_its_run_trains_itself(tmp_path: Path) -> None:
    for frameworks, options in ((["transformers"], {}), (["pytorch", "transformers"], {"synthetic": "yes"})):
        run, cases = opened(tmp_path, *frameworks, **options)
        assert run.plan(cases["transformers 1x1"]).config["weights_of_run"] == ""
        assert run.plan(cases["pytorch 1x1"]).config["checkpoint_dir"] is None


def test_the_training_runs_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, cases = opened(tmp_path, "pytorch", "transformers")
    trains, serves, begun = cases["pytorch 1x1"], cases["transformers 1x1"], []
    directory = RunDirectory(tmp_path / "run")
    rounds = Rounds(run.plan, run.engine, directory, Records(directory), Restarts(0), run._sources.get)
    monkeypatch.setattr(rounds, "run", lambda plan, *_: begun.append(plan.case))
    rounds.outcome(serves, 1)
    rounds.outcome(trains, 1)
    assert begun == [trains.case, serves.case]
