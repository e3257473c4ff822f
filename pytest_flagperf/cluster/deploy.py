"""Bring the code that ranks run to a host: once per content, whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flagperf_driver

from . import Host, HostError
from . import far as _far

_TIMEOUT_S = 120.0
_FAR = Path(_far.__file__)

cache_root = _far.cache_root


def stage(host: Host, trees: Mapping[str, Path]) -> str:
    """The folder on the host that holds ``flagperf_driver`` and each of ``trees`` under its relative name."""
    files = dict(_files({"flagperf_driver": Path(flagperf_driver.__file__).parent, **trees}))
    digest, archive = _pack(files)
    return str(ask(host, "stage", digest, stdin=archive)["path"])


_RUN_MODULE = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_argv(python: str, code_root: str, module: str) -> list[str]:
    """A staged module's argv: isolated, so that neither the current folder nor site-packages is on its path."""
    return [python, "-I", "-S", "-c", _RUN_MODULE, code_root, module]


def ask(host: Host, *words: str, stdin: bytes = b"") -> dict[str, Any]:
    """Have a bare host do one of the things in far.py."""
    argv = [host.python, "-I", "-S", "-c", _FAR.read_text("utf-8"), *words]
    done = host.run(argv, timeout_s=_TIMEOUT_S, stdin=stdin)
    try:
        answer = json.loads(done.out)
    except ValueError:
        answer = None
    if done.code != 0 or not isinstance(answer, dict):
        said = done.err.strip().splitlines()[-1:] or ["it said nothing"]
        raise HostError(f"{host.name}: {words[0]} by {host.python} failed with {done.code}: {said[0]}")
    return answer


def _files(trees: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    for prefix, root in sorted(trees.items()):
        if not root.is_dir():
            raise HostError(f"{root}: no such folder, wanted on the hosts as {prefix}")
        for path in _walk(root):
            yield f"{prefix}/{path.relative_to(root).as_posix()}", path


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


def _pack(files: Mapping[str, Path]) -> tuple[str, bytes]:
    """An archive that depends on nothing but names, contents and what may be executed, and its digest."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in sorted(files):
            content = files[name].read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if os.access(files[name], os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    archive = buffer.getvalue()
    return hashlib.sha256(archive).hexdigest()[:32], archive
