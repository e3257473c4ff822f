"""Options, fixtures and markers have other names than those of the most used plugins.

``other_plugins.json`` lists the names of the versions that it gives.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from pytest_flagperf import plugin
from pytest_flagperf.kind import markers
from pytest_flagperf.runtime.pip_settings import index_settings
from pytest_flagperf.settings import COMMAND_LINE_OPTIONS

from .conftest import Toy

OTHERS: dict[str, Any] = json.loads(Path(__file__).with_name("other_plugins.json").read_text())
MOST_USED = 30
_UNREACHABLE = ("error sending request", "network was disabled", "timed out")


def own_options() -> list[str]:
    options = COMMAND_LINE_OPTIONS
    return [f"--{option.name}" for option in options] + [f"--no-{option.name}" for option in options if option.flag]


def own_fixtures() -> list[str]:
    return [name for name, value in vars(plugin).items() if type(value).__name__ == "FixtureFunctionDefinition"]


def clashes(kind: str, own: Iterable[str]) -> list[str]:
    return [f"{name} of {who}" for name in own for who, one in OTHERS["plugins"].items() if name in one[kind]]


def test_options_and_fixtures_have_unique_names_and_a_clash_is_detected() -> None:
    assert {"--vendor", "--cluster", "--no-synthetic"} <= set(own_options())
    assert {"case", "training", "judge"} <= set(own_fixtures())
    assert clashes("options", own_options()) == []
    assert clashes("fixtures", own_fixtures()) == []
    assert not set(markers()) & set(OTHERS["markers"])
    assert clashes("options", ["--hosts"]) == ["--hosts of pytest-testinfra"]
    assert clashes("fixtures", ["benchmark"]) == ["benchmark of pytest-benchmark"]
    assert {"asyncio", "benchmark"} <= set(OTHERS["markers"])
    assert len(OTHERS["plugins"]) >= MOST_USED


@pytest.fixture(scope="module")
def together(repo: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The Python of a new environment with all plugins, including pytest-flagperf."""
    folder = tmp_path_factory.mktemp("together") / "venv"
    python = folder / "bin" / "python"
    uv = [find_uv_bin(), "--quiet"]
    subprocess.run([*uv, "venv", f"--python={sys.executable}", str(folder)], check=True)
    requirements = [f"{name}=={one['version']}" for name, one in OTHERS["plugins"].items()]
    done = subprocess.run(
        [*uv, "pip", "install", f"--python={python}", str(repo), f"pytest=={OTHERS['pytest']}", *requirements],
        env={**os.environ, **index_settings(os.environ)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and any(word in done.stderr for word in _UNREACHABLE) and not pytestconfig.getini("strict"):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-3000:]
    return python


def environment() -> dict[str, str]:
    """Return the environment without the options that disable a plugin."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}


@pytest.mark.slow
@pytest.mark.parametrize("apart", OTHERS["apart"])
def test_a_run_passes_with_all_plugins_installed(toy: Toy, together: Path, apart: str) -> None:
    """Two of the plugins have the same option, so each is disabled once."""
    (toy.root / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [str(together), "-m", "pytest", "suites", "-k", "alpha and 1x1", "-p", "no:cacheprovider", "-p", f"no:{apart}"],
        cwd=toy.root, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "flagperf: 1 of 1 case passed" in done.stdout
    listed = done.stdout.split("plugins: ", 1)[1].splitlines()[0]
    # The header lists each distribution once, pytest-mock as mock-3.17.0, also if it is disabled.
    assert len(listed.split(", ")) > MOST_USED
    assert "flagperf-" in listed
