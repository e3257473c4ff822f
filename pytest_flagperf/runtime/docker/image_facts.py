"""What is in an image: found by running it once, and kept here."""

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

_LOOK_S = 120.0
_ANSWER: Mapping[str, Shape] = {"python": TEXT, "executable": TEXT, "libraries": Each(Maybe(TEXT))}
_LOOK = """
import importlib.metadata as metadata, json, platform, sys
found = {each.metadata["Name"]: each.version for each in metadata.distributions()}
print(json.dumps({"python": platform.python_version(), "executable": sys.executable, "libraries": found}))
"""

_Run = Callable[[Sequence[str], bytes, Mapping[str, str]], Completed]


def read_image_facts(
    client: Any, host: Host, image: str, arguments: Mapping[str, Any], request: RuntimeRequest, progress: OnProgress
) -> dict[str, Any]:
    """Its python, executable, libraries and env: once for each host, whose mounts may make a difference."""
    file = request.environment_file
    content = file.read_bytes() if file and file.is_file() else b""
    said = dict(request.environment)
    told = json.dumps([image, arguments, host.name, host.address, request.python, _LOOK, content.hex(), said])
    kept = Path(cache_root()) / "images" / f"{hashlib.sha256(told.encode()).hexdigest()[:32]}.json"
    try:
        known: dict[str, Any] = json.loads(kept.read_text("utf-8"))
    except (OSError, ValueError):
        progress("inspecting the image")
        run = _runner(client, host, image, arguments)
        known = _look(host, image, run, request.python or "python3")
        known["env"] = {**said, **(source_file(run, said, file) if file and content else {})}
        _keep(kept, known)
    return known


def _look(host: Host, image: str, run: _Run, python: str) -> dict[str, Any]:
    done = run([python, "-c", _LOOK], b"", {})
    if done.code != 0:
        said = (done.err.strip().splitlines() or ["no output"])[-1]
        raise RuntimeSetupError(
            f"{host.name}: {python} does not work in the image {image} (exit code {done.code}): {said}; "
            "pass another image with --image"
        )
    return parse_object(host.name, done.out, _ANSWER, f"the answer of {python} in the image {image}")


def _runner(client: Any, host: Host, image: str, arguments: Mapping[str, Any]) -> _Run:
    """Runs a program in a container of its own.

    Its streams are files there, so that what the image's entrypoint prints is not in them.
    """

    def run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> Completed:
        container = client.containers.create(
            image,
            ["sh", "-c", 'exec "$@" < /.flagperf.in > /.flagperf.out 2> /.flagperf.err', "sh", *argv],
            labels={orphans.LOOK_LABEL: "1"},
            **merged(arguments, {"environment": dict(env)}),
        )
        try:
            # Anybody's: the image may have a user of its own.
            container.put_archive("/", _tar({".flagperf.in": stdin, ".flagperf.out": b"", ".flagperf.err": b""}))
            container.start()
            code = int(container.wait(timeout=_LOOK_S)["StatusCode"])
            out, err = (_untar(host, container.get_archive(f"/.flagperf.{name}")[0]) for name in ("out", "err"))
        finally:
            container.remove(force=True, v=True)
        return Completed(tuple(argv), code, out, err.decode("utf-8", "replace"))

    return run


def _keep(path: Path, known: Mapping[str, Any]) -> None:
    """Readable by nobody else: an environment may hold keys."""
    stored.write_text(path, json.dumps(known), mode=0o600)


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


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both; where both have lists or mappings, their union."""
    merged = dict(one)
    for key, value in other.items():
        mine = merged.get(key)
        if isinstance(mine, list):
            merged[key] = [*mine, *value]
        elif isinstance(mine, dict):
            merged[key] = {**mine, **value}
        else:
            merged[key] = value
    return merged
