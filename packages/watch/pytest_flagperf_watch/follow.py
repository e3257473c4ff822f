"""Follow the live record of a run: read new entries, and find out whether the run still goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_flagperf.printable import printable
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.stored import FormatError, layout, live_record
from pytest_flagperf.stored.live_record import SILENT_S, LiveFile, is_alive

from .state import ProcessState, RunState

RUNS, SILENT, ENDED, DIED, REMOVED = "running", "silent", "ended", "died", "removed"


@dataclass(frozen=True)
class Status:
    """Whether a run goes on, in one word of this module, and as a phrase for users."""

    word: str
    text: str

    @property
    def is_over(self) -> bool:
        return self.word in (ENDED, DIED, REMOVED)

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended by itself and has reported its exit code."""
        return self.word == ENDED


class FollowedRun:
    """The state of a run; ``poll`` reads what is new. Files are only read."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        alive: Callable[[Mapping[str, Any]], bool | None] = is_alive,
    ) -> None:
        self.path = path
        self.state = RunState()
        self._clock, self._monotonic, self._alive = clock, monotonic, alive
        self._files: dict[str, LiveFile] = {}
        self._times: dict[str, float] = {}
        self._signs: dict[str, tuple[float, float]] = {}
        self._is_removed = False

    @property
    def has_record(self) -> bool:
        return bool(self.state.processes)

    @property
    def unreadable(self) -> int:
        """The number of invalid lines."""
        return sum(file.unreadable for file in self._files.values())

    def poll(self) -> None:
        """Take all new entries; FormatError for files that cannot be read."""
        entries: list[tuple[float, str, Mapping[str, Any]]] = []
        for path in live_record.live_files(self.path):
            name = path.name.removesuffix(layout.LIVE_SUFFIX)
            file = self._files.setdefault(name, LiveFile(path))
            try:
                for entry in file.new():
                    # The entries of a process stay in order even if its clock was set back.
                    self._times[name] = max(self._times.get(name, 0.0), entry["t"])
                    entries.append((self._times[name], name, entry))
                self._see(name, file.changed_at)
            except FileNotFoundError:
                continue  # removed at this moment
            except OSError as error:
                raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
        self._is_removed = bool(self._files) and not self.path.is_dir()
        for _, name, taken in sorted(entries, key=lambda item: item[0]):
            self.state.take(name, taken)

    def status(self) -> Status:
        """Return whether the run goes on, by pytest's own process."""
        main = self.state.main or next(iter(self.state.processes.values()), None)
        if self._is_removed:
            return Status(REMOVED, "ended without results; its directory was removed")
        if main is None:
            return Status(DIED, "no live record")
        if main.has_ended:
            return Status(ENDED, "ended" if main.exit is None else f"ended with exit code {main.exit}")
        alive, silent_s = self._alive(main.process), self.silent_s(main.name)
        where = printable(f"pid {main.process.get('pid')} on {main.process.get('machine')}")
        since = quantity(round(silent_s), "s")
        if alive is False:
            return Status(DIED, f"died: its process ({where}) is gone")
        if silent_s <= SILENT_S:
            return Status(RUNS, f"running as {where}")
        if alive is None:
            return Status(DIED, f"probably died: no sign of life of its process ({where}) for {since}")
        return Status(SILENT, f"no sign of life of its process ({where}) for {since}: it may be stopped or hang")

    def dead_workers(self) -> list[ProcessState]:
        """Return the workers whose process is gone although they have not ended."""
        others = [process for process in self.state.processes.values() if process.name != layout.CONTROLLER]
        return [process for process in others if not process.has_ended and self._alive(process.process) is False]

    def notes(self) -> list[str]:
        """Return remarks on the record itself and on lost workers."""
        lines = [f"worker {printable(process.name)} died" for process in self.dead_workers()]
        return lines + ([f"{count(self.unreadable, 'line')} of the live record ignored"] if self.unreadable else [])

    def silent_s(self, name: str) -> float:
        """Return how long a process has given no sign of life."""
        return self._monotonic() - self._signs[name][1] if name in self._signs else 0.0

    def _see(self, name: str, changed_at: float) -> None:
        """Remember when a file changed. Only its first time is compared with this machine's clock."""
        if name not in self._signs:
            self._signs[name] = changed_at, self._monotonic() - max(0.0, self._clock() - changed_at)
        elif self._signs[name][0] != changed_at:
            self._signs[name] = changed_at, self._monotonic()
