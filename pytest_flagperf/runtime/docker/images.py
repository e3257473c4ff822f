"""The files that an image is built from, and its name: the same content has the same name on every host."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from flagperf_driver import addresses
from pytest_flagperf.runtime import BUILT_BY, RuntimeRequest, RuntimeSetupError, is_buildable
from pytest_flagperf.runtime.requirements import union

# The case's folder in the image, while its packages are installed.
_CASE = "/opt/flagperf/case"
_ENVIRONMENT = "config/environment_variables.sh"
_REQUIREMENTS = "config/requirements.txt"


@dataclass(frozen=True)
class Recipe:
    """The input of ``docker build``: files by their name in the build, and arguments."""

    title: str
    files: Mapping[str, tuple[int, bytes]]  # mode and content
    arguments: Mapping[str, str] = field(default_factory=dict)
    base: str = ""  # the id of the base image, if it was not built here
    source: str = ""  # the file or folder, for messages

    @cached_property
    def name(self) -> str:
        """The image's name: a title and the hash of all its inputs."""
        digest = hashlib.sha256()
        for part in (self.base, *(f"{name}={value}" for name, value in sorted(self.arguments.items()))):
            digest.update(f"{len(part)} {part}".encode())
        for name, (mode, content) in sorted(self.files.items()):
            digest.update(f"{len(name)} {name} {mode} {len(content)} ".encode() + content)
        return f"{self.title}:{digest.hexdigest()[:16]}"

    def archive(self) -> io.BytesIO:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for name, (mode, content) in sorted(self.files.items()):
                entry = tarfile.TarInfo(name)
                entry.mode, entry.size = mode, len(content)
                tar.addfile(entry, io.BytesIO(content))
        stream.seek(0)
        return stream


def image_name(request: RuntimeRequest) -> str:
    """Return the name of a case's base image: the given image, else the vendor's image."""
    image = request.image
    return image.image or vendor_recipe(request).name


def vendor_recipe(request: RuntimeRequest) -> Recipe:
    """Return the recipe of ``vendors/<vendor>/images/<framework>/`` with the suites' requirements.txt."""
    folder = request.image.folder
    if folder is None or not (folder / "Dockerfile").is_file():
        where = f"{folder}/Dockerfile not found" if folder else "the vendor has no Dockerfile"
        raise RuntimeSetupError(f"no image for {request.framework}: {where}; write it, or set an image with --image")
    files = dict(_files(folder))
    if "requirements.txt" in files:
        raise RuntimeSetupError(
            f"{folder}/requirements.txt: this name is reserved for the suites' requirements; rename the file"
        )
    extras = request.image.extras
    of_suites = [file for file in request.requirements if extras is None or extras not in file.parents]
    lines = sorted(line.text for line in union(of_suites))
    files["requirements.txt"] = (0o644, "".join(f"{line}\n" for line in lines).encode())
    return Recipe(
        _title(folder.parent.parent.name, folder.name), files, _arguments(request), source=str(folder / "Dockerfile")
    )


def case_recipe(request: RuntimeRequest, base: str, base_id: str) -> Recipe | None:
    """Return the recipe of an image on ``base`` with the case's additions; None without additions."""
    extras = request.image.extras
    if extras is None:
        return None
    names = {name for name in (_REQUIREMENTS, _ENVIRONMENT) if (extras / name).is_file()}
    files = {name: _file(extras / name) for name in names}
    if is_buildable(extras / "csrc"):
        files |= {f"csrc/{name}": file for name, file in _files(extras / "csrc")}
    if files.keys() <= {_ENVIRONMENT}:
        return None
    files["Dockerfile"] = (0o644, _case_dockerfile(base, request.python or "python3", files).encode())
    return Recipe(_title(extras.parent.name, extras.name), files, _arguments(request), base_id, str(extras))


def _case_dockerfile(base: str, python: str, files: Mapping[str, object]) -> str:
    install = f"{python} -m pip install --no-cache-dir"
    steps = []
    if _REQUIREMENTS in files:
        steps.append(f"{install} -r {_REQUIREMENTS}")
    if any(f"csrc/{name}" in files for name in BUILT_BY):
        # The packages that the build needs, such as the framework, are in the image.
        steps.append(f"EXTENSION_SOURCE_DIR={_CASE}/csrc {install} --no-build-isolation ./csrc")
    # As in FlagPerf: bash sources the file before each step, and its exit code is ignored.
    sourced = f"set -a; . ./{_ENVIRONMENT}; set +a; " if _ENVIRONMENT in files else ""
    shell = 'SHELL ["bash", "-c"]\n' if sourced else ""
    runs = "".join(f"RUN cd {_CASE} && {{ {sourced}{step}; }}\n" for step in steps)
    return f"FROM {base}\n{shell}ARG PIP_INDEX_URL\nCOPY . {_CASE}/\n{runs}"


def _arguments(request: RuntimeRequest) -> dict[str, str]:
    """Return build arguments, which pip reads as environment variables; they remain readable in the image."""
    if not request.pip_source:
        return {}
    public = addresses.redacted(request.pip_source)
    if public != request.pip_source:
        raise RuntimeSetupError(
            f"the package index {public} contains a user name, a password or a token, which the image would store; "
            "use an index without them, or build the image yourself and pass it with --image"
        )
    return {"PIP_INDEX_URL": request.pip_source}


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, bytes]]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix(), _file(path)


def _file(path: Path) -> tuple[int, bytes]:
    try:
        return (0o755 if os.access(path, os.X_OK) else 0o644), path.read_bytes()
    except OSError as error:
        raise RuntimeSetupError(f"{path}: cannot be read: {error.strerror}") from error


def _title(*words: str) -> str:
    """Return a valid repository name: lower-case letters, digits and single separators."""
    folded = re.sub(r"[^a-z0-9._-]+", "-", "-".join(("flagperf", *words)).lower())
    return re.sub(r"[._-]*-[._-]*|[.]{2,}|_{3,}", "-", folded).strip("._-")
