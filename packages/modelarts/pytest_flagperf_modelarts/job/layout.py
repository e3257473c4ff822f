"""The names of the files of a job, in its code folder and in its output folder."""

from __future__ import annotations

BOOT, CODE_ARCHIVE, PRE_START, PACKAGES = "boot.py", "code.tar.gz", "ma-pre-start.sh", "run"
JOB_CODE = "flagperf_job/"
"""The folder with this package's code for the instances."""
JOB_ORDERS = "orders/"
"""The folder with a file of orders for each job."""
RANK_SIZE = "ranksize.json"


def job_archive(instance: int) -> str:
    """Return the name of an instance's packed logs."""
    return f"instance{instance}.tar.gz"


def job_messages(instance: int) -> str:
    """Return the name of the file with the messages of an instance's agent, and with the size of its packed logs."""
    return f"instance{instance}.messages.jsonl"


def throughput(rank: int) -> str:
    return f"throughput_{rank}.json"


def accuracy(server: int | None = None) -> str:
    """Return the name of the file with the metric of a server, or of the whole job."""
    return "accuracy.json" if server is None else f"accuracy_{server}.json"
