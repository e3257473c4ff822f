"""Programs in new containers of an image, to read its facts."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flagperf_driver.node import orphans
from pytest_flagperf.hosts import Completed, Host
from pytest_flagperf.hosts.replies import check_length
from pytest_flagperf.runtime.image_facts import RUN_S, RunInImage


def runner(client: Any, host: Host, image: str, arguments: Mapping[str, Any]) -> RunInImage:
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
            code = int(container.wait(timeout=RUN_S)["StatusCode"])
            out, err = (_untar(host, container.get_archive(f"/.flagperf.{name}")[0]) for name in ("out", "err"))
        finally:
            container.remove(force=True, v=True)
        return Completed(tuple(argv), code, out, err.decode("utf-8", "replace"))

    return run


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
