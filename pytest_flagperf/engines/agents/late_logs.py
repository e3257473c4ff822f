"""Logs that hosts still have of rounds that are over: fetched when the hosts answer again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flagperf_driver.node.agent.archive import LogLimits
from pytest_flagperf.hosts import HostError
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.fleet import Fleet
from pytest_flagperf.stored import FormatError, WriteError
from pytest_flagperf.stored.layout import host_folder
from pytest_flagperf.stored.round import MissingLogs, RoundDir

from .collect import Gone, fetch
from .unpack import TooMuch


@dataclass(frozen=True)
class LateLogs:
    """Fetches logs from the hosts of a run; ``limits`` is how much of a round's logs a host may send."""

    fleet: Fleet
    limits: LogLimits

    def fetch(self, directories: Sequence[Path]) -> list[str]:
        """Try again for the logs that hosts kept; a sentence for each that came, or still did not."""
        told, dead = [], dict[str, str]()
        for directory in directories:
            try:
                told += self._of_round(directory, dead)
            except (FormatError, WriteError) as error:
                told.append(f"{RoundDir(directory).label}: {error}")
        return told

    def salvage(self, directory: Path, note: Callable[[str], None]) -> None:
        """Fetch what hosts still have of a round that nobody will go on with; a host that has nothing is named."""
        left = RoundDir(directory)
        where = left.label
        try:
            places = left.read_hosts()
        except FormatError as error:
            note(f"{where}: logs that are still on other hosts are not fetched: {error}")
            return
        for placed in places:
            host = self.fleet.host(placed.name)
            if host is not None and not host.here:
                try:
                    self._bring(directory, MissingLogs(placed.name, placed.noderank, placed.log_dir, ""))
                except (HostError, OSError) as error:
                    note(f"{where}: the logs of {host.name} are missing here: {error}")

    def _of_round(self, directory: Path, dead: dict[str, str]) -> list[str]:
        """One round's; ``dead`` has the hosts that did not answer, and why."""
        told, still, warnings = [], [], list[str]()
        for missing in RoundDir(directory).read_record().missing:
            name = missing.host
            if missing.gone:
                still.append(missing)
                continue
            try:
                if name in dead:
                    raise HostError(dead[name])
                warnings += [f"{name}: {sentence}" for sentence in self._bring(directory, missing)]
                how = "came late, and are here"
            except Gone as error:
                how = f"are gone: {error}"
                still.append(replace(missing, why=str(error), gone=True))
            except (HostError, OSError) as error:
                if not isinstance(error, TooMuch):
                    dead[name] = str(error)
                how = f"are missing here: {error}"
                still.append(replace(missing, why=str(error)))
            told.append(f"{RoundDir(directory).label}: the logs of {name} {how}")
        RoundDir(directory).write_missing(still, warnings)
        return told

    def _bring(self, directory: Path, missing: MissingLogs) -> tuple[str, ...]:
        """Bring them here; a host that does not answer is not asked to run anything. What of them was left out."""
        host = self.fleet.host(missing.host)
        if host is None:
            raise HostError("it is none of the hosts of this run")
        try:
            host.reconnect()
        except HostError as error:
            self.fleet.lost(host, str(error))
            raise
        self.fleet.found(host)
        folder = directory / host_folder(host.name, missing.noderank)
        return fetch(host, pack({}), missing.log_dir, folder, self.limits)
