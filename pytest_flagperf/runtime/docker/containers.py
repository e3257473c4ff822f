"""Containers: an image per content, built or pulled once per host, and one container for each round.

Docker is spoken to from here, over the host's connection; nothing of docker-py has to be there. The container is made
here and started by the host's agent, which also removes it: it must be able to when nobody is left here.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagperf_driver.node import docker_engine
from pytest_flagperf.hosts import Host, HostError, HostLost
from pytest_flagperf.hosts.deploy import cache_root
from pytest_flagperf.runtime import BuildFailed, Image, Interpreter, OnProgress, RuntimeRequest, RuntimeSetupError
from pytest_flagperf.runtime.requirements import union

from .image_facts import merged, read_image_facts
from .images import Recipe, case_recipe, vendor_recipe
from .mounts import own_mounts
from .options import SHM_SIZE, Options, OptionsError, parse, size

_ENGINE = "http+docker://localhost"  # docker-py's own name for it
_ANSWER_S = 60.0
_LOCK_POLL_S = 0.2
_PULL_WORD_S = 2.0
_LAST_LINES = 15


def prepare(host: Host, request: RuntimeRequest, progress: OnProgress) -> Interpreter:
    """The image is on the host, and what is in it is known; ``create`` of the interpreter's container does the rest."""
    wish = request.image or Image()
    options = _options(wish)
    for note in options.notes:
        progress(note)
    with _client(host) as client:
        image = _image(client, host, request, time.monotonic() + request.timeout_s, progress)
        recipe = _Container(image.id, wish)
        found = read_image_facts(client, host, recipe.image, recipe.arguments(()), request, progress)
    name = (image.tags or [wish.image or image.id])[0]
    _check_complete(host, name, request, found["libraries"])
    details = {
        **found["libraries"],
        "python": found["python"],
        "image": name,
        "image_id": image.id,
        **_digest(image),
        **_privileges(wish, options),
    }
    return Interpreter(found["executable"], found["env"], f"docker: {name}", details, recipe)


def _options(wish: Image, devices: Sequence[int] = ()) -> Options:
    try:
        return parse(wish.options, wish.options_by, devices)
    except OptionsError as error:
        raise RuntimeSetupError(str(error)) from error


def _shm_size(wish: Image) -> int | None:
    try:
        return size(wish.shm_size) if wish.shm_size else None
    except ValueError as error:
        raise RuntimeSetupError(f"shm size {wish.shm_size!r}: {error}") from error


def _digest(image: Any) -> dict[str, str]:
    """What registries know it by; an image that was never in one has none."""
    digests = image.attrs.get("RepoDigests") or []
    return {"digest": digests[0]} if digests else {}


def _privileges(wish: Image, options: Options) -> dict[str, str]:
    """What the container may that a container usually may not, and who asked for it."""
    granted = {}
    if options.privileged:
        granted["privileged"] = wish.privileged_by or wish.options_by
    if options.host_namespaces:
        granted["host_namespaces"] = f"{', '.join(options.host_namespaces)}: {wish.options_by}"
    return granted


def _check_complete(host: Host, name: str, request: RuntimeRequest, libraries: Mapping[str, str]) -> None:
    there = {_folded(library) for library in libraries}
    needed = (line.requirement for line in union(request.requirements))
    missing = sorted(
        each.name
        for each in needed
        if each and (each.marker is None or each.marker.evaluate()) and _folded(each.name) not in there
    )
    if missing:
        raise RuntimeSetupError(
            f"{host.name}: the image {name} has no {', '.join(missing)}, required by {request.framework} suites; "
            "install them in its Dockerfile, or pass another image with --image"
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
    import urllib3

    try:
        path = host.forward(docker_engine.SOCKET)  # over a connection this fails where nothing is reached
        if host.here:
            docker_engine.DockerEngine(path).api_version()
    except HostLost:
        raise
    except (HostError, docker_engine.EngineError) as error:
        raise RuntimeSetupError(f"{host.name}: {_reason(host, str(error))}") from error
    try:
        with closing(_connected(path)) as client:
            yield client
    except docker.errors.APIError as error:
        raise RuntimeSetupError(f"{host.name}: Docker refused: {_explanation(error)}") from error
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise RuntimeSetupError(
            f"{host.name}: {_reason(host, f'the connection to Docker was lost: {error}')}"
        ) from error


def _connected(path: str) -> Any:
    """A client of one connection: each of its own makes is a session on a host that is far away."""
    import docker
    import requests
    from docker.transport import UnixHTTPAdapter

    class Adapter(UnixHTTPAdapter):  # type: ignore[misc]
        def get_connection(self, url: str, proxies: Any = None) -> Any:  # noqa: ARG002
            return super().get_connection(_ENGINE)  # docker-py keeps a pool for every single URL

    adapter = Adapter(f"http+unix://{path}", timeout=_ANSWER_S)
    with requests.Session() as session:
        session.mount(_ENGINE, adapter)
        # What docker-py asks by itself takes the engine ten times as long.
        version = session.get(f"{_ENGINE}/_ping", timeout=_ANSWER_S).headers.get("Api-Version", "1.41")
        session.adapters.clear()  # its end is not the connection's
    client = docker.DockerClient(base_url=f"unix://{path}", version=version, timeout=_ANSWER_S)
    client.api.mount(_ENGINE, adapter)
    return client


def _reason(host: Host, seen: str) -> str:
    """Why Docker cannot be used: what a far host's socket is like only the host can tell."""
    if host.here:
        return seen
    script = Path(docker_engine.__file__).read_text("utf-8")
    done = host.run([host.python, "-I", "-S", "-c", script], timeout_s=_ANSWER_S)
    return done.out.strip() if done.code == 1 and done.out.strip() else seen


def _explanation(error: Any) -> str:
    return str(error.explanation or error).strip()


# -- the image --------------------------------------------------------------------------------------------


def _image(client: Any, host: Host, request: RuntimeRequest, deadline: float, progress: OnProgress) -> Any:
    """The image that the case runs in. Where it is there already, this is one question to the engine."""
    given = (request.image or Image()).image
    if given:
        image = _found(client, given) or _pull(client, host, given, deadline, progress)
        own = case_recipe(request, given, image.id)
        recipes = [own] if own else []
    else:
        image, vendors = None, vendor_recipe(request)
        own = case_recipe(request, vendors.name, vendors.name)
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


def _build(client: Any, host: Host, recipe: Recipe, deadline: float, progress: OnProgress) -> Any:
    from docker.errors import APIError

    progress(f"building {recipe.name}")
    last: deque[str] = deque(maxlen=_LAST_LINES)
    failed = False
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
            failed |= "error" in message
            if time.monotonic() > deadline:
                raise BuildFailed(_unbuilt(host, recipe, "did not end in time", last))
    except APIError as error:
        raise BuildFailed(_unbuilt(host, recipe, "failed", [_explanation(error)])) from error
    if failed:
        raise BuildFailed(_unbuilt(host, recipe, "failed", last))
    return client.images.get(recipe.name)


def _unbuilt(host: Host, recipe: Recipe, how: str, last: Sequence[str]) -> str:
    lines = "\n".join(f"  {line}" for line in last)
    return (
        f"{host.name}: the image {recipe.name} could not be built: docker build {how}. Its last lines:\n{lines}\n"
        f"fix {recipe.source}, set pip-source in flagperf.toml to an index that has the packages, or pass --image"
    )


def _pull(client: Any, host: Host, name: str, deadline: float, progress: OnProgress) -> Any:
    from docker.errors import APIError

    with _lock(host, name, deadline, progress):
        if image := _found(client, name):
            return image
        progress(f"pulling {name}")
        try:
            for word in _pull_words(client.api.pull(name, stream=True, decode=True)):
                progress(f"pulling {name}: {word}")
                if time.monotonic() > deadline:
                    raise RuntimeSetupError(f"{host.name}: the image {name} was not pulled in time: {word}")
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
    failure = ""
    for message in messages:
        failure = message.get("error") or failure
        share = message.get("progressDetail") or {}
        if message.get("status") == "Downloading" and "total" in share:
            layers[message["id"]] = share["current"], share["total"]
        if layers and time.monotonic() > spoken + _PULL_WORD_S:
            spoken = time.monotonic()
            have, whole = (sum(column) / 1e6 for column in zip(*layers.values(), strict=True))
            yield f"{have:.0f} of {whole:.0f} MB"
    if failure:
        raise _PullError(failure)


def _unpulled(host: Host, name: str, why: str) -> str:
    return (
        f"{host.name}: the image {name} was not found on the host and cannot be pulled: {why}; "
        "check its name, log in to its registry with docker login here, or load it on the host with docker load"
    )


def _lines(text: str) -> list[str]:
    """Whole lines, without colours, what a progress bar has painted over, and Docker's word on its own containers."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    lines = (line.split("\r")[-1].rstrip() for line in plain.replace("\r\n", "\n").split("\n"))
    return [line for line in lines if line and not line.startswith((" --->", "Removing intermediate container"))]


def _left(deadline: float) -> float:
    return max(1.0, deadline - time.monotonic())


@contextmanager
def _lock(host: Host, name: str, deadline: float, progress: OnProgress) -> Iterator[None]:
    """One of all runs from here builds an image on a host. Two from different machines may both: the results agree."""
    digest = hashlib.sha256(f"{host.address} {name}".encode()).hexdigest()[:16]
    path = Path(cache_root()) / "images" / f"{digest}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    told = False
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RuntimeSetupError(f"{host.name}: another run did not prepare {name} in time") from None
            if not told:
                progress(f"another run is preparing {name}; waiting for it")
                told = True
            time.sleep(_LOCK_POLL_S)
        yield


# -- the container ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Container:
    """Parameters of a container of an image on the host."""

    image: str
    wish: Image

    def create(
        self,
        host: Host,
        *,
        argv: Sequence[str],
        log_dir: str,
        read_only: Sequence[str],
        devices: Sequence[int],
        labels: Mapping[str, str],
    ) -> Mapping[str, Any]:
        own = {"mounts": own_mounts(read_only, log_dir)}
        with _client(host) as client:
            made = client.containers.create(
                self.image,
                list(argv),
                name=_container_name(log_dir),
                labels={**labels, "flagperf.log_dir": log_dir},
                working_dir=log_dir,
                **merged(self.arguments(devices), own),
            )
        return {"socket": docker_engine.SOCKET, "id": made.id, "only_leased": _options(self.wish).only_leased}

    def arguments(self, devices: Sequence[int]) -> dict[str, Any]:
        """Of docker-py's create: what the options say, over what we find right."""
        options, shm_size = _options(self.wish, devices), _shm_size(self.wish)
        arguments: dict[str, Any] = {
            "network_mode": "host",  # ranks of several hosts find each other, at the host's speed
            "shm_size": size(SHM_SIZE),
            "log_config": {"type": "json-file", "config": {"max-size": "1m", "max-file": "1"}},
            **options.arguments,
        }
        if shm_size:
            arguments["shm_size"] = shm_size
        if options.gpus and devices:
            # Exactly the leased ones, whatever else the host has.
            arguments["device_requests"] = [
                {"device_ids": [str(device) for device in devices], "capabilities": [["gpu"]]}
            ]
        return arguments


def _container_name(log_dir: str) -> str:
    """Docker takes few signs; a folder may have any."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", f"flagperf{log_dir}")[-120:].lstrip("-_.")
