"""Arrays that are made once from the files of a data directory and kept among the user's other caches."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from common.shares import Array


def default_folder() -> Path:
    """Return the folder of cached arrays; data folders may be read-only or shared."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(home) / "pytest-flagperf" / "listings"


def load(path: Path, names: Sequence[str]) -> dict[str, Array] | None:
    """Return the arrays of a cached file; None if the file is missing or incomplete."""
    try:
        with np.load(path) as arrays:
            return {name: arrays[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def store(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a file for the cache, if its folder can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type, unused-ignore]
        Path(file.name).replace(path)
    except OSError:
        return  # the next call makes the arrays again


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let only one process of this host make the arrays of a cached file; the others wait, and then load them."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a cache that cannot be written has no lock
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.with_suffix(".lock").open("w")), fcntl.LOCK_EX)
        yield
