"""Train the toy once for each given folder with a case.json, each time in its own process.

The processes are forks of a process that has imported torch, because the import takes longer than the trainings.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "frameworks"))
from toy_pytorch import STEPS, main  # type: ignore[import-not-found]

from flagperf_driver import driver

for folder in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.environ.update(FLAGPERF_CASE=f"{folder}/case.json", FLAGPERF_LOG_DIR=folder)
        driver._prepare_process()
        main(STEPS)
    os.waitpid(child, 0)
