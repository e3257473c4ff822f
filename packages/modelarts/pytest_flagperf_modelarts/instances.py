"""The instances of a job as hosts with an agent each, whose messages come from the job's logs in OBS."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pytest_flagperf.hosts import Channel, Completed, HostError, Message
from pytest_flagperf.hosts.replies import COUNT, TEXT, Shape, check, check_length

from .job.layout import job_archive, job_messages
from .job.main import PREFIX, SUMMARY

if TYPE_CHECKING:
    from .obs import Obs
    from .obs_path import ObsFolder

_PIECE = 4 << 20  # bytes of a piece of the packed logs
_LOG_PIECE = 16 << 20  # bytes of a log that are read at once
_BEAT_S = 1.0
_BEAT: Message = {"type": "beat", "ranks": {}, "slow": {}}
_SUMMARY: Shape = {"size": COUNT, "sha256": TEXT, "files": COUNT}


class JobControl(Protocol):
    """What a channel needs of its job."""

    @property
    def obs(self) -> Obs: ...

    @property
    def output(self) -> ObsFolder: ...

    def order(self, instance: int, message: Message) -> None: ...

    def request_stop(self, instance: int, reason: str) -> None: ...

    def leave(self) -> None: ...


class InstanceChannel:
    """The connection to the agent of an instance: it takes the controller's orders and returns the agent's messages."""

    def __init__(self, job: JobControl, instance: int, host: str) -> None:
        self.instance = instance
        self.log_file: Path | None = None
        self.faulty = False  # the agent reported a fault
        self.is_over = False  # the agent reported the end of its ranks
        self._ended_well: Sequence[int] = ()
        self.finished = False  # no more messages will come
        self.summary: Mapping[str, Any] | None = None
        self._job = job
        self._host = host
        self._read_to = 0  # bytes of the log
        self._copied = False  # a part of the log is in the file
        self._partial = b""
        self._last = 0  # number of the last message
        self._closed = False
        self._messages: deque[Message | HostError] = deque()
        self._arrived = threading.Condition()
        self._beat_at = 0.0

    @property
    def has_started(self) -> bool:
        """Return True if the instance sent a message: it has copied the code."""
        return self._last > 0

    # -- the controller's side -----------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        operation = message["op"]
        if operation == "start":
            self._job.order(self.instance, message)
        elif operation == "stop":
            self._job.request_stop(self.instance, str(message.get("reason", "")))
        elif operation == "attach":
            self._put({"type": "attached", "started": True}, first=True)
        elif operation == "collect":
            self._put(self._chunk(int(message["offset"])))
        elif operation == "leave":
            self._put({"type": "end"})

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message. While the job waits for resources, beats show that the connection works."""
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while not self._messages and not self._closed:
                if (now := time.monotonic()) >= self._beat_at:
                    self._beat_at = now + _BEAT_S
                    return dict(_BEAT)
                if now >= deadline:
                    raise TimeoutError(f"{self._host}: no message in time")
                self._arrived.wait(min(deadline, self._beat_at) - now)
            message = self._messages.popleft() if self._messages else None
        if isinstance(message, HostError):
            raise message
        return message

    def on_arrival(self, call: Callable[[], None]) -> bool:  # noqa: ARG002 - beats come only when somebody looks
        return False

    def close(self, timeout_s: float = 5.0) -> int | None:  # noqa: ARG002 - the interface of a channel
        with self._arrived:
            if self._closed:
                return 0
            self._closed = True
            self._arrived.notify_all()
        self._job.leave()
        return 0

    def error_output(self) -> str:
        return ""

    def reopen(self) -> bool:
        """Let a closed channel be used again; return True if it was closed."""
        with self._arrived:
            was_closed, self._closed = self._closed, False
        return was_closed

    # -- the job's side ------------------------------------------------------------------------------------

    def lose(self, error: HostError) -> None:
        """Report that the cloud does not answer."""
        self._put(error)

    def synchronize(self, folder: ObsFolder, name: str) -> None:
        """Copy the new part of the instance's log, and take its messages."""
        found = self._job.obs.find(folder, name)
        if found is None or found.size == self._read_to:
            return
        if found.size < self._read_to:  # the log was started again: keep the old one and read from its beginning
            self._read_to, self._partial = 0, b""
        while self._read_to < found.size:
            piece = self._job.obs.read(folder, name, self._read_to, min(_LOG_PIECE, found.size - self._read_to))
            if not piece:
                return
            self._read_to += len(piece)
            self._copy(piece)
            *lines, self._partial = (self._partial + piece).split(b"\n")
            check_length(self._host, len(self._partial))
            for line in lines:
                self._take_line(line)

    def read_output(self) -> bool:
        """Take the messages that the instance left in the job's output; return True if they are complete."""
        name = job_messages(self.instance)
        if self._job.obs.find(self._job.output, name) is not None:
            for line in self._job.obs.read(self._job.output, name).splitlines():
                self._take_line(PREFIX.encode() + line)
        return self.summary is not None and self._has_archive()

    def finish(self, ended: str) -> None:
        """Report the end of the job, ``ended``, to the controller."""
        if not self.is_over and not self.faulty:
            self._put({"type": "fault", "kind": "job", "rank": None, "sentence": ended})
        if self.summary is None:
            self._put({"type": "warning", "sentence": f"the job left no logs in {self._job.output.url}"})
        self.finished = True
        self._put({"type": "over", "ended_well": self._ended_well})

    def _copy(self, piece: bytes) -> None:
        if self.log_file is not None:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with self.log_file.open("ab" if self._copied else "wb") as log:
                log.write(piece)
            self._copied = True

    def _take_line(self, line: bytes) -> None:
        """Take the message of a line of the log, once; other lines of the log are of the cloud or of other programs."""
        _, mark, text = line.decode("utf-8", "replace").partition(PREFIX)
        number, _, body = text.partition(" ")
        if not mark or not number.isdecimal() or int(number) <= self._last:
            return
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        self._last = int(number)
        kind = message.get("type")
        if kind == SUMMARY:
            check(self._host, message, _SUMMARY, SUMMARY)
            self.summary = message
        elif kind == "over":
            self.is_over = True  # passed on when the job has ended, since its logs are published later
            self._ended_well = message.get("ended_well", [])
        else:
            self.faulty = self.faulty or kind == "fault"
            self._put(message)

    def _put(self, message: Message | HostError, *, first: bool = False) -> None:
        with self._arrived:
            if first:
                self._messages.appendleft(message)
            else:
                self._messages.append(message)
            self._arrived.notify_all()

    def _has_archive(self) -> bool:
        found = self._job.obs.find(self._job.output, job_archive(self.instance))
        return found is not None and self.summary is not None and found.size == self.summary["size"]

    def _chunk(self, offset: int) -> Message:
        """Return a piece of the packed logs."""
        if not self.finished:
            return {"type": "error", "sentence": "the job has not ended"}
        facts: dict[str, Any]
        if self.summary is None:
            content = _empty_archive()
            facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "files": 0}
            piece = content[offset:]
        else:
            facts = {name: self.summary[name] for name in _SUMMARY}
            size = min(_PIECE, facts["size"] - offset)
            piece = self._job.obs.read(self._job.output, job_archive(self.instance), offset, size)
        return {"type": "chunk", "offset": offset, "data": base64.b64encode(piece).decode(), **facts}


def _empty_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w"):
        pass
    return gzip.compress(buffer.getvalue(), mtime=0)


class InstanceHost:
    """An instance of a job, which runs nothing but its job."""

    is_local = False
    python = "python3"

    def __init__(
        self, number: int, open_channel: Callable[[str], Channel], check_reachable: Callable[[], None]
    ) -> None:
        self.name = f"instance{number}"
        self.address = f"{self.name}.modelarts"
        self._open_channel = open_channel
        self._check_reachable = check_reachable

    def __repr__(self) -> str:
        return f"InstanceHost({self.name!r})"

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Channel:  # noqa: ARG002
        self._refuse()

    def put(self, digest: str, archive: Callable[[], bytes]) -> str:  # noqa: ARG002
        self._refuse()

    def connect(self, path: str) -> Channel:
        """Return the connection to the agent of a job, whose socket is in its log folder."""
        return self._open_channel(path.rpartition("/")[0])

    def run(
        self,
        argv: Sequence[str],  # noqa: ARG002
        *,
        timeout_s: float,  # noqa: ARG002
        stdin: bytes = b"",  # noqa: ARG002
        env: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> Completed:
        self._refuse()

    def open_socket(self, path: str) -> socket:  # noqa: ARG002
        self._refuse()

    def reconnect(self) -> None:
        """Return if the cloud answers; HostError with the reason if it does not."""
        self._check_reachable()

    def close(self) -> None:
        """Do nothing: an instance has no connection of its own."""

    def _refuse(self) -> NoReturn:
        raise HostError(f"{self.name}: an instance of a job runs only its job")
