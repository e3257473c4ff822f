"""Hostile environments for whole commands: no traceback, no hang, a known exit code; one for each kind of fault."""

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.plugin.conftest import Toy

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: needs root")]

LONGEST_S = 120
PIPE_CLOSED = 141
"""The exit code of a command whose reader closed the pipe, as a shell reports SIGPIPE."""
RUN = ("pytest", "suites/alpha", "--nodes=1x1")
LIST = ("pytest_flagperf", "list")
SHOW = ("pytest_flagperf", "show", "{run}")
MARKS = ("Traceback (most recent call last)", "INTERNALERROR", "Exception ignored")
NO_FOLDER = "/nonexistent/" + "x" * 200


def _broken_pipe() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


@dataclass(frozen=True)
class Place:
    """What a command is started with; ``prepare`` runs in the new process, before it becomes the command."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    prepare: Callable[[Path], object] = lambda tree: None
    stdout: Callable[[], int] | None = None
    folder: str = "tree"


def _limit(name: str, value: int) -> Callable[[Path], object]:
    return lambda _: resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def _leave(tree: Path) -> None:
    gone = tree.parent / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()


def _mounted(name: str, options: str) -> Callable[[Path], object]:
    """Mount a file system over a folder, in a namespace of the command's own."""

    def mount(tree: Path) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:  # CLONE_NEWNS
            raise OSError(ctypes.get_errno(), "unshare")
        for words in (["mount", "--make-rprivate", "/"], ["mount", *options.split(), "none", str(tree / name)]):
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    return mount


ENVIRONMENTS: dict[str, tuple[tuple[str, ...], Place]] = {
    # Found by a campaign of thousands of random environments, which this table replaced.
    "without docstrings": (LIST, Place({"PYTHONOPTIMIZE": "2"})),
    "stdout is closed": (LIST, Place(prepare=lambda _: os.close(1))),
    "a time zone of four days": (RUN, Place({"TZ": "UTC+99"})),
    # One of each kind that the campaign tried.
    "no home": (RUN, Place({"HOME": NO_FOLDER, "XDG_CACHE_HOME": "", "FLAGPERF_CACHE": None})),
    "no temporary folder": (RUN, Place({"TMPDIR": NO_FOLDER})),
    "ascii": (RUN, Place({"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})),
    "warnings are errors": (SHOW, Place({"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"})),
    "few open files": (RUN, Place(prepare=_limit("NOFILE", 40))),
    "small files": (RUN, Place(prepare=_limit("FSIZE", 4096))),
    "stderr is closed": (RUN, Place(prepare=lambda _: os.close(2))),
    "a full disk for the output": (SHOW, Place(stdout=lambda: os.open("/dev/full", os.O_WRONLY))),
    "a reader that is gone": (SHOW, Place(stdout=_broken_pipe)),
    "ended children are not told": (RUN, Place(prepare=lambda _: signal.signal(signal.SIGCHLD, signal.SIG_IGN))),
    "SIGTERM is blocked": (
        RUN,
        Place(prepare=lambda _: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM})),
    ),
    "a umask of 777": (RUN, Place(prepare=lambda _: os.umask(0o777))),
    "the current folder is gone": (LIST, Place(prepare=_leave)),
    "a rare name": (RUN, Place(folder="new\nline %s{} '\"$(touch x)\udcff")),
    "reports on a full disk": (RUN, Place(prepare=_mounted("reports", "-t tmpfs -o size=4k"))),
    "a read-only tree": (RUN, Place(prepare=_mounted("reports", "-t tmpfs -o ro"))),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    made: Any = SimpleNamespace(path=root)  # the only attribute that the toy needs from pytest's fixture
    Toy(made).suite("alpha", "step_s = 0.001\n")
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "reports").mkdir()
    return root


@pytest.fixture(scope="module")
def stored(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to read; also the control: without a fault, the command passes."""
    own = tmp_path_factory.mktemp("stored") / "tree"
    shutil.copytree(tree, own)
    code, output = command(RUN, own, Place())
    assert code == 0, output
    (run,) = (own / "reports").glob("run*")
    return run


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_leads_to_no_traceback_and_no_hang(name: str, tree: Path, stored: Path, tmp_path: Path) -> None:
    words, place = ENVIRONMENTS[name]
    own = tmp_path / place.folder
    shutil.copytree(tree, own)
    code, output = command([word.replace("{run}", str(stored)) for word in words], own, place)
    assert not any(mark in output for mark in MARKS), output
    assert 0 <= code <= 5 or code == PIPE_CLOSED, f"exit code {code}: {output}"


def command(words: Sequence[str], tree: Path, place: Place) -> tuple[int, str]:
    """Return the exit code and all output; a hang is an error."""
    files = tree.parent / "output", tree.parent / "errors"
    variables = {name: value for name, value in {**os.environ, **place.variables}.items() if value is not None}
    with files[0].open("wb") as out, files[1].open("wb") as errors:
        own = place.stdout and place.stdout()
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tree, env=variables, stdin=subprocess.DEVNULL, stdout=own or out,
            stderr=errors, preexec_fn=lambda: place.prepare(tree), start_new_session=True, timeout=LONGEST_S,
            check=False,
        )  # fmt: skip
        if own:
            os.close(own)
    return done.returncode, "".join(file.read_text(errors="replace") for file in files)
