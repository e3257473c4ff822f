"""Ranks as forks of this process: importing torch once takes less time than one import in each rank."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable


def run_forks(work: Callable[[int], None], ranks: int) -> None:
    """Call ``work`` with the number of each rank, in processes that find each other by env://."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    forks = multiprocessing.get_context("fork")
    started = [forks.Process(target=_rank, args=(work, rank, ranks, port)) for rank in range(ranks)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    codes = [process.exitcode for process in started]
    assert codes == [0] * ranks, f"exit codes {codes}"


def _rank(work: Callable[[int], None], rank: int, ranks: int, port: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    work(rank)
