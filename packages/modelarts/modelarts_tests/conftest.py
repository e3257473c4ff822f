"""OBS and ModelArts on this machine, and a tree whose cases run there."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from modelarts_tests import service
from pytest_flagperf_modelarts.keys import ACCESS, SECRET, TOKEN
from tests.plugin.conftest import Toy, move_in


@pytest.fixture(scope="session")
def obs_url() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    urlopen(url).close()  # loads S3 here; pytester forgets what a test loads, and would load it twice
    yield url
    server.stop()


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of the test's account, and no proxy between this machine and itself."""
    monkeypatch.setenv(ACCESS, service.ACCESS)
    monkeypatch.setenv(SECRET, service.SECRET)
    monkeypatch.delenv(TOKEN, raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def start_service(obs_url: str, tmp_path: Path, account: None) -> Iterator[Callable[..., service.ModelArts]]:
    running: list[service.ModelArts] = []

    def start(**options: Any) -> service.ModelArts:
        double = service.ModelArts(obs_url, tmp_path / "cloud", **options)
        running.append(double)
        urlopen(Request(f"{obs_url}/moto-api/reset", method="POST")).close()
        double.s3.create_bucket(Bucket="bench")
        return double

    yield start
    for double in running:
        double.close()


@pytest.fixture
def modelarts(start_service: Callable[..., service.ModelArts]) -> service.ModelArts:
    return start_service()


def table(double: service.ModelArts, **more: Any) -> str:
    values: dict[str, Any] = {
        "version": double.version, "project": service.PROJECT, "region": "us-east-1", "obs_endpoint": double.obs_url,
        "modelarts_endpoint": double.url, "code": "obs://bench/code/", "output": "obs://bench/out/",
        "job_name": "aisbench-debug", "framework": "Test-Engine", "framework_version": "1.0",
        "flavor": "test.8xlarge", "poll": 0.1, **more,
    }  # fmt: skip
    lines = [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
    return "\n".join(["[engines.modelarts]", *lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}" = {_toml(item)}' for name, item in value.items()) + "}"
    return json.dumps(value)


@pytest.fixture
def toy(pytester: pytest.Pytester, install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> Toy:
    install("modelarts")
    move_in(pytester.path, monkeypatch)
    tree = Toy(pytester)
    tree.suite("alpha")
    return tree
