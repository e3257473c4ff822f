"""What the tests share."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import own_places, phases
from tests.own_places import keep_users_folders as keep_users_folders  # a fixture

pytest_plugins = ["pytester", "tests.lab.fixtures", "tests.helpers.plugin_packages"]
REPO = Path(__file__).resolve().parent.parent

own_places.move_in()

# CI's make output wider, git's name the repository that git changes: a test that wants them sets them.
for _name in [name for name in os.environ if name in ("CI", "BUILD_NUMBER", "COLUMNS") or name[:4] in ("GITH", "GIT_")]:
    del os.environ[_name]
# Each pytest that a test starts would compile all it imports anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Each environment that a test installs with pip would compile all that its packages have.
os.environ["PIP_COMPILE"] = "0"
# A shell that starts the tests in the background lets them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The size of the campaign of bad inputs, and of the trainings."""
    parser.addoption("--hostile-inputs", type=int, default=300, help="bad inputs that tests/hostile tries")
    parser.addoption("--train-all", action="store_true", help="test and train all suites and record them")


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The usual one, for runs without Hypothesis, which takes as long to be imported as a toy takes to train."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    return pytester


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test has its own cache and its own leases."""
    monkeypatch.setenv("FLAGPERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FLAGPERF_LEASES", str(tmp_path / "leases"))


@pytest.fixture
def short_tmpdir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR of its own: below a longer path a rank could open no socket, and its folder would be made in /tmp."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture
def notes() -> Iterator[list[str]]:
    """The lines that a log of CI gets while the test runs."""
    from pytest_flagperf.progress import subscribed
    from pytest_flagperf.report.terminal.live import PlainLines

    lines: list[str] = []
    with subscribed(PlainLines(lines.append).subscriber):
        yield lines


@pytest.fixture(scope="session")
def suite_python(repo: Path) -> Callable[[Path], str]:
    """A function that returns the Python of the environment of a suite's folder; it is built on first use."""
    from pytest_flagperf.catalog import Catalog, framework_of
    from tests import environments

    catalog = Catalog.scan([repo])
    suites = {suite.path: suite for suite in catalog.suites.values()}

    def python(folder: Path) -> str:
        framework = framework_of(suites[folder])
        if given := os.environ.get(f"FLAGPERF_TEST_{framework.upper()}_PYTHON"):
            return given
        built = environments.build(catalog, suites[folder])
        environment = Path(built).parents[1]
        # With the record of packages that were not found, so that no run of the session looks for them again.
        for path in (environment, *environment.parent.glob(f"{framework}-*.failed")):
            own_places.link(path)
        return built

    return cache(python)


@pytest.fixture(scope="session")
def framework_python(repo: Path, suite_python: Callable[[Path], str]) -> Callable[[str], str]:
    """A function that returns the Python of a framework's environment: that of its first suite."""
    return lambda framework: suite_python(min(repo.glob(f"suites/*/{framework}/suite.toml")).parent)


@pytest.fixture(scope="session")
def torch_python(framework_python: Callable[[str], str]) -> str:
    return framework_python("pytorch")


def pytest_configure(config: pytest.Config) -> None:
    """Fail a session that leaves processes or folders; let workers that compute give way to others."""
    own_places.check_session(config)
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if worker and "loadfile" in worker["mainargv"] and phases.computes(worker["workerid"]):
        os.nice(10)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Return the scheduler of the slow tests; another phase has xdist's."""
    return phases.TwoKinds(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_xdist_auto_num_workers() -> int:
    """The quick tests wait more than they work."""
    return 2 * (os.cpu_count() or 1)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that need the lab as slow."""
    if _needs_lab(item):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)  # of the selected tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files: those that compute, the longest first; then those that need the lab, the longest last."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    in_lab = [file for file, found in files.items() if any(map(_needs_lab, found))]
    others = [file for file in files if file not in in_lab]
    others.sort(key=lambda file: phases.rank(file.relative_to(REPO).as_posix()))
    in_lab.sort(key=lambda file: len(files[file]))
    items[:] = [item for file in (*others, *in_lab) for item in files[file]]


def _needs_lab(item: pytest.Item) -> bool:
    return "lab_or_skip" in getattr(item, "fixturenames", ())


def listens_to_ctrl_c() -> None:
    """Let a child react to signals that a shell's background, or nohup, has it ignore."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
