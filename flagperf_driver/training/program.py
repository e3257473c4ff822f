"""The program of one rank, for all frameworks but PyTorch, whose devices join a process group first."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Callable

from flagperf_driver import driver, heartbeat
from flagperf_driver.driver import Rank
from flagperf_driver.training.loop import Training
from flagperf_driver.training.meeting import Meeting, meet
from flagperf_driver.training.trainer import Trainer

Create = Callable[[Rank, Path, Meeting], Trainer]
"""Join the framework's ranks and return this rank's trainer, from the rank, the suite's folder and the meeting."""


def run(create: Create) -> None:
    """Run this process's rank of the training, then exit."""
    suite_dir = Path(sys.argv[0]).resolve().parent
    driver.run(functools.partial(_run, create, suite_dir))
    exit_now()


def _run(create: Create, suite_dir: Path, rank: Rank) -> None:
    rank.heartbeat.beat(0, heartbeat.INIT)
    if rank.case.extern is not None:
        raise driver.DriverError(
            f"{rank.case.extern}: a vendor's own steps are not supported in {rank.case.framework}; remove the folder"
        )
    with meet(rank) as meeting:
        trainer = create(rank, suite_dir, meeting)
        Training(rank, trainer).run()
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
