"""A small client for the Docker engine of a host, over its Unix socket, without dependencies.

The controller's side, which builds images and creates containers, is pytest_flagperf/runtime/docker.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple
from urllib.parse import quote, urlencode

from flagperf_driver.node.users import user_name

if TYPE_CHECKING:
    from email.message import Message

SOCKET = "/var/run/docker.sock"

_TIMEOUT_S = 10.0
_START_S = 120.0  # a vendor's hook sets up the devices before the container runs
_NO_DEVICES = "could not select device driver"
_NO_TOOLKIT = (
    "Docker cannot give containers the devices of this host: install the vendor's container toolkit and restart"
    f" Docker, or choose another --runtime ({_NO_DEVICES} for --gpus)"
)
_WAIT_S = 3600.0
_REMOVE_S = 60.0  # deleting a writable layer with many files takes time


class EngineError(RuntimeError):
    """The engine is missing, not permitted, silent, or refused a request; the text says which, and how to fix it."""


class NoSuchContainerError(EngineError):
    """Container or image not found."""


class ContainerState(NamedTuple):
    """The state of a container."""

    running: bool
    exit_code: int
    oom_killed: bool
    error: str  # why it could not be started
    pid: int  # of its first process, on the host; 0 if the container is not running

    @property
    def sentence(self) -> str:
        """The state as the end of a sentence: ``exceeded its memory limit (exit code 137)``."""
        if self.running:
            return "is running"
        if self.error:
            return f"could not start: {self.error}"
        if self.oom_killed:
            return f"exceeded its memory limit (exit code {self.exit_code})"
        if self.exit_code > 128:
            return f"was killed (exit code {self.exit_code})"
        return f"ended with exit code {self.exit_code}"


class ListedContainer(NamedTuple):
    """A container as an entry of the engine's list."""

    id: str
    name: str
    image: str
    running: bool
    labels: Mapping[str, str]
    created: float  # since the epoch


class DockerEngine:
    """A Docker engine. Every call opens a connection, has a deadline and may raise EngineError."""

    def __init__(self, path: str = SOCKET, timeout_s: float = _TIMEOUT_S) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._prefix = ""

    def version(self) -> str:
        """Return the engine's version, for example 28.2.2."""
        return str(json.loads(self._call("GET", "/version"))["Version"])

    def api_version(self) -> str:
        """Return the newest API version of the engine; this is its fastest call."""
        return self._exchange("GET", "/_ping", self._timeout_s)[1].get("Api-Version", "1.41")

    def data_root(self) -> str | None:
        """Return the folder where the engine stores images and containers."""
        return json.loads(self._call("GET", "/info")).get("DockerRootDir")  # type: ignore[no-any-return]

    def start(self, container: str) -> None:
        """Start a container that was created before, unless it is running already."""
        try:
            self._call("POST", f"/containers/{quote(container)}/start", timeout_s=_START_S)
        except EngineError as error:
            if _NO_DEVICES in str(error):
                raise EngineError(_NO_TOOLKIT) from None
            raise

    def wait(self, container: str) -> None:
        """Wait until the container does not run; EngineError after an hour."""
        self._call("POST", f"/containers/{quote(container)}/wait", timeout_s=_WAIT_S)

    def remove(self, container: str, *, force: bool = True) -> bool:
        """Remove a container and its volumes, by ``force`` a running one; return False if it does not exist."""
        query = {"force": str(int(force)), "v": "1"}
        try:
            self._call("DELETE", f"/containers/{quote(container)}", query, timeout_s=_REMOVE_S)
        except NoSuchContainerError:
            return False
        return True

    def inspect(self, container: str) -> dict[str, Any]:
        """Return the engine's full description of a container."""
        return self._json(f"/containers/{quote(container)}/json")

    def state(self, container: str) -> ContainerState:
        state = self.inspect(container)["State"]
        return ContainerState(
            running=bool(state["Running"]),
            exit_code=int(state["ExitCode"]),
            oom_killed=bool(state.get("OOMKilled")),
            error=str(state.get("Error") or ""),
            pid=int(state.get("Pid") or 0),
        )

    def labelled(self, *labels: str) -> list[ListedContainer]:
        """Return all containers, running or not, that have all the ``labels``: ``name`` or ``name=value``."""
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
        """Return the engine's full description of an image, or None if the image does not exist."""
        try:
            return self._json(f"/images/{quote(name)}/json")
        except NoSuchContainerError:
            return None

    def logs(self, container: str, lines: int = 20) -> str:
        """Return the last lines that a container printed to stdout or stderr."""
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
            # Engines refuse unknown API versions, both older and newer ones, so use the engine's own.
            self._prefix = "/v" + self.api_version()
        target = self._prefix + path + ("?" + urlencode(query) if query else "")
        status, _, body = self._exchange(method, target, timeout_s or self._timeout_s)
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
            raise EngineError(self._reason(error, timeout_s)) from error
        finally:
            connection.close()

    def _reason(self, error: Exception, timeout_s: float) -> str:
        if isinstance(error, PermissionError):
            user, group = user_name(os.geteuid()), _group(self.path)
            return (
                f"user {user} may not use {self.path}, only root and the group {group} may; "
                f"add the user to the group (sudo usermod -aG {group} {user}) and log in again"
            )
        if isinstance(error, FileNotFoundError):
            return f"{self.path} not found: Docker is not installed or not running (sudo systemctl start docker)"
        if isinstance(error, ConnectionRefusedError):
            return f"no process listens on {self.path}: Docker is not running (sudo systemctl start docker)"
        if isinstance(error, socket.timeout):
            return f"Docker at {self.path} did not answer within {timeout_s:g} s"
        return f"the connection to Docker at {self.path} failed: {error or type(error).__name__}"


def _demultiplexed(raw: bytes) -> bytes:
    """Join stdout and stderr in their order. A frame is 1 byte for the stream, 3 zero bytes, a length, the text."""
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
        return body.decode("utf-8", "replace").strip()[:200] or "no reason given"


def _group(path: str) -> str:
    try:
        return Path(path).group()
    except (OSError, KeyError):
        return "docker"
