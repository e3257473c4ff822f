"""The directory of a run. It is created when the first file is written."""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from pathlib import Path

from pytest_flagperf.problems import Problems
from pytest_flagperf.stored.layout import JUNIT, LEFT_OUT, LIVE, OPTIONS, PAGE


class RunDirectory:
    """The path of a run's directory; ``is_made``: it exists already, or another process of the run creates it."""

    def __init__(self, path: Path, *, is_made: bool = False) -> None:
        self.path = path
        self._is_reserved = is_made

    def reserve(self) -> None:
        """Create the directory; runs that start in the same second get different names."""
        if self._is_reserved:
            return
        expected = self.path
        try:
            expected.parent.mkdir(parents=True, exist_ok=True)
            for number in itertools.count(1):
                self.path = expected if number == 1 else expected.with_name(f"{expected.name}-{number}")
                with suppress(FileExistsError):
                    self.path.mkdir()
                    self._is_reserved = True
                    return
        except OSError as error:
            raise Problems(
                [f"{expected}: cannot create the run directory: {error.strerror}; pass another folder with --reports"]
            ) from error

    def remove_if_unused(self) -> None:
        """Remove the directory if it contains only reports, options and live records, but no results."""
        without_results = {PAGE, JUNIT, OPTIONS, LEFT_OUT, LIVE}
        if self._is_reserved and self.path.is_dir() and {path.name for path in self.path.iterdir()} <= without_results:
            shutil.rmtree(self.path, ignore_errors=True)


def relative(path: Path) -> Path:
    """Return a path relative to the current directory where possible."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
