"""What the tests of all packages share: the equipment of tests/, and each package installed as users do it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from pytest_flagperf.hooks.plugins import _load
from tests import own_places
from tests.conftest import framework_python, keep_users_folders, notes, pytester, repo, suite_python, torch_python

__all__ = [
    "framework_python", "keep_users_folders", "notes", "pytester", "repo", "suite_python", "torch_python",
]  # fmt: skip
pytest_plugins = ["pytester"]


def pytest_configure(config: pytest.Config) -> None:
    """Fail a session without the other tests, too, that leaves processes or folders."""
    own_places.check_session(config)


@pytest.fixture(scope="session")
def package_site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the folder with a package of packages/."""
    from tests.helpers.plugin_packages import install_package

    def site(name: str) -> Path:
        return install_package(Path(__file__).with_name(name), tmp_path_factory.mktemp(name) / "site")

    return cache(site)


@pytest.fixture
def install(package_site: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that installs a package for this process and for those that it starts."""

    def install(name: str) -> None:
        site = package_site(name)
        monkeypatch.syspath_prepend(site)
        monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
        _load.cache_clear()

    yield install
    _load.cache_clear()
