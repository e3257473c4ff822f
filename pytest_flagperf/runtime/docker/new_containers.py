"""The Python, libraries and variables of an image: read by running it once, and cached on this machine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flagperf_driver.node import orphans
from pytest_flagperf import stored
from pytest_flagperf.hosts import Completed, Host
from pytest_flagperf.hosts.deploy import cache_root
from pytest_flagperf.hosts.replies import TEXT, Each, Maybe, Shape, check_length, parse_object
from pytest_flagperf.runtime import OnProgress, RuntimeRequest, RuntimeSetupError
from pytest_flagperf.runtime.environment_file import source_file

_RUN_S = 120.0
_ANSWER: Mapping[str, Shape] = {"python": TEXT, "executable": TEXT, "libraries": Each(Maybe(TEXT))}
_INSPECT = """
import importlib.metadata as metadata, json, platform, sys
libraries = {one.metadata["Name"]: one.version for one in metadata.distributions()}
print(json.dumps({"python": platform.python_version(), "executable": sys.executable, "libraries": libraries}))
"""

_Run = Callable[[Sequence[str], bytes, Mapping[str, str]], Completed]


def read_image_facts(
    client: Any, host: Host, image: str, arguments: Mapping[str, Any], request: RuntimeRequest, progress: OnProgress
) -> dict[str, Any]:
    """Return python, executable, libraries and env of the image; read once for each host, as mounts may differ."""
    file = request.environment_file
    content = file.read_bytes() if file and file.is_file() else b""
    variables = dict(request.environment)
    key = json.dumps([image, arguments, host.name, host.address, request.python, _INSPECT, content.hex(), variables])
    cached = Path(cache_root()) / "images" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    try:
        facts: dict[str, Any] = json.loads(cached.read_text("utf-8"))
    except (OSError, ValueError):
        progress("inspecting the image")
        run = _runner(client, host, image, arguments)
        facts = _inspect(host, image, run, request.python or "python3")
        facts["env"] = {**variables, **(source_file(run, variables, file) if file and content else {})}
        _write_cache(cached, facts)
    return facts


def _inspect(host: Host, image: str, run: _Run, python: str) -> dict[str, Any]:
    done = run([python, "-c", _INSPECT], b"", {})
    if done.code != 0:
        last = (done.err.strip().splitlines() or ["no output"])[-1]
        raise RuntimeSetupError(
            f"{host.name}: {python} does not work in the image {image} (exit code {done.code}): {last}; "
            "pass another image with --image"
        )
    return parse_object(host.name, done.out, _ANSWER, f"the answer of {python} in the image {image}")


def _runner(client: Any, host: Host, image: str, arguments: Mapping[str, Any]) -> _Run:
    """Return a function that runs a program in a new container.

    The program's streams are files in the container, so that they do not contain the output of the entrypoint.
    """

    def run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> Completed:
        container = client.containers.create(
            image,
            ["sh", "-c", 'exec "$@" < /.flagperf.in > /.flagperf.out 2> /.flagperf.err', "sh", *argv],
            labels={orphans.LOOK_LABEL: "1"},
            **merged(arguments, {"environment": dict(env)}),
        )
        try:
            # Writable for all users: the image may set a user.
            container.put_archive("/", _tar({".flagperf.in": stdin, ".flagperf.out": b"", ".flagperf.err": b""}))
            container.start()
            code = int(container.wait(timeout=_RUN_S)["StatusCode"])
            out, err = (_untar(host, container.get_archive(f"/.flagperf.{name}")[0]) for name in ("out", "err"))
        finally:
            container.remove(force=True, v=True)
        return Completed(tuple(argv), code, out, err.decode("utf-8", "replace"))

    return run


def _write_cache(path: Path, facts: Mapping[str, Any]) -> None:
    """Write a file that only this user can read: variables may contain keys."""
    stored.write_text(path, json.dumps(facts), mode=0o600)


def _tar(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o666
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def _untar(host: Host, chunks: Iterator[bytes]) -> bytes:
    archive = bytearray()
    for chunk in chunks:
        archive += chunk
        check_length(host.name, len(archive))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.extractfile(tar.getmembers()[0])
        return member.read() if member else b""


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both mappings in one; lists and mappings of the same key are joined."""
    result = dict(first)
    for key, value in second.items():
        present = result.get(key)
        if isinstance(present, list):
            result[key] = [*present, *value]
        elif isinstance(present, dict):
            result[key] = {**present, **value}
        else:
            result[key] = value
    return result
