"""What a host asks of its Docker engine: few things, over its Unix socket, with nothing to install.

The harness's side, which builds images and makes containers, is pytest_flagperf/runtime/docker.py.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from email.message import Message

SOCKET = "/var/run/docker.sock"

_ANSWER_S = 10.0
_START_S = 120.0  # a vendor's hook sets devices up before the container runs
_NO_DEVICES = "could not select device driver"
_NO_TOOLKIT = (
    "Docker cannot give containers the devices of this host: install the container toolkit of their vendor and restart"
    f" Docker, or choose another --runtime ({_NO_DEVICES} for --gpus)"
)
_REMOVE_S = 60.0  # a writable layer of many files takes a while to delete


class EngineError(RuntimeError):
    """The engine is not there, is not ours to use, does not answer, or refused; the text says which, and what to do."""


class NoSuchContainerError(EngineError):
    """There is no container, or no image, of that name."""


class ContainerState(NamedTuple):
    """How a container is."""

    running: bool
    exit_code: int
    oom_killed: bool
    error: str  # why it could not be started
    pid: int  # of its first process, on the host; 0 where it does not run

    @property
    def sentence(self) -> str:
        """What became of it: ``went over its memory limit (exit code 137)``."""
        if self.running:
            return "is running"
        if self.error:
            return f"could not start: {self.error}"
        if self.oom_killed:
            return f"went over its memory limit (exit code {self.exit_code})"
        if self.exit_code > 128:
            return f"was killed (exit code {self.exit_code})"
        return f"ended with exit code {self.exit_code}"


class ListedContainer(NamedTuple):
    """A container, as a list of them names it."""

    id: str
    name: str
    image: str
    running: bool
    labels: Mapping[str, str]
    created: float  # since the epoch


class DockerEngine:
    """A Docker engine. Every call is a connection of its own and has a deadline; any may raise EngineError."""

    def __init__(self, path: str = SOCKET, answer_s: float = _ANSWER_S) -> None:
        self.path = path
        self._answer_s = answer_s
        self._prefix = ""

    def version(self) -> str:
        """The engine's version, as 28.2.2; that it answers at all."""
        return str(json.loads(self._call("GET", "/version"))["Version"])

    def api_version(self) -> str:
        """The newest version of its interface; the quickest thing it can be asked."""
        return self._exchange("GET", "/_ping", self._answer_s)[1].get("Api-Version", "1.41")

    def data_root(self) -> str | None:
        """Where it keeps images and containers."""
        return json.loads(self._call("GET", "/info")).get("DockerRootDir")  # type: ignore[no-any-return]

    def start(self, container: str) -> None:
        """Start a container that was made; one that runs is left to run."""
        try:
            self._call("POST", f"/containers/{quote(container)}/start", timeout_s=_START_S)
        except EngineError as error:
            if _NO_DEVICES in str(error):
                raise EngineError(_NO_TOOLKIT) from None
            raise

    def stop(self, container: str, grace_s: float = 10) -> None:
        """SIGTERM to its first process, and after ``grace_s`` SIGKILL to all."""
        query = {"t": str(int(grace_s))}
        self._call("POST", f"/containers/{quote(container)}/stop", query, timeout_s=grace_s + self._answer_s)

    def kill(self, container: str, signal: str = "SIGKILL") -> None:
        self._call("POST", f"/containers/{quote(container)}/kill", {"signal": signal})

    def remove(self, container: str, *, force: bool = True) -> bool:
        """Whether there was one to remove. By force: killed first where it runs. Volumes of its own go, too."""
        query = {"force": str(int(force)), "v": "1"}
        try:
            self._call("DELETE", f"/containers/{quote(container)}", query, timeout_s=_REMOVE_S)
        except NoSuchContainerError:
            return False
        return True

    def inspect(self, container: str) -> dict[str, Any]:
        """All that the engine knows of a container."""
        return self._json(f"/containers/{quote(container)}/json")

    def state(self, container: str) -> ContainerState:
        told = self.inspect(container)["State"]
        return ContainerState(
            running=bool(told["Running"]),
            exit_code=int(told["ExitCode"]),
            oom_killed=bool(told.get("OOMKilled")),
            error=str(told.get("Error") or ""),
            pid=int(told.get("Pid") or 0),
        )

    def labelled(self, *labels: str) -> list[ListedContainer]:
        """All containers, running or not, that have every one of ``labels``: ``name`` or ``name=value``."""
        query = {"all": "1", "filters": json.dumps({"label": labels})}
        return [
            ListedContainer(
                id=entry["Id"],
                name=(entry.get("Names") or ["/" + entry["Id"][:12]])[0].lstrip("/"),
                image=entry["Image"],
                running=entry["State"] == "running",
                labels=entry.get("Labels") or {},
                created=float(entry["Created"]),
            )
            for entry in json.loads(self._call("GET", "/containers/json", query))
        ]

    def image(self, name: str) -> dict[str, Any] | None:
        """All that the engine knows of an image; None where it has none of that name."""
        try:
            return self._json(f"/images/{quote(name)}/json")
        except NoSuchContainerError:
            return None

    def logs(self, container: str, lines: int = 20) -> str:
        """The last lines of what a container printed, on either of its outputs."""
        query = {"stdout": "1", "stderr": "1", "tail": str(lines)}
        raw = self._call("GET", f"/containers/{quote(container)}/logs", query)
        return _demultiplexed(raw).decode("utf-8", "replace")

    def _json(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._call("GET", path))
        return answer

    def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> bytes:
        if not self._prefix:
            # Engines refuse versions that they do not know, new and old: each is asked in its own.
            self._prefix = "/v" + self.api_version()
        target = self._prefix + path + ("?" + urlencode(query) if query else "")
        status, _, body = self._exchange(method, target, timeout_s or self._answer_s)
        if status == 404:
            raise NoSuchContainerError(_message(body))
        if status >= 400:
            raise EngineError(f"Docker refused {method} {path}: {_message(body)} (status {status})")
        return body

    def _exchange(self, method: str, target: str, timeout_s: float) -> tuple[int, Message, bytes]:
        import http.client  # slow to import, and only needed where there is an engine

        connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # used as it is, instead of a TCP socket
        try:
            connection.sock.settimeout(timeout_s)
            connection.sock.connect(self.path)
            connection.request(method, target)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(self._why(error, timeout_s)) from error
        finally:
            connection.close()

    def _why(self, error: Exception, timeout_s: float) -> str:
        if isinstance(error, PermissionError):
            user, group = _user(), _group(self.path)
            return (
                f"user {user} may not use {self.path}, which is for root and the group {group}; "
                f"add them to it, sudo usermod -aG {group} {user}, and log in anew"
            )
        if isinstance(error, FileNotFoundError):
            return f"there is no {self.path}: Docker is not installed, or not started (sudo systemctl start docker)"
        if isinstance(error, ConnectionRefusedError):
            return f"nobody listens on {self.path}: Docker is not running (sudo systemctl start docker)"
        if isinstance(error, socket.timeout):
            return f"Docker at {self.path} did not answer within {timeout_s:g} s"
        return f"Docker at {self.path} broke off: {error or type(error).__name__}"


def _demultiplexed(raw: bytes) -> bytes:
    """Both outputs in the order they came: frames of one byte for which, three of nothing, a length and the text."""
    parts: list[bytes] = []
    at = 0
    while at + 8 <= len(raw) and raw[at] in (0, 1, 2) and raw[at + 1 : at + 4] == b"\0\0\0":
        (length,) = struct.unpack(">I", raw[at + 4 : at + 8])
        parts.append(raw[at + 8 : at + 8 + length])
        at += 8 + length
    return b"".join(parts) if parts else raw


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, LookupError, TypeError):
        return body.decode("utf-8", "replace").strip()[:200] or "it gave no reason"


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _group(path: str) -> str:
    try:
        return Path(path).group()
    except (OSError, KeyError):
        return "docker"


def main() -> int:
    """Say the engine's version, or why it cannot be used."""
    try:
        print(DockerEngine().version())
    except EngineError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
