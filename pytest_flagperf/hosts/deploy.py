"""Deploy the code that runs on hosts, once for each content, completely or not at all, and run its modules."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import flagperf_driver
from flagperf_driver.node.deployed_code import module_argv

from . import Channel, Host, HostError, HostLost, Message
from .replies import TEXT, CheckedChannel, Shape, check

Report = Callable[[str], None]
_TIMEOUT_S = 120.0
_CLOSE_S = 5.0
_SWEEP_MODULE = "flagperf_driver.node.orphans"
_SWEPT: Shape = {"swept": [TEXT], "problems": [TEXT]}
_ENDS = ("answer", "error")  # the types of a module's last message
_NVML_MODULE = "pynvml"  # imported by the sampler where it reads devices with NVML


@dataclass(frozen=True)
class Code:
    """The code that runs on hosts; equal content has an equal digest and is deployed once."""

    digest: str
    raw: bytes = field(repr=False)  # a tar archive

    @cached_property
    def archive(self) -> bytes:
        """The compressed archive: made for the first host that does not have the code, for none if all have it."""
        return zlib.compress(self.raw, 6)


def pack(trees: Mapping[str, Path]) -> Code:
    """Pack ``flagperf_driver`` and each of ``trees``, a folder or a file, under its relative name."""
    raw = _archive(dict(_files({**_library(), "flagperf_driver": Path(flagperf_driver.__file__).parent, **trees})))
    return Code(hashlib.sha256(raw).hexdigest()[:32], raw)


def stage(host: Host, code: Code, report: Report = lambda _: None) -> str:
    """Deploy the code and return its folder on the host; ``report`` is called if it must be copied to the host."""

    def archive() -> bytes:
        report(f"copying the code ({len(code.archive) / 1e6:.1f} MB)")
        return code.archive

    return host.put(code.digest, archive)


def open_module(host: Host, code: Code, module: str, report: Report = lambda _: None) -> Channel:
    """Start a module of the code in an isolated interpreter and return the connection to it."""
    argv = module_argv(host.python, stage(host, code, report), module)
    return CheckedChannel(host.name, host.open(argv))


def call_module(
    host: Host,
    code: Code,
    module: str,
    request: Message,
    *,
    timeout_s: float,
    shape: Shape,
    on_message: Callable[[Message], None] = lambda _: None,
) -> dict[str, Any]:
    """Send one request to a module and return its answer, checked by ``shape``.

    Earlier messages are passed to ``on_message``.
    """
    deadline = time.monotonic() + timeout_s
    channel, close_s = open_module(host, code, module), 0.0
    try:
        with suppress(HostError):  # the program has ended: its message, read next, has the reason
            channel.send(request)
        while (message := _next(host, channel, module, deadline)).get("type") not in _ENDS:
            on_message(message)
        close_s = _CLOSE_S
    finally:
        channel.close(close_s)
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
    try:
        return CheckedChannel(host.name, host.connect(f"{log_dir}/agent.sock"))
    except HostLost:
        raise
    except HostError as error:
        left = host.run(["cat", f"{log_dir}/agent.json"], timeout_s=_TIMEOUT_S).out.strip()
        last = f"the last agent's message: {left}" if left else "no agent left a message"
        where = f"no agent listens in {log_dir} ({str(error).rpartition(': ')[2]})"
        raise HostError(
            f"the agent is not running: the host was restarted, or the agent was killed: {where}; {last}"
        ) from error


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
