"""The logs of a round, brought here once: one archive from each host, verified before it is unpacked."""

from __future__ import annotations

import base64
import binascii
import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

from flagperf_driver.node.agent.archive import LogLimits
from pytest_flagperf.hosts import Channel, Host, HostError, InvalidReply, Message
from pytest_flagperf.hosts.deploy import Code, attach, open_module, pack
from pytest_flagperf.stored.round import MissingLogs

from .acquire import MODULE
from .agents import GRACE_S, MARGIN_S, Agent, Refused, refusal
from .lost_hosts import ANSWER_S
from .unpack import TooMuch, check_limits, unpack

_IN_MEMORY = 1 << 26
_LEAST = 1 << 20  # bytes of a piece that is not the last: a host may not send its logs byte by byte
_AGAIN_S = 0.3
_TRIES = 3

T = TypeVar("T")


class Gone(HostError):
    """Nothing is left of a round's logs on its host."""


def collect(agents: Sequence[Agent], limits: LogLimits) -> tuple[MissingLogs, ...]:
    """Fetch from every host that is elsewhere, all at once; what could not be fetched stays there."""
    elsewhere = [agent for agent in agents if not agent.host.here and agent.started]
    with ThreadPoolExecutor(max(1, len(elsewhere))) as pool:
        found = pool.map(lambda agent: _collect_one(agent, limits), elsewhere)
        return tuple(missing for missing in found if missing is not None)


def _collect_one(agent: Agent, limits: LogLimits) -> MissingLogs | None:
    why = ""
    for _ in range(_TRIES):
        while agent.lost and not agent.gone:
            time.sleep(_AGAIN_S)
        try:
            left_out = _fetch_from(agent, limits)
        except (TooMuch, Gone) as error:
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
    return MissingLogs(agent.name, agent.noderank, agent.log_dir, why)


def _fetch_from(agent: Agent, limits: LogLimits) -> tuple[str, ...]:
    """Fetch from the round's agent, or with a new one where the agent is gone and its host is not."""
    if agent.lost:
        raise HostError(agent.gone or agent.lost)
    if agent.gone:
        return fetch(agent.host, agent.code or pack({}), agent.log_dir, agent.folder, limits)

    def ask(offset: int) -> Message:
        return agent.ask(_order(offset, limits), "chunk")

    with _archive(agent.host, ask, limits) as archive:
        return unpack(archive, agent.folder, limits)


def fetch(host: Host, code: Code, log_dir: str, folder: Path, limits: LogLimits) -> tuple[str, ...]:
    """Fetch what a lost host still has, from the agent that waits there, else by a new one; the host keeps nothing.

    Returns sentences on the entries that were left out.
    """
    channel = _somebody(host, code, log_dir)
    try:

        def ask(offset: int) -> Message:
            chunk = _chunk(channel, host, _order(offset, limits))
            if not chunk["files"]:
                channel.send({"op": "leave", "remove": True})
                raise Gone(f"{host.name}: nothing is left in {log_dir}: the host was restarted, or somebody removed it")
            return chunk

        with _archive(host, ask, limits) as archive:
            left_out = unpack(archive, folder, limits)
        channel.send({"op": "leave", "remove": True})
        _next(channel, host, "end")
    finally:
        channel.close()
    return left_out


def _order(offset: int, limits: LogLimits) -> Message:
    """The order for one piece; an agent that knows the limits need not pack more than they allow."""
    return {"op": "collect", "offset": offset, "max_bytes": limits.max_bytes, "max_entries": limits.max_entries}


def _somebody(host: Host, code: Code, log_dir: str) -> Channel:
    """Whoever can hand out the logs."""
    channel = attach(host, log_dir)
    try:
        channel.send({"op": "attach", "after": 0})
        _next(channel, host, "attached")
        # The round is over here; an agent that could not be told so may still run its ranks.
        channel.send({"op": "stop", "reason": "the round is over"})
        return channel
    except HostError:
        channel.close(0.0)
    return _unless_refused(lambda: _new_agent(host, code, log_dir))  # who cleans up there may have the lock still


def _new_agent(host: Host, code: Code, log_dir: str) -> Channel:
    channel = open_module(host, code, MODULE)
    try:
        channel.send({"op": "hello", "log_dir": log_dir, "name": "", "lease_s": 0, "silence_s": None})
        _next(channel, host, "hello")
    except HostError:
        channel.close(0.0)
        raise
    return channel


def _chunk(channel: Channel, host: Host, order: Message) -> Message:
    """There are none before the ranks have ended, which may take its time."""

    def ask() -> Message:
        channel.send(order)
        return _next(channel, host, "chunk")

    return _unless_refused(ask)


def _unless_refused(ask: Callable[[], T]) -> T:
    """Ask again for as long as ranks and their container may need to end."""
    deadline = time.monotonic() + GRACE_S + MARGIN_S
    while True:
        try:
            return ask()
        except Refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def _next(channel: Channel, host: Host, kind: str) -> Message:
    deadline = time.monotonic() + ANSWER_S
    while (message := _receive(channel, host, deadline)) is not None:
        if message["type"] == kind:
            return message
        if message["type"] == "error":
            raise refusal(host.name, message)
    raise HostError(f"{host.name}: {channel.complaint().strip() or f'the agent said no {kind}'}")


def _receive(channel: Channel, host: Host, deadline: float) -> Message | None:
    try:
        return channel.receive(max(0.0, deadline - time.monotonic()))
    except TimeoutError as error:
        raise HostError(f"{host.name}: no answer in {ANSWER_S:g} s") from error


def _archive(host: Host, ask: Callable[[int], Message], limits: LogLimits) -> IO[bytes]:
    """The whole archive, its checksum verified; in memory, or in a temporary file where it is large."""
    archive = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the caller's with closes it
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
            raise HostError(f"the logs came broken: {archive.tell()} bytes, and the checksum is another")
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
    left = first["size"] - at
    if not min(left, _LEAST) <= len(piece) <= left:
        raise InvalidReply(
            host.name, f"chunk.data has {len(piece)} bytes; expected {min(left, _LEAST)} to {left} bytes"
        )
    return piece
