"""Installed plugins of pytest-flagperf, for tests in this process: a folder on the import path with their metadata."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_flagperf.hooks.plugins import _load
from tests.helpers.trees import write


def install_package(package: Path, site: Path) -> Path:
    """Install a package of this repository into a folder, and return the folder."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-cache", f"--python={sys.executable}"]
    argv = [sys.executable, "-m", "uv", "pip", "install", *options, f"--target={site}", str(package)]
    subprocess.run(argv, check=True)
    return site


HEAD = """
from pathlib import Path
from pytest_flagperf.hooks import *
from pytest_flagperf.results import *

"""


class Site:
    """A folder of installed packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages: list[str] = []

    def install(
        self, code: str, package: str = "made_maker", name: str = "made", version: str = "1.2", value: str = ""
    ) -> Path:
        info = f"{package}-{version}.dist-info"
        metadata = [f"Name: {package}", *([f"Version: {version}"] if version else [])]
        write(self.folder, f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *metadata, ""]))
        write(self.folder, f"{info}/entry_points.txt", f"[flagperf]\n{name} = {value or package}\n")
        write(self.folder, f"{package}/__init__.py", HEAD + code)
        self.packages.append(package)
        _load.cache_clear()
        return self.folder / package


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder of installed packages on the import path."""
    made = Site(tmp_path / "site")
    made.folder.mkdir()
    monkeypatch.syspath_prepend(made.folder)
    yield made
    _load.cache_clear()
    for package in made.packages:
        sys.modules.pop(package, None)
