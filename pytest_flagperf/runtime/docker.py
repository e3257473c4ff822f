"""Containers: an image per content, built or pulled once per host, and one container for each round.

Docker is spoken to from here, over the host's connection; nothing of docker-py has to be there. The container is made
here and started by the host's agent, which also removes it: it must be able to when nobody is left here.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import re
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagperf_driver.node import engine
from pytest_flagperf.cluster import Completed, Host
from pytest_flagperf.cluster.deploy import cache_root

from . import Image, Interpreter, Mount, Progress, RuntimeSetupError, Wanted
from .docker_images import Recipe, case_recipe, vendor_recipe
from .docker_options import Options, OptionsError, parse, size
from .requirements import union
from .sourced import sourced

SHM_SIZE = "32g"
"""As in the original. Docker's own 64 MB do not hold the batches of a few loader workers, and nothing is reserved."""

_ANSWER_S = 60.0
_LOOK_S = 120.0
_LOCK_POLL_S = 0.2
_PULL_WORD_S = 2.0
_LAST_LINES = 15
_STRAY_S = 600
_LOOKING = "flagperf.look"
_LOOK = """
import importlib.metadata as metadata, json, platform, sys
found = {each.metadata["Name"]: each.version for each in metadata.distributions()}
print(json.dumps({"python": platform.python_version(), "executable": sys.executable, "libraries": found}))
"""


def prepare(host: Host, wanted: Wanted, progress: Progress, code: Any = None) -> Interpreter:  # noqa: ARG001
    """The image is on the host, and what is in it is known; ``create`` of the interpreter's container does the rest."""
    wish = wanted.image or Image()
    options = _options(wish)
    for note in options.notes:
        progress(note)
    with _client(host) as client:
        image = _image(client, host, wanted, time.monotonic() + wanted.timeout_s, progress)
        recipe = _Container(image.id, options, wish.shm_size)
        found = _looked_at(client, host, recipe, wanted, progress)
    name = (image.tags or [wish.image or image.id])[0]
    _check_complete(host, name, wanted, found["libraries"])
    details = {
        **found["libraries"],
        "python": found["python"],
        "image": name,
        "image_id": image.id,
        **_digest(image),
        **_liberties(wish, options),
    }
    return Interpreter(found["executable"], found["env"], f"docker: {name}", details, recipe)


def _options(wish: Image) -> Options:
    try:
        return parse(wish.options, wish.options_by)
    except OptionsError as error:
        raise RuntimeSetupError(str(error)) from error


def _digest(image: Any) -> dict[str, str]:
    """What registries know it by; an image that was never in one has none."""
    digests = image.attrs.get("RepoDigests") or []
    return {"digest": digests[0]} if digests else {}


def _liberties(wish: Image, options: Options) -> dict[str, str]:
    """What the container may that a container usually may not, and who asked for it."""
    liberties = {}
    if options.privileged:
        liberties["privileged"] = wish.privileged_by or wish.options_by
    if options.host_namespaces:
        liberties["host_namespaces"] = f"{', '.join(options.host_namespaces)}: {wish.options_by}"
    return liberties


def _check_complete(host: Host, name: str, wanted: Wanted, libraries: Mapping[str, str]) -> None:
    there = {_folded(library) for library in libraries}
    needed = (line.requirement for line in union(wanted.requirements))
    missing = sorted(
        each.name
        for each in needed
        if each and (each.marker is None or each.marker.evaluate()) and _folded(each.name) not in there
    )
    if missing:
        raise RuntimeSetupError(
            f"{host.name}: the image {name} lacks {', '.join(missing)}, which {wanted.framework} suites need; "
            "install them in its Dockerfile, or name another image with --image"
        )


def _folded(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# -- the engine -------------------------------------------------------------------------------------------


@contextmanager
def _client(host: Host) -> Iterator[Any]:
    """docker-py, connected; what goes wrong comes out as a RuntimeSetupError that names the host."""
    # Imported when containers are used: it takes longer than all of the harness.
    import docker
    import requests

    path = host.forward(engine.SOCKET)
    try:
        version = engine.Engine(path).api_version()
    except engine.EngineError as error:
        raise RuntimeSetupError(f"{host.name}: {_reason(host, str(error))}") from error
    client = docker.DockerClient(base_url=f"unix://{path}", version=version, timeout=_ANSWER_S)
    try:
        yield client
    except docker.errors.APIError as error:
        raise RuntimeSetupError(f"{host.name}: Docker refused: {_explanation(error)}") from error
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise RuntimeSetupError(f"{host.name}: {_reason(host, f'Docker broke off: {error}')}") from error
    finally:
        client.close()


def _reason(host: Host, seen: str) -> str:
    """Why Docker cannot be used: at a far host's socket only the host can tell."""
    if host.here:
        return seen
    script = Path(engine.__file__).read_text("utf-8")
    done = host.run([host.python, "-I", "-S", "-c", script], timeout_s=_ANSWER_S)
    return done.out.strip() if done.code == 1 and done.out.strip() else seen


def _explanation(error: Any) -> str:
    return str(error.explanation or error).strip()


# -- the image --------------------------------------------------------------------------------------------


def _image(client: Any, host: Host, wanted: Wanted, deadline: float, progress: Progress) -> Any:
    """The image that the case runs in. Where it is there already, this is one question to the engine."""
    given = (wanted.image or Image()).image
    if given:
        image = _found(client, given) or _pull(client, host, given, deadline, progress)
        own = case_recipe(wanted, given, image.id)
        recipes = [own] if own else []
    else:
        image, vendors = None, vendor_recipe(wanted)
        own = case_recipe(wanted, vendors.name, vendors.name)
        recipes = [vendors, own] if own else [vendors]
    if recipes:
        image = _found(client, recipes[-1].name)
    for recipe in recipes if image is None else ():
        with _lock(host, recipe.name, deadline, progress):
            image = _found(client, recipe.name) or _build(client, host, recipe, deadline, progress)
    return image


def _found(client: Any, name: str) -> Any:
    from docker.errors import ImageNotFound

    try:
        return client.images.get(name)
    except ImageNotFound:
        return None


def _build(client: Any, host: Host, recipe: Recipe, deadline: float, progress: Progress) -> Any:
    from docker.errors import APIError

    progress(f"building {recipe.name}")
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        messages = client.api.build(
            fileobj=recipe.archive(),
            custom_context=True,
            tag=recipe.name,
            buildargs=dict(recipe.arguments),
            labels={"flagperf.image": recipe.title},
            network_mode="host",
            rm=True,
            forcerm=True,
            decode=True,
            timeout=_left(deadline),
        )
        for message in messages:
            for line in _lines(str(message.get("stream") or message.get("error") or "")):
                last.append(line)
                progress(line)
            if "error" in message:
                raise RuntimeSetupError(_unbuilt(host, recipe, "failed", last))
            if time.monotonic() > deadline:
                raise RuntimeSetupError(_unbuilt(host, recipe, "did not end in time", last))
    except APIError as error:
        raise RuntimeSetupError(_unbuilt(host, recipe, "failed", [_explanation(error)])) from error
    return client.images.get(recipe.name)


def _unbuilt(host: Host, recipe: Recipe, how: str, last: Sequence[str]) -> str:
    lines = "\n".join(f"  {line}" for line in last)
    return (
        f"{host.name}: the image {recipe.name} could not be built: docker build {how}. Its last lines:\n{lines}\n"
        f"mend {recipe.source}, name an index that has the packages with --pip-source, or an image with --image"
    )


def _pull(client: Any, host: Host, name: str, deadline: float, progress: Progress) -> Any:
    from docker.errors import APIError

    with _lock(host, name, deadline, progress):
        if image := _found(client, name):
            return image
        progress(f"pulling {name}")
        try:
            for word in _pull_words(client.api.pull(name, stream=True, decode=True)):
                progress(f"pulling {name}: {word}")
                if time.monotonic() > deadline:
                    raise RuntimeSetupError(f"{host.name}: the image {name} was not pulled in time; it had {word}")
        except APIError as error:
            raise RuntimeSetupError(_unpulled(host, name, _explanation(error))) from error
        except _PullError as error:
            raise RuntimeSetupError(_unpulled(host, name, str(error))) from error
        return _found(client, name)


class _PullError(RuntimeError):
    """The registry's or the engine's reason."""


def _pull_words(messages: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """How much of all layers is there, now and then."""
    layers: dict[str, tuple[int, int]] = {}
    spoken = 0.0
    for message in messages:
        if "error" in message:
            raise _PullError(message["error"])
        share = message.get("progressDetail") or {}
        if message.get("status") == "Downloading" and "total" in share:
            layers[message["id"]] = share["current"], share["total"]
        if layers and time.monotonic() > spoken + _PULL_WORD_S:
            spoken = time.monotonic()
            have, whole = (sum(column) / 1e6 for column in zip(*layers.values(), strict=True))
            yield f"{have:.0f} of {whole:.0f} MB"


def _unpulled(host: Host, name: str, why: str) -> str:
    return (
        f"{host.name}: the image {name} is not there and cannot be pulled: {why}; "
        "check its name, log in to its registry with docker login here, or load it there with docker load"
    )


def _lines(text: str) -> list[str]:
    """Whole lines, without colours and without what a progress bar has painted over."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    return [line.split("\r")[-1].rstrip() for line in plain.replace("\r\n", "\n").split("\n") if line.strip()]


def _left(deadline: float) -> float:
    return max(1.0, deadline - time.monotonic())


@contextmanager
def _lock(host: Host, name: str, deadline: float, progress: Progress) -> Iterator[None]:
    """One of all runs from here builds an image on a host. Two from different machines may both: the results agree."""
    digest = hashlib.sha256(f"{host.address} {name}".encode()).hexdigest()[:16]
    path = cache_root() / "images" / f"{digest}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    told = False
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RuntimeSetupError(f"{host.name}: another run did not get {name} ready in time") from None
            if not told:
                progress(f"another run gets {name} ready; waiting for it")
                told = True
            time.sleep(_LOCK_POLL_S)
        yield


# -- what is in it ----------------------------------------------------------------------------------------


def _looked_at(client: Any, host: Host, recipe: _Container, wanted: Wanted, progress: Progress) -> dict[str, Any]:
    """Python, libraries and environment of the image, found once: a host's mounts can make a difference, too."""
    file = wanted.environment_file
    content = file.read_bytes() if file and file.is_file() else b""
    told = json.dumps([recipe.image, repr(recipe.options), host.name, wanted.python, _LOOK, content.hex()])
    kept = cache_root() / "images" / f"{hashlib.sha256(told.encode()).hexdigest()[:32]}.json"
    try:
        known: dict[str, Any] = json.loads(kept.read_text("utf-8"))
    except (OSError, ValueError):
        progress("looking into the image")
        known = _look(client, host, recipe, wanted.python or "python3")
        known["env"] = dict(sourced(_runner(client, recipe), {}, file)) if file and content else {}
        _keep(kept, known)
    return known


def _look(client: Any, host: Host, recipe: _Container, python: str) -> dict[str, Any]:
    done = _runner(client, recipe)([python, "-c", _LOOK], b"", {})
    if done.code != 0:
        said = (done.err.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeSetupError(
            f"{host.name}: {python} does not work in the image {recipe.image} (exit code {done.code}): {said}; "
            "name the image's own with --python, or another image with --image"
        )
    answer: dict[str, Any] = json.loads(done.out)
    return answer


def _runner(client: Any, recipe: _Container) -> Callable[[Sequence[str], bytes, Mapping[str, str]], Completed]:
    """Runs a program in a container of its own.

    Its streams are files there, so that what the image's entrypoint prints is not in them.
    """

    def run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> Completed:
        _remove_strays(client)
        container = client.containers.create(
            recipe.image,
            ["sh", "-c", 'exec "$@" < /.flagperf.in > /.flagperf.out 2> /.flagperf.err', "sh", *argv],
            labels={_LOOKING: "1"},
            **_merged(recipe.arguments(()), {"environment": dict(env)}),
        )
        try:
            # Anybody's: the image may have a user of its own.
            container.put_archive("/", _tar({".flagperf.in": stdin, ".flagperf.out": b"", ".flagperf.err": b""}))
            container.start()
            code = int(container.wait(timeout=_LOOK_S)["StatusCode"])
            out, err = (_untar(container.get_archive(f"/.flagperf.{name}")[0]) for name in ("out", "err"))
        finally:
            container.remove(force=True, v=True)
        return Completed(tuple(argv), code, out, err.decode("utf-8", "replace"))

    return run


def _remove_strays(client: Any) -> None:
    """Those of runs that were killed while they looked."""
    for entry in client.api.containers(all=True, filters={"label": _LOOKING}):
        if entry["Created"] < time.time() - _STRAY_S:
            client.api.remove_container(entry["Id"], force=True, v=True)


def _keep(path: Path, known: Mapping[str, Any]) -> None:
    """Readable by nobody else: an environment may hold keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{hash(known['executable']) & 0xFFFF}.{time.monotonic_ns()}")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(known), "utf-8")
    partial.replace(path)


def _tar(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o666
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def _untar(chunks: Iterator[bytes]) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        member = tar.extractfile(tar.getmembers()[0])
        return member.read() if member else b""


# -- the container ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Container:
    """A container to be."""

    image: str
    options: Options
    shm_size: str | None

    def create(
        self,
        host: Host,
        name: str,
        *,
        argv: Sequence[str],
        mounts: Sequence[Mount],
        devices: Sequence[int],
        labels: Mapping[str, str],
    ) -> Mapping[str, Any]:
        own = {
            "mounts": [
                {"Type": "bind", "Source": each.source, "Target": each.target, "ReadOnly": each.read_only}
                for each in mounts
            ]
        }
        with _client(host) as client:
            made = client.containers.create(
                self.image,
                list(argv),
                name=name,
                labels=dict(labels),
                working_dir=labels["flagperf.log_dir"],
                **_merged(self.arguments(devices), own),
            )
        # Docker numbers the ones it was asked for from 0; all others keep their numbers.
        seen = range(len(devices)) if self.options.gpus else devices
        return {"socket": engine.SOCKET, "id": made.id, "devices": list(seen)}

    def arguments(self, devices: Sequence[int]) -> dict[str, Any]:
        """Of docker-py's create: what the options say, over what we find right."""
        arguments: dict[str, Any] = {
            "network_mode": "host",  # ranks of several hosts find each other, at the host's speed
            "shm_size": size(SHM_SIZE),
            "log_config": {"type": "json-file", "config": {"max-size": "1m", "max-file": "1"}},
            **self.options.arguments,
        }
        if self.shm_size:
            arguments["shm_size"] = size(self.shm_size)
        if self.options.gpus and devices:
            # Exactly the leased ones, whatever else the host has.
            arguments["device_requests"] = [
                {"device_ids": [str(device) for device in devices], "capabilities": [["gpu"]]}
            ]
        return arguments


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
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
