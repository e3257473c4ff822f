"""The job in the cloud that runs a round."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from pytest_flagperf.stored import type_check
from pytest_flagperf.stored.files import check_schema, read, write

SCHEMA = 1
JOB = "job.json"
"""The file in the directory of a round."""


@dataclass(frozen=True)
class StoredJob:
    """The contents of job.json."""

    name: str
    """The name of the job's output folder."""
    id: str
    job_name: str
    version: str
    resource: str
    instances: tuple[int, ...]
    """The numbers of the instances that run the round."""
    of: int
    """The number of all instances of the job."""

    def write(self, directory: Path) -> None:
        """Write the job into the directory of a round."""
        write(directory / JOB, {"schema": SCHEMA, **dataclasses.asdict(self)})


def read_job(directory: Path) -> StoredJob:
    """Return the job of a round; FormatError without a valid file."""
    path = directory / JOB
    body = read(path)
    check_schema(body, SCHEMA, str(path))
    return type_check.typed(StoredJob, body, str(path))
