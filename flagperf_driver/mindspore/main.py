"""The program of one rank in MindSpore."""

from __future__ import annotations

import math
import os
import sys
import time

import mindspore as ms

from flagperf_driver.driver import Rank
from flagperf_driver.mindspore import device, scheduler
from flagperf_driver.mindspore.steps import MindSporeSteps
from flagperf_driver.mindspore.trainer import MindSporeTrainer
from flagperf_driver.training import program
from flagperf_driver.training.meeting import Meeting

_GRACE_S = 10.0
"""How long a rank may still work after another one has ended: the last ranks do not finish at the same time."""


def main(steps: MindSporeSteps) -> None:
    """Run this process's rank of the training, then exit."""
    program.run(steps, join, MindSporeTrainer)


def join(rank: Rank, meeting: Meeting) -> None:
    """Set this rank's device and connect it with the other ranks."""
    world = rank.world
    if world.world_size > 1:
        host, port = meeting.addresses[0].split(":")
        shared = {
            "MS_WORKER_NUM": str(world.world_size),
            "MS_SCHED_HOST": host,
            "MS_SCHED_PORT": port,
            "MS_TOPO_TIMEOUT": str(math.ceil(rank.config.init_timeout_s)),
        }
        if world.rank == 0:
            environment = {**shared, "MS_ROLE": "MS_SCHED", "MS_NODE_ID": "scheduler"}
            scheduler.start(environment, host, int(port), rank.config.init_timeout_s)
        meeting.gather(None)  # the scheduler listens
        os.environ.update(shared, MS_ROLE="MS_WORKER", MS_NODE_ID=str(world.rank))
    device.set_device(rank.case.device, world.local_rank)
    if world.world_size > 1:
        ms.communication.init(rank.case.backend)
        meeting.call_at_end(_end)


def _end() -> None:
    """End this rank if it does not end by itself; MindSpore would wait half a minute for the other one."""
    time.sleep(_GRACE_S)
    print("another rank has ended, so this one ends too; see the other rank's log", file=sys.stderr, flush=True)
    os._exit(1)
