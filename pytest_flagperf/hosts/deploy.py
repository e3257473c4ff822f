"""Bring the code that runs on a host to it, once per content, whole or not at all; and run its modules there."""

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
from pathlib import Path
from typing import Any

import flagperf_driver

from . import Channel, Host, HostError, Message
from . import bootstrap as _far
from .replies import TEXT, Checked, Shape, check

_TIMEOUT_S = 120.0
_PATIENCE_S = 5.0
_FAR = Path(_far.__file__)
_SWEEPS = "flagperf_driver.node.orphans"
_READS_DEVICES = "pynvml"  # what the sampler imports there, if there are such devices

cache_root = _far.cache_root


@dataclass(frozen=True)
class Code:
    """What runs on the hosts: equal content has an equal digest, and is on a host once."""

    digest: str
    archive: bytes = field(repr=False)  # compressed


def pack(trees: Mapping[str, Path]) -> Code:
    """``flagperf_driver`` and each of ``trees``, a folder or a file, under its relative name."""
    raw = _archive(dict(_files({**_library(), "flagperf_driver": Path(flagperf_driver.__file__).parent, **trees})))
    return Code(hashlib.sha256(raw).hexdigest()[:32], zlib.compress(raw, 6))


def stage(host: Host, code: Code) -> str:
    """The folder on the host that holds the code."""
    with _conversation(host, "stage", code.digest) as channel:
        return _deliver(host, channel, code, "the code")


def open_module(host: Host, code: Code, module: str) -> Channel:
    """A conversation with one of the code's modules, in an interpreter that sees nothing else."""
    channel = _far_side(host, "boot", code.digest, module)
    try:
        _deliver(host, channel, code, module)
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
    shape: Mapping[str, Shape],
    on_message: Callable[[Message], None] = lambda _: None,
) -> dict[str, Any]:
    """The module's answer to one request, which has that shape; what it says before goes to ``on_message``."""
    deadline = time.monotonic() + timeout_s
    with _conversation(host, "boot", code.digest, module) as channel:
        _deliver(host, channel, code, module)
        with suppress(HostError):  # a program that is gone already: why is in what it left, and read next
            channel.send(request)
        while (message := _next(host, channel, module, deadline)).get("type") != "answer":
            if message.get("type") == "error":
                raise HostError(f"{host.name}: {message.get('sentence')}")
            on_message(message)
    check(host.name, message, shape, "answer")
    return {name: value for name, value in message.items() if name != "type"}


def sweep(host: Host, code: Code, log_dir: str, docker: str | None) -> tuple[list[str], list[str]]:
    """End and remove what is left of the round that logged there; the names, and what could not be removed.

    ``docker`` is the socket of the engine that has the round's container, if there is one.
    """
    request = {"log_dir": log_dir, "docker": docker}
    swept = call_module(host, code, _SWEEPS, request, timeout_s=_TIMEOUT_S, shape={"swept": [TEXT], "problems": [TEXT]})
    return swept["swept"], swept["problems"]


def attach(host: Host, log_dir: str) -> Channel:
    """A connection to the agent that runs already and logs there, as if it had just been started."""
    return _far_side(host, "attach", log_dir)


def _far_side(host: Host, *words: str) -> Channel:
    return Checked(host.name, host.open([host.python, "-I", "-S", "-c", _FAR.read_text("utf-8"), *words]))


@contextmanager
def _conversation(host: Host, *words: str) -> Iterator[Channel]:
    channel = _far_side(host, *words)
    try:
        yield channel
    except BaseException:
        channel.close(0.0)
        raise
    channel.close(_PATIENCE_S)


def _deliver(host: Host, channel: Channel, code: Code, module: str) -> str:
    """Hand the code over if the host has not got it; where it is."""
    deadline = time.monotonic() + _TIMEOUT_S
    while (said := _next(host, channel, module, deadline)).get("type") != "ready":
        if said.get("type") == "need":
            channel.send({"op": "code", "archive": base64.b64encode(code.archive).decode()})
    return str(said["path"])


def _next(host: Host, channel: Channel, module: str, deadline: float) -> Message:
    try:
        message = channel.receive(max(0.0, deadline - time.monotonic()))
    except TimeoutError as late:
        raise HostError(f"{host.name}: {module} did not answer in time") from late
    if message is None:
        code = channel.close(_PATIENCE_S)
        said = channel.complaint().strip().splitlines()[-1:] or ["no output"]
        raise HostError(f"{host.name}: {module} by {host.python} failed with exit code {code}: {said[0]}")
    return message


# -- packing -----------------------------------------------------------------------------------------------


def _library() -> dict[str, Path]:
    """What the far side imports that is not Python's: read from our environment, for it is all Python."""
    found = importlib.util.find_spec(_READS_DEVICES)
    if found is None or found.origin is None:
        return {}
    origin = Path(found.origin)
    if found.submodule_search_locations:
        return {f"lib/{_READS_DEVICES}": origin.parent}
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
    """Every file but compiled ones; links are followed, round in a circle once."""
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(folder, name) for name in sorted(names) if not name.endswith(".pyc"))


def _archive(files: Mapping[str, Path]) -> bytes:
    """It depends on nothing but names, contents and what may be executed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in sorted(files):
            content = files[name].read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if os.access(files[name], os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
