"""The Python, libraries and variables of an image: read by running it once, and cached on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from flagperf_driver.node.folder import cache_root
from pytest_flagperf import stored
from pytest_flagperf.hosts import Completed, Host
from pytest_flagperf.hosts.replies import TEXT, Each, Maybe, Shape, parse_object

from . import OnProgress, RuntimeRequest, RuntimeSetupError
from .environment_file import source_file
from .requirements import union

RUN_S = 120.0
_ANSWER: Shape = {"python": TEXT, "executable": TEXT, "libraries": Each(Maybe(TEXT))}
_INSPECT = """
import importlib.metadata as metadata, json, platform, sys
libraries = {one.metadata["Name"]: one.version for one in metadata.distributions()}
print(json.dumps({"python": platform.python_version(), "executable": sys.executable, "libraries": libraries}))
"""

RunInImage = Callable[[Sequence[str], bytes, Mapping[str, str]], Completed]
"""Runs a program in the image with an input and variables."""


def read_image_facts(
    host: Host,
    image: str,
    inputs: Sequence[object] | None,
    run: RunInImage,
    request: RuntimeRequest,
    progress: OnProgress,
) -> dict[str, Any]:
    """Return python, executable, libraries and env of the image; read once for each host, as mounts may differ.

    ``inputs`` determine the content of the image's container, besides the request; None if it may change at any time.
    """
    file = request.environment_file
    content = file.read_bytes() if file and file.is_file() else b""
    variables = dict(request.environment)
    key = json.dumps([*(inputs or ()), host.name, host.address, request.python, _INSPECT, content.hex(), variables])
    cached = Path(cache_root()) / "images" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    try:
        facts: dict[str, Any] = json.loads(cached.read_text("utf-8")) if inputs is not None else {}
    except (OSError, ValueError):
        facts = {}
    if not facts:
        progress("inspecting the image")
        facts = _inspect(host, image, run, request.python or "python3")
        facts["env"] = {**variables, **(source_file(run, variables, file) if file and content else {})}
        if inputs is not None:  # readable for this user only: variables may contain keys
            stored.write_text(cached, json.dumps(facts), mode=0o600)
    return facts


def _inspect(host: Host, image: str, run: RunInImage, python: str) -> dict[str, Any]:
    done = run([python, "-c", _INSPECT], b"", {})
    if done.code != 0:
        last = (done.err.strip().splitlines() or ["no output"])[-1]
        raise RuntimeSetupError(
            f"{host.name}: {python} does not work in the image {image} (exit code {done.code}): {last}; "
            "pass another image with --image"
        )
    return parse_object(host.name, done.out, _ANSWER, f"the answer of {python} in the image {image}")


def check_complete(host: Host, name: str, request: RuntimeRequest, libraries: Mapping[str, str]) -> None:
    """Raise RuntimeSetupError if the image lacks a package that the suites require."""
    installed = {canonicalize_name(library) for library in libraries}
    required = (line.requirement for line in union(request.requirements))
    missing = sorted(
        requirement.name
        for requirement in required
        if requirement
        and (requirement.marker is None or requirement.marker.evaluate())
        and canonicalize_name(requirement.name) not in installed
    )
    if missing:
        raise RuntimeSetupError(
            f"{host.name}: the image {name} has no {', '.join(missing)}, required by {request.framework} suites; "
            "install them in its Dockerfile, or pass another image with --image"
        )
