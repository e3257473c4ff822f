"""Logs of ended rounds that are still on hosts: fetched when the hosts answer again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flagperf_driver.node.agent.archive import LogLimits
from pytest_flagperf.hosts import HostError
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.stored import FormatError, WriteError
from pytest_flagperf.stored.layout import host_folder
from pytest_flagperf.stored.round_dir import MissingLogs, RoundDir

from .collect import LogsGone, fetch
from .unpack import LogsTooLarge


@dataclass(frozen=True)
class LateLogs:
    """Fetches logs from the hosts of rounds; ``limits`` bounds the logs of a round from one host."""

    pool_of: Callable[[Path], HostPool]  # the hosts of a round's directory
    limits: LogLimits

    def fetch(self, directories: Sequence[Path]) -> list[str]:
        """Fetch the logs that hosts kept; return a sentence for each that was fetched or is still missing."""
        messages, unreachable = [], dict[str, str]()
        for directory in directories:
            try:
                messages += self._fetch_round(directory, unreachable)
            except (FormatError, WriteError) as error:
                messages.append(f"{RoundDir(directory).label}: {error}")
        return messages

    def fetch_abandoned(self, directory: Path, note: Callable[[str], None]) -> None:
        """Fetch the logs of a round that will not be resumed; note each host whose logs are missing."""
        stored = RoundDir(directory)
        where = stored.label
        try:
            places = stored.read_hosts()
        except FormatError as error:
            note(f"{where}: logs that are still on other hosts are not fetched: {error}")
            return
        pool = self.pool_of(directory)
        for placed in places:
            host = pool.host(placed.name)
            if host is None and not Path(placed.log_dir).is_relative_to(directory):
                note(f"{where}: the logs of {placed.name} are missing here: {_stay(placed.name, placed.log_dir)}")
            if host is not None and not host.is_local:
                try:
                    self._fetch_from(directory, MissingLogs(placed.name, placed.noderank, placed.log_dir, ""))
                except (HostError, OSError) as error:
                    note(f"{where}: the logs of {host.name} are missing here: {error}")

    def _fetch_round(self, directory: Path, unreachable: dict[str, str]) -> list[str]:
        """Fetch the logs of one round; ``unreachable`` has the hosts that did not answer, with the reason."""
        messages, still, warnings = [], [], list[str]()
        for missing in RoundDir(directory).read_record().missing:
            name = missing.host
            if missing.gone:
                still.append(missing)
                continue
            try:
                if name in unreachable:
                    raise HostError(unreachable[name])
                warnings += [f"{name}: {sentence}" for sentence in self._fetch_from(directory, missing)]
                how = "were fetched late"
            except LogsGone as error:
                how = f"are gone: {error}"
                still.append(replace(missing, why=str(error), gone=True))
            except (HostError, OSError) as error:
                if not isinstance(error, LogsTooLarge):
                    unreachable[name] = str(error)
                how = f"are missing here: {error}"
                still.append(replace(missing, why=str(error)))
            messages.append(f"{RoundDir(directory).label}: the logs of {name} {how}")
        RoundDir(directory).write_missing(still, warnings)
        return messages

    def _fetch_from(self, directory: Path, missing: MissingLogs) -> tuple[str, ...]:
        """Fetch logs from a host that answers. Return sentences on the entries that were left out."""
        pool = self.pool_of(directory)
        host = pool.host(missing.host)
        if host is None:
            raise HostError(_stay(missing.host, missing.log_dir))
        try:
            host.reconnect()
        except HostError as error:
            pool.exclude(host, str(error))
            raise
        pool.include(host)
        folder = directory / host_folder(host.name, missing.noderank)
        return fetch(host, pack({}), missing.log_dir, folder, self.limits)


def _stay(host: str, log_dir: str) -> str:
    """Return where logs are that cannot be fetched: on a removed host, or on a node whose job has ended."""
    return (
        f"the run does not have {host} now; they stay there in {log_dir} for a week, and are fetched when a case of"
        f" this run, or of a run with --resume, uses {host}"
    )
