"""The program of one rank in Paddle."""

from __future__ import annotations

import os

import paddle

from flagperf_driver.driver import Rank
from flagperf_driver.paddle import device
from flagperf_driver.paddle.steps import PaddleSteps
from flagperf_driver.paddle.trainer import PaddleTrainer
from flagperf_driver.training import program
from flagperf_driver.training.meeting import Meeting


def main(steps: PaddleSteps) -> None:
    """Run this process's rank of the training, then exit."""
    program.run(steps, join, PaddleTrainer)


def join(rank: Rank, meeting: Meeting) -> None:
    """Set this rank's device and connect it with the other ranks."""
    case, world = rank.case, rank.world
    device.set_device(case.device, world.local_rank)
    if world.world_size == 1:
        return
    os.environ.update(
        PADDLE_TRAINER_ID=str(world.rank),
        PADDLE_TRAINERS_NUM=str(world.world_size),
        PADDLE_TRAINER_ENDPOINTS=",".join(meeting.addresses),
        PADDLE_CURRENT_ENDPOINT=meeting.addresses[world.rank],
        PADDLE_DISTRI_BACKEND=case.backend,
    )
    os.environ[f"FLAGS_selected_{case.device}s"] = str(world.local_rank)
    paddle.distributed.init_parallel_env()
