"""The boot file of a job: a copy of this file is in the code folder, beside the packed code and flagperf_job/."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tarfile
import tempfile
from pathlib import Path


def unpack(archive: Path) -> Path:
    """Return the folder of the unpacked code. Some engines of the cloud start this file for each card at once."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    place = Path(tempfile.gettempdir(), f"pytest-flagperf-{os.getuid()}-code")
    place.mkdir(mode=0o700, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = place / digest
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=str(place)) as temporary, tarfile.open(str(archive)) as tar:
                # Pythons that support filters warn if no filter is set.
                tar.extraction_filter = getattr(tarfile, "data_filter", None)
                tar.extractall(str(Path(temporary, "code")))  # noqa: S202 - the controller made the archive
                Path(temporary, "code").rename(folder)
    return folder


if __name__ == "__main__":
    if sys.version_info < (3, 8):  # noqa: UP036 - an old image may have an older Python
        sys.exit("the image has Python {}.{}; pytest-flagperf needs Python 3.8 or later".format(*sys.version_info))
    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(unpack(here / "code.tar.gz")))

    from flagperf_job import main  # type: ignore[import-not-found]  # a copy of this folder

    sys.exit(main.main(here, sys.argv[1:]))
