"""What the tests of all packages share: the equipment of tests/, and each package installed as users do it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests import own_places
from tests.conftest import pytester

__all__ = ["pytester"]
pytest_plugins = ["pytester"]


def pytest_configure(config: pytest.Config) -> None:
    """Fail a session without the other tests, too, that leaves something outside its own places."""
    own_places.watch(config)


@pytest.fixture(scope="session")
def package_site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the folder with a package of packages/."""
    from tests.plugin_packages import install_package

    def site(name: str) -> Path:
        return install_package(Path(__file__).with_name(name), tmp_path_factory.mktemp(name) / "site")

    return cache(site)
