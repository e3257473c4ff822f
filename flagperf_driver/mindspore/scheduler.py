"""MindSpore's scheduler: a process beside the first rank, which tells the ranks of each other."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from typing import Mapping


def start(environment: Mapping[str, str]) -> None:
    """Start the scheduler as a child of this process; it ends with this process at the latest."""
    child = multiprocessing.get_context("spawn").Process(target=_schedule, args=(dict(environment),), daemon=True)
    child.start()


def _schedule(environment: Mapping[str, str]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    import mindspore as ms

    ms.set_device("CPU")
    ms.communication.init()


def _end_with_parent() -> None:
    """Exit when the parent has ended in any way; the scheduler would wait for its ranks for minutes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(0)
