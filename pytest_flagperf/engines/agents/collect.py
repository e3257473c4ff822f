"""Collect the logs of a round: one archive from each host, verified before it is unpacked.

Of a round on many hosts that ended well, each host sends a summary. Whole logs are fetched of the first host, and of
two that are drawn when all summaries have arrived, as a check of the summaries; the others stay on their hosts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import random
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, TypeVar

from flagperf_driver.node.agent import log_bound
from flagperf_driver.node.agent.archive import LogLimits
from flagperf_driver.node.folder import SUMMARY
from flagperf_driver.node.logs.summary import LongFile, Request
from pytest_flagperf.hosts import Channel, Host, HostError, InvalidReply, Message, silence
from pytest_flagperf.hosts.deploy import Code, open_module, pack
from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.progress import note
from pytest_flagperf.results.logs import host_summaries
from pytest_flagperf.stored import FormatError, WriteError
from pytest_flagperf.stored.layout import FETCHED, host_folder
from pytest_flagperf.stored.round_dir import MissingLogs, RoundDir

from .agents import GRACE_S, MARGIN_S, MODULE, Agents, HostAgent, Refused, connect_to_agent, refusal
from .unpack import LogsTooLarge, check_limits, unpack, unpack_summary

_IN_MEMORY = 1 << 20  # bytes of an archive; a larger one is kept on the disk
_AT_ONCE = 16  # archives
_LEAST = 1 << 20  # bytes of a piece other than the last: a host must not send its logs byte by byte
_AGAIN_S = 0.3
_TRIES = 3
_DRAWN = 2
_SUMMED_UP_S = 200.0  # a host reads all its logs and series before it answers

T = TypeVar("T")


class LogsGone(HostError):
    """The logs of a round are no longer on its host."""


@dataclass(frozen=True)
class Collected:
    """The logs that could not be fetched, and the hosts whose logs stay there because they summed them up."""

    missing: tuple[MissingLogs, ...] = ()
    summed_up: tuple[str, ...] = ()

    @property
    def keep(self) -> list[str]:
        """The names of the hosts that must keep their logs."""
        return [*(one.host for one in self.missing), *self.summed_up]


def collect(agents: Agents, directory: Path, *, failed: bool) -> Collected:
    """Fetch the logs, or summaries of them, from all other hosts into the round's directory."""
    for agent in agents.all:  # a rank may write any file
        _remove_file(agent.folder / SUMMARY)
        log_bound.join(agent.folder)  # of an agent on this machine that died
    remote = [agent for agent in agents.all if not agent.host.is_local and agent.is_started]
    if failed or len(agents.all) <= agents.limits.max_whole_hosts:
        return Collected(_on_each(remote, partial(_fetch_logs, agents)))
    first = [agent for agent in remote if agent.noderank == 0]
    missing = _on_each(first, partial(_fetch_logs, agents))
    from pytest_flagperf.results.measured.measure import StoredRound  # loads slowly, and few rounds have so many hosts

    of = StoredRound(directory)
    missing += _fetch_summaries(agents, {agent: of.summary_request(agent.noderank) for agent in remote})
    lost = {one.host for one in missing}
    return _with_drawn(agents, [agent for agent in remote if agent.name not in lost and agent not in first], missing)


def _with_drawn(agents: Agents, summed_up: list[HostAgent], missing: tuple[MissingLogs, ...]) -> Collected:
    """Fetch the whole logs of two hosts that none of them could know before; of others instead of lost ones."""
    random.SystemRandom().shuffle(summed_up)
    fetched = 0
    while summed_up and fetched < _DRAWN:
        lost = _collect_one(summed_up.pop(), partial(_fetch_logs, agents))
        missing += (lost,) if lost else ()
        fetched += lost is None
    return Collected(missing, tuple(agent.name for agent in summed_up))


def _on_each(
    agents: Sequence[HostAgent], fetch_from: Callable[[HostAgent], tuple[str, ...]]
) -> tuple[MissingLogs, ...]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = pool.map(lambda agent: _collect_one(agent, fetch_from), agents)
        return tuple(missing for missing in results if missing is not None)


def _collect_one(agent: HostAgent, fetch_from: Callable[[HostAgent], tuple[str, ...]]) -> MissingLogs | None:
    why = ""
    for _ in range(_TRIES):
        while agent.lost and not agent.gone:
            time.sleep(_AGAIN_S)
        try:
            left_out = fetch_from(agent)
        except (LogsTooLarge, LogsGone) as error:
            why = str(error)
            break
        except (HostError, OSError) as error:
            why = str(error)
        else:
            agent.warnings += [f"{agent.name}: {sentence}" for sentence in left_out]
            return None
        if agent.lost and agent.gone:
            break
        time.sleep(_AGAIN_S)
    return MissingLogs(agent.name, agent.noderank, agent.greeted.log_dir, why)


def _fetch_logs(agents: Agents, agent: HostAgent) -> tuple[str, ...]:
    """Fetch from the round's agent, or from a new agent if only the agent is gone; keep the host's summary."""
    if agent.lost:
        raise HostError(agent.gone or agent.lost)
    if agent.gone:
        return fetch(agent.host, agent.code or pack({}), agent.greeted.log_dir, agent.folder, agents.limits)
    with _packed(agents, agent) as archive:
        return _unpack(archive, agent.folder, agents.limits)


def _fetch_summaries(agents: Agents, requests: Mapping[HostAgent, Request]) -> tuple[MissingLogs, ...]:
    """Ask all hosts, then take the answers in this thread: a change of threads costs more CPU than an answer.

    A host whose answer does not come is asked again.
    """
    deadline, losses, unanswered = time.monotonic() + _SUMMED_UP_S, dict[HostAgent, int](), list[HostAgent]()
    for agent, request in requests.items():
        with suppress(HostError):
            agent.send(_order(0, agents.limits, request))
            losses[agent] = -1 if agent.lost else agent.losses
    for agent, request in requests.items():
        try:
            if losses.get(agent) != agent.losses:
                raise HostError("the order or its answer was lost with the connection")
            first = agent.expect("chunk", timeout_s=max(0.0, deadline - time.monotonic()))
            _fetch_summary(agents, agent, request, first)
        except (HostError, OSError):
            unanswered.append(agent)
    return _on_each(unanswered, lambda agent: _fetch_summary(agents, agent, requests[agent]))


def _fetch_summary(agents: Agents, agent: HostAgent, request: Request, first: Message | None = None) -> tuple[str, ...]:
    """Fetch the host's summary and its short files; add the summary alone to whole logs that are here already.

    ``first`` is the first piece, if it has arrived.
    """
    if agent.lost or agent.gone:
        raise HostError(agent.gone or agent.lost or "")
    with _packed(agents, agent, request, first) as archive:
        if not agent.folder.exists():
            unpack_summary(agent.name, archive, agent.folder, agents.limits)
        else:
            with tempfile.TemporaryDirectory(prefix=".summary-", dir=agent.directory) as work:
                unpack_summary(agent.name, archive, Path(work, "files"), agents.limits)
                Path(work, "files", SUMMARY).replace(agent.folder / SUMMARY)
    return ()


def _packed(
    agents: Agents, agent: HostAgent, request: Request | None = None, first: Message | None = None
) -> IO[bytes]:
    def ask(offset: int) -> Message:
        chunk = first if offset == 0 else None
        if chunk is None:
            timeout_s = silence.ANSWER_S if request is None else _SUMMED_UP_S
            chunk = agent.ask(_order(offset, agents.limits, request), "chunk", timeout_s=timeout_s)
        if offset == 0 and agents.is_noted:
            note("activity", text=f"{agent.name}: fetching the logs ({chunk['size'] / 1e6:.1f} MB)")
        return chunk

    return _archive(agent.host, ask, agents.limits)


def _unpack(archive: IO[bytes], folder: Path, limits: LogLimits) -> tuple[str, ...]:
    """Unpack whole logs; keep the summary that the host sent before, and no other file of its name."""
    summary = folder / SUMMARY
    before = summary.read_bytes() if summary.is_file() else None
    left_out = unpack(archive, folder, limits)
    _remove_file(summary)
    if before is not None:
        summary.write_bytes(before)
    return left_out


def _remove_file(path: Path) -> None:
    """Remove a file that may exist; leave a folder of its name, which nothing reads as a summary."""
    with suppress(IsADirectoryError):
        path.unlink(missing_ok=True)


def fetch(
    host: Host,
    code: Code,
    log_dir: str,
    folder: Path,
    limits: LogLimits,
    listed: Mapping[str, LongFile] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Fetch the logs that a host still has, with the running agent or a new one.

    Remove them there if all ``listed`` files arrived as they were summed up.
    Return sentences on the entries that were left out.
    """
    channel = _agent_channel(host, code, log_dir)
    try:

        def ask(offset: int) -> Message:
            chunk = _chunk(channel, host, _order(offset, limits))
            if not chunk["files"]:
                channel.send({"op": "leave", "remove": True})
                raise LogsGone(f"{host.name}: no files in {log_dir}: the host was restarted, or the folder was removed")
            return chunk

        with _archive(host, ask, limits) as archive:
            left_out = _unpack(archive, folder, limits)
        channel.send({"op": "leave", "remove": not host_summaries.unlike(folder, listed)})
        _next(channel, host, "end")
    finally:
        channel.close()
    return left_out


def _order(offset: int, limits: LogLimits, request: Request | None = None) -> Message:
    """Return the order for one piece of the logs, or of a summary; the agent packs no more than the limits allow."""
    summary = {} if request is None else {"summary": {**vars(request), "target": vars(request.target)}}
    return {
        "op": "collect", "offset": offset, "max_bytes": limits.max_bytes, "max_entries": limits.max_entries, **summary,
    }  # fmt: skip


def _agent_channel(host: Host, code: Code, log_dir: str) -> Channel:
    """Return a connection to the running agent of the round, or else to a new agent."""
    with suppress(HostError):
        channel, _ = connect_to_agent(host, log_dir, 0)
        try:  # the agent may have missed the end of the round and still run its ranks
            channel.send({"op": "stop", "reason": "the round is over"})
        except HostError:
            channel.close(0.0)
            raise
        return channel
    return _unless_refused(lambda: _new_agent(host, code, log_dir))  # a cleanup may still hold the lock


def _new_agent(host: Host, code: Code, log_dir: str) -> Channel:
    channel = open_module(host, code, MODULE)
    try:
        channel.send({"op": "hello", "log_dir": log_dir, "name": "", "lease_s": 0})
        _next(channel, host, "hello")
    except HostError:
        channel.close(0.0)
        raise
    return channel


def _chunk(channel: Channel, host: Host, order: Message) -> Message:
    """Return a piece of the logs; wait until the ranks have ended."""

    def ask() -> Message:
        channel.send(order)
        return _next(channel, host, "chunk")

    return _unless_refused(ask)


def _unless_refused(ask: Callable[[], T]) -> T:
    """Repeat a refused request for as long as ranks and their container may need to end."""
    deadline = time.monotonic() + GRACE_S + MARGIN_S
    while True:
        try:
            return ask()
        except Refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def _next(channel: Channel, host: Host, kind: str) -> Message:
    deadline = time.monotonic() + silence.ANSWER_S
    while (message := _receive(channel, host, deadline)) is not None:
        if message["type"] == kind:
            return message
        if message["type"] == "error":
            raise refusal(host.name, message)
    raise HostError(f"{host.name}: {channel.error_output().strip() or f'no {kind} from the agent'}")


def _receive(channel: Channel, host: Host, deadline: float) -> Message | None:
    try:
        return channel.receive(max(0.0, deadline - time.monotonic()))
    except TimeoutError as error:
        raise HostError(f"{host.name}: no answer in {silence.ANSWER_S:g} s") from error


def _archive(host: Host, ask: Callable[[int], Message], limits: LogLimits) -> IO[bytes]:
    """Return the whole archive with its checksum verified, in memory or, if it is large, in a temporary file."""
    archive = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the caller closes it
    try:
        digest, first = hashlib.sha256(), ask(0)
        check_limits(limits, first["size"])
        chunk = first
        while True:
            piece = _piece(host, chunk, first, archive.tell())
            archive.write(piece)
            digest.update(piece)
            if archive.tell() == first["size"]:
                break
            chunk = ask(archive.tell())
        if digest.hexdigest() != first["sha256"]:
            raise HostError(f"the logs arrived damaged: {archive.tell()} bytes with a wrong checksum")
        archive.seek(0)
    except BaseException:
        archive.close()
        raise
    return archive


def _piece(host: Host, chunk: Message, first: Message, at: int) -> bytes:
    """Return the content of a piece of the archive, after checks of its offset and its length."""
    for key, expected in (("offset", at), ("size", first["size"]), ("sha256", first["sha256"])):
        if chunk[key] != expected:
            raise InvalidReply(host.name, f"chunk.{key} is {chunk[key]!r}; expected {expected!r}")
    try:
        piece = base64.b64decode(chunk["data"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidReply(host.name, f"chunk.data: {error}; expected base64") from None
    remaining = first["size"] - at
    if not min(remaining, _LEAST) <= len(piece) <= remaining:
        raise InvalidReply(
            host.name, f"chunk.data has {len(piece)} bytes; expected {min(remaining, _LEAST)} to {remaining} bytes"
        )
    return piece


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

    def fetch_abandoned(self, directory: Path) -> None:
        """Fetch the logs of a round that will not be resumed; note each host whose logs are missing."""
        stored = RoundDir(directory)
        where = stored.label
        try:
            places = stored.read_hosts()
        except FormatError as error:
            note("line", text=f"{where}: logs that are still on other hosts are not fetched: {error}")
            return
        pool = self.pool_of(directory)
        for placed in places:
            host = pool.host(placed.name)
            if host is None and not Path(placed.log_dir).is_relative_to(directory):
                note(
                    "line",
                    text=f"{where}: the logs of {placed.name} are missing here: {_stay(placed.name, placed.log_dir)}",
                )
            if host is not None and not host.is_local:
                try:
                    self._fetch_from(directory, MissingLogs(placed.name, placed.noderank, placed.log_dir, ""))
                except (HostError, OSError) as error:
                    note("line", text=f"{where}: the logs of {host.name} are missing here: {error}")

    def fetch_kept(self, directory: Path, names: Collection[str]) -> Iterator[tuple[bool, str]]:
        """Fetch the logs that hosts summed up and kept; all hosts' without ``names``.

        Yield for each host whether its logs are here and are those that it summed up, and a sentence.
        """
        label = RoundDir(directory).label
        for placed in RoundDir(directory).read_hosts():
            own = host_folder(placed.name, placed.noderank)
            summary = host_summaries.read(directory / own) if not names or placed.name in names else None
            if summary is None or host_summaries.has_long_files(directory / own, summary):
                continue
            folder = directory.parent / FETCHED / directory.name / own
            try:
                if not folder.exists():
                    missing = MissingLogs(placed.name, placed.noderank, placed.log_dir, "")
                    self._fetch_from(directory, missing, folder, summary.files)
            except (HostError, OSError) as error:
                yield False, f"{label}: the logs of {placed.name} are missing here: {error}"
                continue
            problem = host_summaries.unlike(folder, summary.files)
            if problem:
                yield False, f"{label}: {folder}: these are not the logs that {placed.name} summed up: {problem}"
            else:
                yield True, f"{label}: the logs of {placed.name} are in {folder}"

    def _fetch_round(self, directory: Path, unreachable: dict[str, str]) -> list[str]:
        """Fetch the logs of one round; ``unreachable`` has the hosts that did not answer, with the reason."""
        messages, still, warnings = list[str](), list[MissingLogs](), list[str]()

        def fetch_one(missing: MissingLogs) -> tuple[MissingLogs | None, str]:
            """Return the logs if they are still missing, and what happened; nothing new of logs that are gone."""
            name = missing.host
            if missing.gone:
                return missing, ""
            try:
                if name in unreachable:
                    raise HostError(unreachable[name])
                warnings.extend(f"{name}: {sentence}" for sentence in self._fetch_from(directory, missing))
            except LogsGone as error:
                return replace(missing, why=str(error), gone=True), f"are gone: {error}"
            except (HostError, OSError) as error:
                if not isinstance(error, LogsTooLarge):
                    unreachable[name] = str(error)
                return replace(missing, why=str(error)), f"are missing here: {error}"
            return None, "were fetched late"

        expected = RoundDir(directory).read_record().missing
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # a host that is off takes ten seconds
            results = list(pool.map(fetch_one, expected))
        for missing, (after, how) in zip(expected, results, strict=True):
            still += [after] if after else []
            messages += [f"{RoundDir(directory).label}: the logs of {missing.host} {how}"] if how else []
        RoundDir(directory).write_missing(still, warnings)
        return messages

    def _fetch_from(
        self,
        directory: Path,
        missing: MissingLogs,
        to: Path | None = None,
        listed: Mapping[str, LongFile] = MappingProxyType({}),
    ) -> tuple[str, ...]:
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
        folder = to or directory / host_folder(host.name, missing.noderank)
        return fetch(host, pack({}), missing.log_dir, folder, self.limits, listed)


def _stay(host: str, log_dir: str) -> str:
    """Return where logs are that cannot be fetched: on a removed host, or on a node whose job has ended."""
    return (
        f"the run does not have {host} now; they stay there in {log_dir} for a week, and are fetched when a case of"
        f" this run, or of a run with --resume, uses {host}"
    )
