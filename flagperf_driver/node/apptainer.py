"""Apptainer on this host: the program, and the images that it runs, which are pulled once into the cache.

It serves one request (see ``request_server``): ``{"image": source, "pull_s": seconds}``. The source is a path or an
address such as ``docker://maker/pytorch:1``. ``progress`` messages come before the answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Iterator

from flagperf_driver import addresses
from flagperf_driver.node.folder import cache_root
from flagperf_driver.node.long_work import one_at_a_time, run_program
from flagperf_driver.node.namespaces import refusing_setting
from flagperf_driver.node.request_server import Answer, Request, RequestError, send, serve

PROGRAMS = ("apptainer", "singularity")
_FOLDERS = ("/usr/local/bin", "/opt/apptainer/bin", "/opt/singularity/bin")
_ANSWER_S = 30.0
_LAST_LINES = 15
_CHUNK = 1 << 22
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def find_program() -> tuple[str, str]:
    """Return the path of Apptainer, or of Singularity, and its version."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS])
    program = next(filter(None, (shutil.which(name, path=path) for name in PROGRAMS)), None)
    if program is None:
        raise RequestError(
            "no apptainer and no singularity on the PATH; load its module before pytest starts, install it, or choose"
            " another --runtime"
        )
    argv = [program, "--version"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_ANSWER_S)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
        raise RequestError(f"{program} does not work: {(lines or ['no output'])[-1]}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise RequestError(f"{program} does not work: {error}") from error
    return program, done.stdout.decode("utf-8", "replace").strip()


def facts(image: str) -> dict[str, Any]:
    """Return the facts for preflight: the version, and whether the image is on the host."""
    try:
        program, version = find_program()
        _check_namespaces(program)
        present = _local(image).exists() if is_path(image) else _pulled(image).is_file()
    except RequestError as error:
        return {"version": None, "image": None, "error": str(error)}
    return {"version": version, "image": present, "error": None}


def is_path(image: str) -> bool:
    return image.startswith("/")


def _local(image: str) -> Path:
    path = Path(image)
    if not path.exists():
        raise RequestError(f"the image {image} does not exist; copy it to this host, or to a shared file system")
    if not os.access(image, os.R_OK):
        raise RequestError(f"the image {image} cannot be read by user {os.getuid()}; chmod it")
    return path


def _check_namespaces(program: str) -> None:
    """Raise RequestError if neither the kernel nor a set-user-ID installation allows containers for this user."""
    if os.getuid() == 0 or any(_is_set_uid(file) for file in _starters(program)):
        return
    if refusal := refusing_setting():
        raise RequestError(f"{program} needs user namespaces, and {refusal}, or install the package apptainer-suid")


def _starters(program: str) -> Iterator[Path]:
    prefix = Path(os.path.realpath(program)).parent.parent
    for name in PROGRAMS:
        yield from prefix.glob(f"lib*/{name}/bin/starter-suid")
        yield from prefix.glob(f"lib/*/{name}/bin/starter-suid")


def _is_set_uid(file: Path) -> bool:
    status = file.stat()
    return status.st_uid == 0 and bool(status.st_mode & 0o4000)


# -- the image ---------------------------------------------------------------------------------------------------------


def _pulled(source: str) -> Path:
    """Return the file of an image that was pulled from an address."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", addresses.redacted(source))[-60:].strip("-.")
    return cache_root() / "apptainer" / f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:12]}.sif"


def _pull(program: str, source: str, target: Path, deadline: float) -> None:
    """Pull an image into the cache; of several processes one pulls it and the others wait."""
    work = "this image"
    with one_at_a_time(target.with_suffix(".lock"), deadline, f"pulls {work}", f"pulling {work}"):
        if target.is_file():
            return
        public = addresses.redacted(source)
        send("progress", line=f"pulling {public}")
        partial = target.with_suffix(f".{os.getpid()}.partial")
        try:
            _run([program, "pull", "--force", str(partial), source], public, deadline)
            partial.replace(target)
        finally:
            with suppress(OSError):
                partial.unlink()


def _run(argv: list[str], public: str, deadline: float) -> None:
    lines: list[str] = []

    def take(line: str) -> None:
        text = _COLOURS.sub("", line).strip()
        if text:
            lines.append(text)
            send("progress", line=text)

    try:
        code = run_program(argv, deadline, take)
    except TimeoutError:
        raise RequestError(f"the image {public} was not pulled in time") from None
    if code != 0:
        last = "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])
        raise RequestError(
            f"the image {public} cannot be pulled: {argv[0]} pull failed with exit code {code}. Its last lines:\n"
            f"{last}\ncheck its name, log in to its registry there with apptainer registry login, or pass"
            " --image=/PATH/FILE.sif"
        )


def digest(image: Path) -> str | None:
    """Return the SHA-256 of an image's file, from the cache if the file is unchanged; None for a folder."""
    if not image.is_file():
        return None
    status = image.stat()
    stamp = [str(image), status.st_ino, status.st_size, status.st_mtime_ns]
    cached = cache_root() / "apptainer" / f"{hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:24]}.digest"
    with suppress(OSError):
        return cached.read_text("utf-8").strip()
    send("progress", line=f"computing the digest of {image}")
    digest = hashlib.sha256()
    with image.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    text = f"sha256:{digest.hexdigest()}"
    cached.parent.mkdir(parents=True, exist_ok=True)
    partial = cached.with_suffix(f".{os.getpid()}")
    partial.write_text(text + "\n", "utf-8")
    partial.replace(cached)
    return text


def handle(request: Request) -> Answer:
    """Return the program, its version, and the path and digest of the image, which is pulled if necessary."""
    program, version = find_program()
    _check_namespaces(program)
    source = str(request["image"])
    if is_path(source):
        image = _local(source)
    else:
        image = _pulled(source)
        if not image.is_file():
            _pull(program, source, image, time.monotonic() + float(request["pull_s"]))
    return {"program": program, "version": version, "image": str(image), "digest": digest(image)}


if __name__ == "__main__":
    serve(handle)
