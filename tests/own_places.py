"""A test session's own places: home, cache, TMPDIR and leases; and a look at what it left there.

The session shares one thing with the user: the frameworks' environments, each a GB or more, which it finds in the
user's cache and builds there if they are missing. FLAGPERF_CACHE names another cache, as for every run.
"""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from flagperf_driver.node.folder import cache_root
from pytest_flagperf.hosts.stream import STREAMS
from tests.helpers.processes import ancestors, running

REPO = Path(__file__).resolve().parents[1]
# In the environment of all that a session starts.
_OWN = "FLAGPERF_TEST_SESSION"
_SHARED = "FLAGPERF_TEST_SHARED_CACHE"
_INSTALLER_SETTINGS = (".pip", ".config/pip", ".config/uv")  # where packages come from: as the user's installer has it
_ENVIRONMENTS = tuple(f"{name}-" for name in {path.parent.name for path in REPO.glob("suites/*/*/suite.toml")})
_PATIENCE_S = 15.0
_moved_in = False  # whether this process began the session; a pytest that a test starts is a part of it


def shared_cache() -> Path:
    """The user's cache, of which tests use the frameworks' environments only."""
    return Path(os.environ.get(_SHARED) or cache_root())


def move_in() -> None:
    """Give this process and all that it starts the session's own places; a worker has those of its controller."""
    global _moved_in
    if _OWN in os.environ:
        return
    _moved_in = True
    home, temporary = Path.home(), tempfile.gettempdir()
    os.environ[_SHARED] = str(cache_root())
    for pid in Path(temporary).glob("fpt-*/pid"):  # of a session that was killed
        with suppress(OSError):
            if not Path("/proc", pid.read_text()).exists():
                shutil.rmtree(pid.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="fpt-"))  # a short name: sockets lie in its TMPDIR
    (folder / "pid").write_text(str(os.getpid()))
    os.environ[_OWN] = str(folder)
    atexit.register(_remove, folder, os.getpid())
    folder.chmod(0o711)
    (folder / "home").mkdir()
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)  # as every temporary folder: tests have other users, too
    for name in _INSTALLER_SETTINGS:
        if (home / name).exists():
            (folder / "home" / name).parent.mkdir(exist_ok=True)
            (folder / "home" / name).symlink_to(home / name)
    # pytest's folders stay where the user looks for them after a failure.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", temporary)
    if (home / ".pyenv").is_dir():
        os.environ.setdefault("PYENV_ROOT", str(home / ".pyenv"))
    for name in ("FLAGPERF_CACHE", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        os.environ.pop(name, None)
    os.environ |= {"HOME": f"{folder}/home", "TMPDIR": f"{folder}/tmp", "FLAGPERF_LEASES": f"{folder}/leases"}
    tempfile.tempdir = None
    for environment in shared_cache().glob("venv/*/complete.json"):
        if environment.parent.name.startswith(_ENVIRONMENTS):
            link(environment.parent)


@pytest.fixture(scope="session", autouse=True)
def keep_users_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Send the pytests that tests start to TMPDIR: each would remove an earlier session's folders, for minutes."""
    tmp_path_factory.getbasetemp()
    os.environ.pop("PYTEST_DEBUG_TEMPROOT", None)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and no fork of it
        shutil.rmtree(folder, ignore_errors=True)


def link(path: Path) -> None:
    """Let runs of this session find an environment of the shared cache, or the record of a failed build."""
    target = Path(os.environ[_OWN], "home/.cache/pytest-flagperf/venv", path.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        target.symlink_to(path)


def left_in_own_places() -> list[str]:
    """Processes that the session started, and ranks' temporary folders in its TMPDIR."""
    for stream in list(STREAMS.open):
        stream.close()  # its process would end with this one
    above = ancestors(os.getpid())
    processes = [
        f"process {each.pid}: {each.line[:200]}"
        for each in running()
        if each.environment.get(_OWN) == os.environ[_OWN] and each.pid not in above and each.words
    ]
    return processes + sorted(map(str, Path(os.environ[_OWN], "tmp").glob("pytest-flagperf-*/tmp/*")))


class SessionCheck:
    """What is left after a session; for the process that began it."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Fail a session that left something; last of all, when its fixtures and its workers are gone."""
        yield
        deadline = time.monotonic() + _PATIENCE_S
        while (left := left_in_own_places()) and time.monotonic() < deadline:
            time.sleep(0.5)
        if left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for one in left:
            print(f"ERROR: left by these tests: {one}")


def check_session(config: pytest.Config) -> None:
    """Look in the process that began the session: what its workers and their tests start, others may still need."""
    if _moved_in and not config.pluginmanager.has_plugin("own-places"):
        config.pluginmanager.register(SessionCheck(), "own-places")
