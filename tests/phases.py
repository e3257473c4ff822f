"""The phases of ``python -m tests``, and how the slow phase uses both cores and little memory.

Tests in the lab mostly wait; others compute, some of them with several GB. So some workers begin with the files that
compute, and the others with those that need the lab. The workers that compute have a lower priority: what waits in the
lab has deadlines.
"""

from pathlib import PurePosixPath

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

COMPUTING = 2
"""The workers that begin with files that compute, at most one for each core and for each 8 GB of memory."""
WAITING = 2
"""The workers that begin with files that need the lab."""
PHASES = {
    "quick": ("-m", "not slow", "-n", "auto"),
    "alone": ("-m", "slow and alone"),
    "slow": (
        "-m", "slow and not alone", "-n", str(COMPUTING + WAITING), "--dist", "loadfile", "--no-loadscope-reorder",
    ),
}  # fmt: skip
LONGEST = (
    "tests/suites/*", "tests/test_trainings.py", "tests/driver/frameworks/*", "tests/benchmarks/test_benchmarks.py",
    "tests/commands/test_new_model.py", "tests/repository/test_wheel.py", "tests/screens/*", "tests/driver/pytorch/*",
    "tests/plugin/*",
)  # fmt: skip
"""The files that compute the longest, in the order in which they begin."""


def rank(file: str) -> int:
    """Return the place of a file that computes."""
    return next((number for number, pattern in enumerate(LONGEST) if PurePosixPath(file).match(pattern)), len(LONGEST))


def computes(worker: str) -> bool:
    """Return whether a worker, gw0 or another one, begins with the files that compute."""
    return int(worker.removeprefix("gw")) < COMPUTING


class TwoKinds(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
    """Gives the first files to the workers that compute, and the last ones to the others."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not computes(node.gateway.id):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
