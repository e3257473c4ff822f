"""The program of one rank in TensorFlow 2."""

from __future__ import annotations

from flagperf_driver.driver import Rank
from flagperf_driver.tensorflow2 import device, distributed
from flagperf_driver.tensorflow2.steps import TensorFlowSteps
from flagperf_driver.tensorflow2.trainer import TensorFlowTrainer
from flagperf_driver.training import program
from flagperf_driver.training.meeting import Meeting


def main(steps: TensorFlowSteps) -> None:
    """Run this process's rank of the training, then exit."""
    program.run(steps, join, TensorFlowTrainer)


def join(rank: Rank, meeting: Meeting) -> None:
    """Set this rank's device and connect it with the other ranks."""
    device.set_device(rank.case.device, rank.world.local_rank)
    if rank.world.world_size > 1:
        distributed.connect(rank.case.backend, meeting.addresses, rank.world.rank)
