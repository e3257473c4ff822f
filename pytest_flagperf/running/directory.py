"""The directory of a run: it appears with the first thing written into it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from pytest_flagperf.problems import Problems
from pytest_flagperf.stored.layout import ASKED, JUNIT, LEFT_OUT, PAGE


class RunDirectory:
    """The path of a run's directory; ``is_made``: it exists, or another process of the run makes it."""

    def __init__(self, path: Path, *, is_made: bool = False) -> None:
        self.path = path
        self._is_reserved = is_made

    def reserve(self) -> None:
        """Make the directory, the run's alone: of several runs that begin in the same second each has its own."""
        if self._is_reserved:
            return
        expected = self.path
        try:
            expected.parent.mkdir(parents=True, exist_ok=True)
            for number in range(1, 1000):
                self.path = expected if number == 1 else expected.with_name(f"{expected.name}-{number}")
                with suppress(FileExistsError):
                    self.path.mkdir()
                    self._is_reserved = True
                    return
        except OSError as error:
            raise Problems(
                [f"{expected}: no run directory can be made: {error.strerror}; name another with --reports"]
            ) from error

    def remove_if_unused(self) -> None:
        """Remove a directory that holds nothing but the reports that were switched on by themselves."""
        small = {PAGE, JUNIT, ASKED, LEFT_OUT}
        if self._is_reserved and self.path.is_dir() and {path.name for path in self.path.iterdir()} <= small:
            shutil.rmtree(self.path, ignore_errors=True)


def relative(path: Path) -> Path:
    """Return a path as a user in the current directory would write it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
