"""Containers: an image, built or pulled once for each host, and one container for each round.

The controller talks to each host's Docker over the host's connection; hosts need no docker-py. The controller creates
the container, and the host's agent starts and removes it, also when the controller is gone.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagperf_driver.node import docker_engine, orphans
from flagperf_driver.node.folder import cache_root
from pytest_flagperf.hosts import Completed, Host, HostError, HostLost
from pytest_flagperf.hosts.replies import check_length
from pytest_flagperf.runtime import BuildFailed, Image, Interpreter, OnProgress, RuntimeRequest, RuntimeSetupError
from pytest_flagperf.runtime.image_facts import RUN_S, RunInImage, check_complete, read_image_facts

from .images import Recipe, case_recipe, vendor_recipe
from .run_options import SHM_SIZE, Options, OptionsError, parse, size

with suppress(ImportError):  # Windows imports this module for its names, but runs no rounds
    import fcntl

_ENGINE = "http+docker://localhost"  # docker-py's name for the engine
_SOCKET_URL = f"unix://{docker_engine.SOCKET}"
_ANSWER_S = 60.0
_LOCK_POLL_S = 0.2
_PULL_REPORT_S = 2.0
_STEP = re.compile(r"Step (\d+)/(\d+) :")
_LAST_LINES = 15


def prepare(host: Host, request: RuntimeRequest, progress: OnProgress) -> Interpreter:
    """Prepare the image on a host and read its facts; return its Python with the parameters of its container."""
    spec = request.image
    options = _options(spec)
    for note in options.notes:
        progress(note)
    with _client(host) as client:
        image = _image(client, host, request, time.monotonic() + request.timeout_s, progress)
        container = DockerSpec(image.id, spec)
        arguments = container.arguments(())
        run = _runner(client, host, container.image, arguments)
        facts = read_image_facts(host, container.image, [container.image, arguments], run, request, progress)
    name = (image.tags or [spec.image or image.id])[0]
    check_complete(host, name, request, facts["libraries"])
    digests = image.attrs.get("RepoDigests") or []  # by which registries know it
    details = {
        **facts["libraries"],
        "python": facts["python"],
        "image": name,
        "image_id": image.id,
        **({"digest": digests[0]} if digests else {}),
        **_privileges(spec, options),
    }
    return Interpreter(facts["executable"], facts["env"], f"docker: {name}", details, container)


def _options(spec: Image, devices: Sequence[int] = ()) -> Options:
    try:
        return parse(spec.options, spec.options_source, devices)
    except OptionsError as error:
        raise RuntimeSetupError(str(error)) from error


def _privileges(spec: Image, options: Options) -> dict[str, str]:
    """Return the unusual privileges of the container and where they were set."""
    granted = {}
    if options.privileged:
        granted["privileged"] = spec.privileged_source or spec.options_source
    if options.host_namespaces:
        granted["host_namespaces"] = f"{', '.join(options.host_namespaces)}: {spec.options_source}"
    return granted


# -- the engine -------------------------------------------------------------------------------------------


@contextmanager
def _client(host: Host) -> Iterator[Any]:
    """Yield a connected docker-py client; its errors become a RuntimeSetupError that names the host."""
    # Imported only for containers: the import takes longer than all of the harness.
    import docker
    import requests
    import urllib3

    try:
        if host.is_local:
            docker_engine.DockerEngine().api_version()  # its error says more
        host.open_socket(docker_engine.SOCKET).close()
    except HostLost:
        raise
    except HostError as error:
        raise RuntimeSetupError(str(error)) from error
    except docker_engine.EngineError as error:
        raise RuntimeSetupError(f"{host.name}: {error}") from error
    try:
        with closing(_connected(host)) as client:
            yield client
    except docker.errors.APIError as error:
        raise RuntimeSetupError(f"{host.name}: Docker refused: {_explanation(error)}") from error
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise RuntimeSetupError(f"{host.name}: the connection to Docker was lost: {error}") from error


def _connected(host: Host) -> Any:
    """Return a client with one connection, which the host's stream carries."""
    import docker
    import requests
    from docker.transport import UnixHTTPAdapter
    from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool

    class Connection(UnixHTTPConnection):  # type: ignore[misc]
        def connect(self) -> None:
            self.sock = host.open_socket(docker_engine.SOCKET)
            self.sock.settimeout(self.timeout)

    pool: Any = UnixHTTPConnectionPool(_ENGINE, docker_engine.SOCKET, timeout=_ANSWER_S)
    pool._new_conn = lambda: Connection(_ENGINE, docker_engine.SOCKET, _ANSWER_S)
    adapter: Any = UnixHTTPAdapter(_SOCKET_URL, timeout=_ANSWER_S)
    adapter.pools[_ENGINE] = pool
    adapter.get_connection = lambda _url, _proxies=None: pool  # docker-py would keep a pool for each URL
    with requests.Session() as session:
        session.mount(_ENGINE, adapter)
        # docker-py's own request for the version takes ten times as long.
        version = session.get(f"{_ENGINE}/_ping", timeout=_ANSWER_S).headers.get("Api-Version", "1.41")
        session.adapters.clear()  # the end of this session must not close the connection
    client = docker.DockerClient(base_url=_SOCKET_URL, version=version, timeout=_ANSWER_S)
    client.api.mount(_ENGINE, adapter)
    return client


def _explanation(error: Any) -> str:
    return str(error.explanation or error).strip()


# -- the image --------------------------------------------------------------------------------------------


def _image(client: Any, host: Host, request: RuntimeRequest, deadline: float, progress: OnProgress) -> Any:
    """Return the image of the case; build or pull it if it is missing."""
    given = request.image.image
    if given:
        image = _find(client, given) or _pull(client, host, given, deadline, progress)
        own = case_recipe(request, given, image.id)
        recipes = [own] if own else []
    else:
        image, vendors = None, vendor_recipe(request)
        own = case_recipe(request, vendors.name, vendors.name)
        recipes = [vendors, own] if own else [vendors]
    if recipes:
        image = _find(client, recipes[-1].name)
    for recipe in recipes if image is None else ():
        with _lock(host, recipe.name, deadline, progress):
            image = _find(client, recipe.name) or _build(client, host, recipe, deadline, progress)
    return image


def _find(client: Any, name: str) -> Any:
    from docker.errors import ImageNotFound

    try:
        return client.images.get(name)
    except ImageNotFound:
        return None


def _build(client: Any, host: Host, recipe: Recipe, deadline: float, progress: OnProgress) -> Any:
    from docker.errors import APIError

    progress(f"building {recipe.name}")
    last: deque[str] = deque(maxlen=_LAST_LINES)
    failed, step = False, None
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
            timeout=max(1.0, deadline - time.monotonic()),
        )
        for message in messages:
            for line in _lines(str(message.get("stream") or message.get("error") or "")):
                last.append(line)
                step = _STEP.match(line) or step
                progress(f"step {step[1]} of {step[2]}: {line}" if step else line)
            failed |= "error" in message
            if time.monotonic() > deadline:
                raise BuildFailed(_build_error(host, recipe, "did not end in time", last))
    except APIError as error:
        raise BuildFailed(_build_error(host, recipe, "failed", [_explanation(error)])) from error
    if failed:
        raise BuildFailed(_build_error(host, recipe, "failed", last))
    return client.images.get(recipe.name)


def _build_error(host: Host, recipe: Recipe, how: str, last: Sequence[str]) -> str:
    lines = "\n".join(f"  {line}" for line in last)
    return (
        f"{host.name}: the image {recipe.name} could not be built: docker build {how}. Its last lines:\n{lines}\n"
        f"fix {recipe.source}, set pip-source in flagperf.toml to an index that has the packages, or pass --image"
    )


def _pull(client: Any, host: Host, name: str, deadline: float, progress: OnProgress) -> Any:
    from docker.errors import APIError

    with _lock(host, name, deadline, progress):
        if image := _find(client, name):
            return image
        progress(f"pulling {name}")
        try:
            for amount in _pull_amounts(client.api.pull(name, stream=True, decode=True)):
                progress(f"image {name}: {amount}")
                if time.monotonic() > deadline:
                    raise RuntimeSetupError(f"{host.name}: the image {name} was not pulled in time: {amount}")
        except APIError as error:
            raise RuntimeSetupError(_pull_error(host, name, _explanation(error))) from error
        return _find(client, name)


def _pull_amounts(messages: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the downloaded share of all layers from time to time; APIError with the registry's or engine's reason."""
    from docker.errors import APIError

    layers: dict[str, tuple[int, int]] = {}
    reported_at = 0.0
    failure = ""
    for message in messages:
        failure = message.get("error") or failure
        share = message.get("progressDetail") or {}
        if message.get("status") == "Downloading" and "total" in share:
            layers[message["id"]] = share["current"], share["total"]
        if layers and time.monotonic() > reported_at + _PULL_REPORT_S:
            reported_at = time.monotonic()
            done, total = (sum(column) / 1e6 for column in zip(*layers.values(), strict=True))
            yield f"{done:.0f} of {total:.0f} MB"
    if failure:
        raise APIError(failure)


def _pull_error(host: Host, name: str, why: str) -> str:
    return (
        f"{host.name}: the image {name} was not found on the host and cannot be pulled: {why}; "
        "check its name, log in to its registry with docker login here, or load it on the host with docker load"
    )


def _lines(text: str) -> list[str]:
    """Return complete lines without colours, overwritten progress bars and Docker's own messages."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    lines = (line.split("\r")[-1].rstrip() for line in plain.replace("\r\n", "\n").split("\n"))
    return [line for line in lines if line and not line.startswith((" --->", "Removing intermediate container"))]


@contextmanager
def _lock(host: Host, name: str, deadline: float, progress: OnProgress) -> Iterator[None]:
    """Let one run of this machine at a time prepare an image; runs of other machines may prepare the same one."""
    digest = hashlib.sha256(f"{host.address} {name}".encode()).hexdigest()[:16]
    path = Path(cache_root()) / "images" / f"{digest}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    reported = False
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RuntimeSetupError(f"{host.name}: another run did not prepare {name} in time") from None
            if not reported:
                progress(f"another run is preparing {name}; waiting for it")
                reported = True
            time.sleep(_LOCK_POLL_S)
        yield


# -- the container ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DockerSpec:
    """The parameters of a container of an image on the host."""

    image: str
    spec: Image

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
            container = client.containers.create(
                self.image,
                list(argv),
                name=_container_name(log_dir),
                labels={**labels, "flagperf.log_dir": log_dir},
                working_dir=log_dir,
                **_merged(self.arguments(devices), own),
            )
        return {"socket": docker_engine.SOCKET, "id": container.id, "only_leased": _options(self.spec).only_leased}

    def run(self, host: Host, within_s: float, argv: Sequence[str]) -> Completed:
        with _client(host) as client:
            return _runner(client, host, self.image, self.arguments(()), within_s)(argv, b"", {})

    def arguments(self, devices: Sequence[int]) -> dict[str, Any]:
        """Return the arguments of docker-py's create: the defaults, overridden by the options."""
        options = _options(self.spec, devices)
        arguments: dict[str, Any] = {
            "network_mode": "host",  # ranks of several hosts reach each other at full speed
            "shm_size": size(SHM_SIZE),
            "log_config": {"type": "json-file", "config": {"max-size": "1m", "max-file": "1"}},
            **options.arguments,
        }
        if options.gpus and devices:
            # Only the leased devices of the host.
            arguments["device_requests"] = [
                {"device_ids": [str(device) for device in devices], "capabilities": [["gpu"]]}
            ]
        return arguments


def _container_name(log_dir: str) -> str:
    """Return a container name without the characters of a folder that Docker does not allow."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", f"flagperf{log_dir}")[-120:].lstrip("-_.")


def own_mounts(read_only: Sequence[str], log_dir: str) -> list[dict[str, Any]]:
    """Return the mounts of code and data, read-only, and of the log folder.

    Mounts, not binds: Docker would create the missing folder of a bind.
    """
    return [*(_same_path(folder, read_only=True) for folder in read_only), _same_path(log_dir, read_only=False)]


def _same_path(folder: str, *, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": folder, "Target": folder, "ReadOnly": read_only}


# -- programs in new containers of an image, to read its facts ------------------------------------------------


def _runner(client: Any, host: Host, image: str, arguments: Mapping[str, Any], within_s: float = RUN_S) -> RunInImage:
    """Return a function that runs a program in a new container.

    The program's streams are files in the container, so that they do not contain the output of the entrypoint.
    """

    def run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> Completed:
        container = client.containers.create(
            image,
            ["sh", "-c", 'exec "$@" < /.flagperf.in > /.flagperf.out 2> /.flagperf.err', "sh", *argv],
            labels={orphans.LOOK_LABEL: "1"},
            **_merged(arguments, {"environment": dict(env)}),
        )
        try:
            # Writable for all users: the image may set a user.
            container.put_archive("/", _tar({".flagperf.in": stdin, ".flagperf.out": b"", ".flagperf.err": b""}))
            container.start()
            code = int(container.wait(timeout=within_s)["StatusCode"])
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


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
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
