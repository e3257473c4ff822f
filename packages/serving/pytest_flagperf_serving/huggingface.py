"""The format ``huggingface`` of ``flagperf export``: checkpoints of trainings as transformers reads them."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import flagperf_driver
from flagperf_driver.training.checkpoint import CheckpointError, stored_checkpoint

if TYPE_CHECKING:
    from pytest_flagperf.results import StoredRun

FORMAT = "huggingface"
_PROGRAM = "common.serving.published"
_SHOWN_LINES = 3


class _NotExportable(Exception):
    """A round whose training cannot be exported; the message says why."""


def write(runs: Sequence[StoredRun], folder: Path) -> None:
    """Write a folder for each round with a checkpoint; warn about each round that is left out."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.results.tables.frames import RunWarning

    left_out: list[str] = []
    written = 0
    for directory, name in _rounds(runs):
        try:
            _export(directory, folder / FORMAT / name)
            written += 1
        except (_NotExportable, CheckpointError) as error:
            left_out.append(f"{name}: {error}")
    if not written:
        raise Problems(left_out or ["no training in these runs"])
    for sentence in left_out:
        warnings.warn(f"left out: {sentence}", RunWarning, stacklevel=2)


def _rounds(runs: Sequence[StoredRun]) -> Iterator[tuple[Path, str]]:
    """Yield the directory of each round of a training, and a name for its export."""
    from pytest_flagperf.stored import layout
    from pytest_flagperf.stored.plan import TRAINING

    for run in runs:
        prefix = f"{run.directory.name}_" if len(runs) > 1 else ""
        for outcome in (one for case in run.cases for one in case.outcomes if one.kind == TRAINING):
            case = outcome.case.replace(":", "_")
            yield run.directory / case / layout.round_folder(outcome.round), f"{prefix}{case}_round{outcome.round}"


def _export(directory: Path, to: Path) -> None:
    """Export the checkpoint of a round by a program in the Python that trained it."""
    from pytest_flagperf.stored import layout
    from pytest_flagperf.stored.plan import read_plan

    file = directory / layout.PLAN
    plan = read_plan(file)
    if not plan.config.get("checkpoint_dir"):
        raise _NotExportable("it wrote no checkpoint; train with --set=checkpoint_dir=DIR")
    checkpoint, record = stored_checkpoint(plan.config["checkpoint_dir"], str(plan.case), plan.round)
    if record.get("identity", {}).get("training") != plan.training:
        raise _NotExportable(f"{checkpoint} is of a later training of this case, which replaced that of this run")
    suite = _suites() / plan.case.model / plan.case.framework_name
    argv = [_python(plan.python), "-m", _PROGRAM, *map(str, (suite, file, checkpoint, to))]
    path = os.pathsep.join([str(suite.parents[1]), str(Path(flagperf_driver.__file__).parents[1])])
    done = subprocess.run(
        argv,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = " | ".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:])
        raise _NotExportable(f"{words or f'exit code {done.returncode}'} ({argv[0]})")


def _python(trained: str) -> str:
    """Return the Python that trained if this machine has it, else this one."""
    return trained if trained and os.access(trained, os.X_OK) else sys.executable


def _suites() -> Path:
    """Return the suites of the current tree, else those of the wheel."""
    from pytest_flagperf.catalog import bundled
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.settings import find_root

    root = find_root(Path.cwd()) or bundled()
    if root is None:
        raise Problems(["no suites: run the command in a checkout, or install the wheel"])
    return root / "suites"
