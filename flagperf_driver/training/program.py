"""The program of one rank, for all frameworks but PyTorch, whose devices join a process group first."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any, Callable

from flagperf_driver import driver, heartbeat
from flagperf_driver.driver import Rank
from flagperf_driver.training.meeting import Meeting, meet
from flagperf_driver.training.replay import training_of
from flagperf_driver.training.steps import Context, Steps, context_fields
from flagperf_driver.training.trainer import Trainer

Join = Callable[[Rank, Meeting], None]
"""Set this rank's device and connect it with the other ranks."""
TrainerOf = Callable[[Rank, Context, Any, Meeting], Trainer]
"""Return the framework's trainer; the third argument are the suite's steps."""


def run(steps: Steps, join: Join, trainer_of: TrainerOf) -> None:
    """Run this process's rank of the training, then exit."""
    suite_dir = Path(sys.argv[0]).resolve().parent
    driver.run(functools.partial(_run, steps, join, trainer_of, suite_dir))
    exit_now()


def _run(steps: Steps, join: Join, trainer_of: TrainerOf, suite_dir: Path, rank: Rank) -> None:
    rank.heartbeat.beat(0, heartbeat.INIT)
    if rank.case.extern is not None:
        raise driver.DriverError(
            f"{rank.case.extern}: a vendor's own steps are not supported in {rank.case.framework}; remove the folder"
        )
    with meet(rank) as meeting:
        join(rank, meeting)
        trainer = trainer_of(rank, Context(**context_fields(rank, suite_dir)), steps, meeting)
        training_of(rank, trainer).run()
        meeting.gather(None)  # no rank ends before all are done
    rank.heartbeat.beat(trainer.progress.step, heartbeat.DONE)


def exit_now() -> None:
    """End the loader processes and exit without the interpreter's slow teardown."""
    for child in multiprocessing.active_children():
        child.terminate()
        child.join(5)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
