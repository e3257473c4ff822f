"""Deploy the code that runs on hosts, once for each content, completely or not at all, and run its modules."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import flagperf_driver

from . import Channel, Host, HostError, Message, bootstrap
from .remote import RemoteHost
from .replies import TEXT, CheckedChannel, Shape, check

Report = Callable[[str], None]
_TIMEOUT_S = 120.0
_CLOSE_S = 5.0
_BOOTSTRAP = Path(bootstrap.__file__).read_text("utf-8")
_SWEEP_MODULE = "flagperf_driver.node.orphans"
_SWEPT: Shape = {"swept": [TEXT], "problems": [TEXT]}
_ENDS = ("answer", "error")  # the types of a module's last message
_NVML_MODULE = "pynvml"  # imported by the sampler where it reads devices with NVML

cache_root = bootstrap.cache_root


@dataclass(frozen=True)
class Code:
    """The code that runs on hosts; equal content has an equal digest and is deployed once."""

    digest: str
    raw: bytes = field(repr=False)  # a tar archive

    @cached_property
    def archive(self) -> bytes:
        """The compressed archive: made for the first host that does not have the code, for none if all have it."""
        return zlib.compress(self.raw, 6)


class Helper:
    """The process of the code that checks a host: it answers light calls, and becomes the next module started there.

    A further session costs the controller more than all messages in it. A host without a connection has no helper.
    """

    def __init__(self, host: Host, code: Code, channel: Channel) -> None:
        self.channel = channel
        self.code = code
        self.is_lent = False
        self._host = host
        self._early: list[Message] = []  # messages that arrived before they were expected
        self._waits = False  # for the answer of a call that took too long

    def expect(self, deadline: float, *types: str) -> Message | None:
        """Return the next message of one of these types; None after the end of the process."""
        for message in self._early:
            if message["type"] in types:
                self._early.remove(message)
                return message
        while (received := self.channel.receive(max(0.0, deadline - time.monotonic()))) is not None:
            if received["type"] in types:
                return received
            self._early.append(received)
        return None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let the light calls of the block use the process."""
        if not isinstance(self._host, RemoteHost):
            yield
            return
        self.is_lent, _HELPERS[self._host] = True, self
        try:
            yield
        finally:
            del _HELPERS[self._host]
            self.is_lent = False

    def keep(self) -> None:
        """Let the next module that is started on the host use the process."""
        if isinstance(self._host, RemoteHost) and not self._waits:
            _HELPERS[self._host] = self
        else:
            self.close()

    def close(self) -> None:
        with suppress(HostError):
            self.channel.close(1.0)

    def call(self, module: str, request: Message, deadline: float) -> Message:
        """Return the answer or the error of a module."""
        if self._waits:
            raise HostError(f"{self._host.name}: an earlier request was not answered")
        self._waits = True
        self.channel.send({"op": "call", "module": module, "request": request})
        try:
            message = self.expect(deadline, *_ENDS)
        except TimeoutError as late:
            raise HostError(f"{self._host.name}: {module} did not answer in time") from late
        if message is None:
            raise HostError(f"{self._host.name}: {module} ended without an answer")
        self._waits = False
        return message

    def becomes(self, module: str) -> bool:
        """Return True if the process runs the module from now on, False if it or its connection has ended meanwhile."""
        with suppress(HostError, TimeoutError):
            self.channel.send({"op": "become", "module": module})
            if self.expect(time.monotonic() + _TIMEOUT_S, "ready") is not None:
                return True
        self.close()
        return False


_HELPERS: WeakKeyDictionary[Host, Helper] = WeakKeyDictionary()


def pack(trees: Mapping[str, Path]) -> Code:
    """Pack ``flagperf_driver`` and each of ``trees``, a folder or a file, under its relative name."""
    raw = _archive(dict(_files({**_library(), "flagperf_driver": Path(flagperf_driver.__file__).parent, **trees})))
    return Code(hashlib.sha256(raw).hexdigest()[:32], raw)


def stage(host: Host, code: Code) -> str:
    """Deploy the code and return its folder on the host."""
    with _bootstrap(host, "stage", code.digest) as channel:
        return _deliver(host, channel, code, "the code")


def open_module(host: Host, code: Code, module: str, report: Report = lambda _: None) -> Channel:
    """Start a module of the code in an isolated interpreter and return the connection to it.

    ``report`` is called if the code must be copied to the host.
    """
    helper = _HELPERS.pop(host, None)
    if helper is not None and helper.code != code:
        helper.close()
    elif helper is not None and helper.becomes(module):
        return helper.channel
    channel = _start_bootstrap(host, "boot", code.digest, module)
    try:
        _deliver(host, channel, code, module, report)
    except BaseException:
        channel.close(0.0)
        raise
    return channel


def call_module(
    host: Host,
    code: Code,
    module: str,
    request: Message,
    *,
    timeout_s: float,
    shape: Shape,
    on_message: Callable[[Message], None] = lambda _: None,
    light: bool = False,
) -> dict[str, Any]:
    """Send one request to a module and return its answer, checked by ``shape``.

    Earlier messages are passed to ``on_message``. A helper that is lent answers ``light`` requests: without long work.
    """
    deadline = time.monotonic() + timeout_s
    helper = _HELPERS.get(host) if light else None
    if helper is not None and helper.is_lent and helper.code == code:
        message = helper.call(module, request, deadline)
    else:
        with _bootstrap(host, "boot", code.digest, module) as channel:
            _deliver(host, channel, code, module)
            with suppress(HostError):  # the program has ended: its message, read next, has the reason
                channel.send(request)
            while (message := _next(host, channel, module, deadline)).get("type") not in _ENDS:
                on_message(message)
    if message["type"] == "error":
        raise HostError(f"{host.name}: {message.get('sentence')}")
    check(host.name, message, shape, "answer")
    return {name: value for name, value in message.items() if name != "type"}


def sweep(host: Host, code: Code, log_dir: str, docker: str | None) -> tuple[list[str], list[str]]:
    """End the processes of the round that logged to ``log_dir`` and remove its containers and folders.

    Return their names, and the problems. ``docker`` is the socket of the engine of the round's container, if any.
    """
    request = {"log_dir": log_dir, "docker": docker}
    swept = call_module(host, code, _SWEEP_MODULE, request, timeout_s=_TIMEOUT_S, shape=_SWEPT)
    return swept["swept"], swept["problems"]


def attach(host: Host, log_dir: str) -> Channel:
    """Return a connection to the running agent that logs to ``log_dir``."""
    return _start_bootstrap(host, "attach", log_dir)


def _start_bootstrap(host: Host, *words: str) -> Channel:
    return CheckedChannel(host.name, host.open([host.python, "-I", "-S", "-c", _BOOTSTRAP, *words]))


@contextmanager
def _bootstrap(host: Host, *words: str) -> Iterator[Channel]:
    channel = _start_bootstrap(host, *words)
    try:
        yield channel
    except BaseException:
        channel.close(0.0)
        raise
    channel.close(_CLOSE_S)


def _deliver(host: Host, channel: Channel, code: Code, module: str, report: Report = lambda _: None) -> str:
    """Send the code if the host does not have it; return its folder."""
    deadline = time.monotonic() + _TIMEOUT_S
    while (message := _next(host, channel, module, deadline)).get("type") != "ready":
        if message.get("type") == "need":
            report(f"copying the code ({len(code.archive) / 1e6:.1f} MB)")
            channel.send({"op": "code", "archive": base64.b64encode(code.archive).decode()})
    return str(message["path"])


def _next(host: Host, channel: Channel, module: str, deadline: float) -> Message:
    try:
        message = channel.receive(max(0.0, deadline - time.monotonic()))
    except TimeoutError as late:
        raise HostError(f"{host.name}: {module} did not answer in time") from late
    if message is None:
        code = channel.close(_CLOSE_S)
        last = channel.error_output().strip().splitlines()[-1:] or ["no output"]
        raise HostError(f"{host.name}: {module} by {host.python} failed with exit code {code}: {last[0]}")
    return message


# -- packing -----------------------------------------------------------------------------------------------


def _library() -> dict[str, Path]:
    """Return the packages beyond the standard library that the hosts import; they are pure Python."""
    spec = importlib.util.find_spec(_NVML_MODULE)
    if spec is None or spec.origin is None:
        return {}
    origin = Path(spec.origin)
    if spec.submodule_search_locations:
        return {f"lib/{_NVML_MODULE}": origin.parent}
    return {f"lib/{origin.name}": origin}


def _files(trees: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    for prefix, root in sorted(trees.items()):
        if root.is_file():
            yield prefix, root
        elif root.is_dir():
            yield from ((f"{prefix}/{path.relative_to(root).as_posix()}", path) for path in _walk(root))
        else:
            raise HostError(f"{root}: folder not found; the hosts need it as {prefix}")


def _walk(root: Path) -> Iterator[Path]:
    """Yield all files except compiled files; links are followed, and each folder is visited once."""
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(folder, name) for name in sorted(names) if not name.endswith(".pyc"))


def _archive(files: Mapping[str, Path]) -> bytes:
    """Return a tar archive that depends only on the names, contents and executable bits of the files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in sorted(files):
            content = files[name].read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if os.access(files[name], os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
