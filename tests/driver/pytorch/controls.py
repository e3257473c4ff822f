"""Trains the toy once for each folder given that holds a case.json, each time in a process of its own.

They are copies of one that has imported torch, which costs more than all of them together.
"""

from __future__ import annotations

import os
import sys

from toy import Toy, main  # type: ignore[import-not-found]

from flagperf_driver import driver

for folder in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.environ.update(FLAGPERF_CASE=f"{folder}/case.json", FLAGPERF_LOG_DIR=folder)
        driver._prepare_process()
        main(Toy().steps())
    os.waitpid(child, 0)
