"""The logs of a round, brought here once: one archive from each host, verified before it is unpacked."""

from __future__ import annotations

import base64
import hashlib
import shutil
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pytest_flagperf.cluster import Channel, Host, HostError, Message
from pytest_flagperf.cluster.deploy import Code, attach, open_module

from .crew import ANSWER_S, GRACE_S, MARGIN_S, Agent
from .muster import MODULE

_IN_MEMORY = 1 << 26
_AGAIN_S = 0.3
_TRIES = 3


class Refused(HostError):
    """An agent does not do what it is asked."""


class Gone(HostError):
    """Nothing is left of a round's logs on its host."""


@dataclass(frozen=True)
class Missing:
    """Logs that are still on a host."""

    host: str
    noderank: int
    log_dir: str
    why: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def collect(agents: Sequence[Agent]) -> tuple[Missing, ...]:
    """Fetch from every host that is elsewhere, all at once; what could not be fetched stays there."""
    elsewhere = [agent for agent in agents if not agent.host.here and agent.started]
    with ThreadPoolExecutor(max(1, len(elsewhere))) as pool:
        return tuple(missing for missing in pool.map(_collect_one, elsewhere) if missing is not None)


def _collect_one(agent: Agent) -> Missing | None:
    why = ""
    for _ in range(_TRIES):
        while agent.lost and not agent.gone:
            time.sleep(_AGAIN_S)
        try:
            if agent.gone:
                raise HostError(agent.gone)
            with _archive(lambda offset: agent.ask({"op": "collect", "offset": offset}, "chunk")) as archive:
                _unpack(archive, agent.folder)
            return None
        except (HostError, OSError) as error:
            why = str(error)
        if agent.gone:
            break
        time.sleep(_AGAIN_S)
    return Missing(agent.name, agent.noderank, agent.log_dir, why)


def fetch(host: Host, code: Code, log_dir: str, folder: Path) -> None:
    """What a lost host still had: from the agent that waits there, else by a new one; the host keeps nothing."""
    channel = _somebody(host, code, log_dir)
    try:

        def ask(offset: int) -> Message:
            chunk = _chunk(channel, host, offset)
            if not chunk["files"]:
                channel.send({"op": "leave", "remove": True})
                raise Gone(f"{host.name}: nothing is left in {log_dir}: the host was restarted, or somebody removed it")
            return chunk

        with _archive(ask) as archive:
            _unpack(archive, folder)
        channel.send({"op": "leave", "remove": True})
        _next(channel, host, "end")
    finally:
        channel.close()


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
    channel = open_module(host, code, MODULE)
    try:
        channel.send({"op": "hello", "log_dir": log_dir, "name": "", "lease_s": 0, "silence_s": None})
        _next(channel, host, "hello")
    except HostError:
        channel.close(0.0)
        raise
    return channel


def _chunk(channel: Channel, host: Host, offset: int) -> Message:
    """There are none before the ranks have ended, which may take its time."""
    deadline = time.monotonic() + GRACE_S + MARGIN_S
    while True:
        channel.send({"op": "collect", "offset": offset})
        try:
            return _next(channel, host, "chunk")
        except Refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def _next(channel: Channel, host: Host, kind: str) -> Message:
    while (message := _receive(channel, host)) is not None:
        if message["type"] == kind:
            return message
        if message["type"] == "error":
            raise Refused(f"{host.name}: its agent refuses: {message['sentence']}")
    raise HostError(f"{host.name}: {channel.complaint().strip() or f'the agent said no {kind}'}")


def _receive(channel: Channel, host: Host) -> Message | None:
    try:
        return channel.receive(ANSWER_S)
    except TimeoutError as error:
        raise HostError(f"{host.name}: no answer in {ANSWER_S:g} s") from error


def _archive(ask: Any) -> IO[bytes]:
    """The whole archive, its checksum verified; in memory, or in a temporary file where it is large."""
    archive = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the caller's with closes it
    digest = hashlib.sha256()
    while True:
        chunk = ask(archive.tell())
        raw = base64.b64decode(chunk["data"])
        archive.write(raw)
        digest.update(raw)
        if archive.tell() >= int(chunk["size"]) or not raw:
            break
    if digest.hexdigest() != chunk["sha256"]:
        size = archive.tell()
        archive.close()
        raise HostError(f"the logs came broken: {size} of {chunk['size']} bytes, and the checksum is another")
    archive.seek(0)
    return archive


def _unpack(archive: IO[bytes], folder: Path) -> None:
    """Whole or not at all; HostError where it is no archive."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            tar.extractall(temporary, filter=_without_strays)  # noqa: S202 - data only, by our filter
        temporary.chmod(0o755)
        if folder.is_dir():
            shutil.copytree(temporary, folder, dirs_exist_ok=True)
        else:
            temporary.rename(folder)
    except tarfile.TarError as error:
        raise HostError(f"the logs cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _without_strays(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """A rank may have made a link that leads out of its folder; it is left out, and does not hold up the logs."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None
