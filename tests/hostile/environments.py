"""A generator of hostile environments for whole commands; the same number makes the same environment again.

Each environment has one to three faults: variables, open files, limits, signals, folders and disks that a user's
machine may have. A command must end in time and without a traceback; whether it succeeds is not checked.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LONGEST_S = 300
PIPE_CLOSED = 141
"""The exit code of a command whose reader closed the pipe, as a shell reports SIGPIPE."""
FAULTS_OF_PYTHON = ("Fatal Python error", "Error in sitecustomize", "Could not find platform independent libraries")
"""An interpreter that does not start is not ours to mend."""


@dataclass
class Surroundings:
    """What a command is started with."""

    folder: Path
    """A scratch folder outside the tree."""
    variables: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    prepare: list[Callable[[], object]] = field(default_factory=list)
    """Calls in the new process, before it becomes the command."""
    stdout: str = "pipe"
    moved: str = ""
    """The folder's new name, if the tree is moved to a name that is rare."""


def _set(name: str, *values: str) -> Callable[[random.Random, Surroundings], str]:
    def fault(choice: random.Random, around: Surroundings) -> str:
        value = choice.choice(values).replace("{folder}", str(around.folder))
        around.variables[name] = value
        return f"{name}={value[:60]!a}"

    return fault


def _unset(name: str) -> Callable[[random.Random, Surroundings], str]:
    def fault(choice: random.Random, around: Surroundings) -> str:
        around.removed.append(name)
        return f"{name} unset"

    return fault


def _limit(name: str, *values: int) -> Callable[[random.Random, Surroundings], str]:
    kind = getattr(resource, f"RLIMIT_{name}")

    def fault(choice: random.Random, around: Surroundings) -> str:
        value = choice.choice(values)
        around.prepare.append(lambda: resource.setrlimit(kind, (value, value)))
        return f"limit {name}={value}"

    return fault


def _closed(descriptor: int) -> Callable[[random.Random, Surroundings], str]:
    def fault(choice: random.Random, around: Surroundings) -> str:
        around.prepare.append(lambda: os.close(descriptor))
        return f"descriptor {descriptor} closed"

    return fault


def _output(kind: str) -> Callable[[random.Random, Surroundings], str]:
    def fault(choice: random.Random, around: Surroundings) -> str:
        around.stdout = kind
        return f"stdout is {kind}"

    return fault


def _ignored(choice: random.Random, around: Surroundings) -> str:
    number = choice.choice(
        [signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]
    )
    around.prepare.append(lambda: signal.signal(number, signal.SIG_IGN))
    return f"{number.name} ignored"


def _blocked(choice: random.Random, around: Surroundings) -> str:
    number = choice.choice([signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM])
    around.prepare.append(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {number}))
    return f"{number.name} blocked"


def _umask(choice: random.Random, around: Surroundings) -> str:
    mask = choice.choice([0, 0o077, 0o777])
    around.prepare.append(lambda: os.umask(mask))
    return f"umask {mask:o}"


def _no_folder(choice: random.Random, around: Surroundings) -> str:
    def leave() -> None:
        gone = around.folder / "gone"
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()

    around.prepare.append(leave)
    return "the current folder is gone"


def _rare_name(choice: random.Random, around: Surroundings) -> str:
    around.moved = choice.choice(
        [
            "with space",
            "new\nline",
            "ü汉字",
            "a'b\"c",
            "$(touch x)",
            "%s{}",
            "-x",
            "n" * 200,
            "\udcff",
            "[a]*?",
            "a:b",
            "#",
        ]
    )
    return f"the tree is in {around.moved!a}"


def _mounted(target: str, options: str) -> Callable[[random.Random, Surroundings], str]:
    """Mount a file system over a folder, in a namespace of the command's own."""

    def fault(choice: random.Random, around: Surroundings) -> str:
        place = target.replace("{folder}", str(around.folder)).replace("{tree}", around.moved or "tree")

        def mount() -> None:
            _unshare()
            for words in (["mount", "--make-rprivate", "/"], ["mount", *options.split(), "none", place]):
                subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

        around.prepare.insert(0, mount)  # before a limit that mount itself would reach
        return f"{target} is mounted with {options}"

    return fault


def _full_temporary_folder(choice: random.Random, around: Surroundings) -> str:
    (around.folder / "small").mkdir()
    around.variables["TMPDIR"] = str(around.folder / "small")
    _mounted("{folder}/small", "-t tmpfs -o size=4k")(choice, around)
    return "TMPDIR is full"


def _unshare() -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:  # CLONE_NEWNS
        raise OSError(ctypes.get_errno(), "unshare")


_PLACES = (
    "/nonexistent", "", "relative", "/dev/null", "/proc", "{folder}/" + "x" * 200, "/" + "y/" * 120, "{folder}/ü",
)  # fmt: skip
_NAMES = (
    "with space", "new\nline", "ü汉字", "a'b\"c", "$(touch x)", "%s{}", "-x", "n" * 200, "\udcff", "[a]*?", "a:b", "#",
)  # fmt: skip
FAULTS: tuple[Callable[[random.Random, Surroundings], str], ...] = (
    *(_set(name, *_PLACES) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "FLAGPERF_CACHE", "XDG_CONFIG_HOME")),
    _set("FLAGPERF_LEASES", *filter(None, _PLACES)),  # without a folder the command would wait for the user's own runs
    *(_unset(name) for name in ("HOME", "PATH", "TERM", "LANG", "USER", "FLAGPERF_CACHE", "SHELL")),
    _set("LC_ALL", "C", "POSIX", "xx_YY.UTF-8", "tr_TR.UTF-8", "zh_CN.GBK", "", "C.UTF-8"),
    _set("LANG", "C", "de_DE.ISO-8859-1", "nonsense"),
    _set("PYTHONIOENCODING", "ascii", "latin-1", "utf-16", "ascii:strict", "utf-8:surrogateescape"),
    _set("PYTHONUTF8", "0", "1"),
    _set("PYTHONCOERCECLOCALE", "0"),
    _set("PYTHONOPTIMIZE", "1", "2"),
    _set("PYTHONWARNINGS", "error", "ignore", "default"),
    _set("PYTHONDONTWRITEBYTECODE", "1"),
    _set("PYTHONUNBUFFERED", "1"),
    _set("PYTHONHASHSEED", "0", "1"),
    _set("PYTHONPYCACHEPREFIX", "/nonexistent", "{folder}"),
    _set("PYTHONSAFEPATH", "1"),
    _set("PYTHONDEVMODE", "1"),
    _set("PYTHONTRACEMALLOC", "1"),
    _set("PATH", "", "/nonexistent", "relative", "/usr/bin"),
    _set("TERM", "dumb", "nonsense", "", "xterm-256color"),
    _set("COLUMNS", "0", "-1", "1", "abc", "100000", ""),
    _set("LINES", "0", "-1", "abc"),
    _set("TZ", "nonsense", "UTC+99", "", ":/etc/passwd", "Asia/Kathmandu"),
    _set("CI", "true", ""),
    _set("NO_COLOR", "1"),
    _set("FORCE_COLOR", "1"),
    _set("PYTEST_ADDOPTS", "-q", "-vv", "--tb=native", "-s", "--color=yes"),
    _set("GITHUB_ACTIONS", "true"),
    _set("GITHUB_STEP_SUMMARY", "/nonexistent/x", "/dev/full", "{folder}"),
    _set("SLURM_JOB_ID", "1", "x", ""),
    _set("LD_PRELOAD", "/nonexistent.so"),
    _set("OMP_NUM_THREADS", "0", "x", "9999999"),
    _set("http_proxy", "http://127.0.0.1:9", "nonsense"),
    _limit("NOFILE", 24, 40, 64, 128),
    _limit("FSIZE", 0, 100, 4096, 65536),
    _limit("AS", 200 << 20, 400 << 20, 1 << 30),
    _limit("STACK", 256 << 10, 1 << 20),
    _limit("CORE", 0),
    _limit("MEMLOCK", 0),
    _limit("SIGPENDING", 0),
    *(_closed(descriptor) for descriptor in (0, 1, 2)),
    *(_output(kind) for kind in ("/dev/full", "a broken pipe", "a file")),
    _ignored,
    _blocked,
    _umask,
    _no_folder,
    _rare_name,
    _mounted("/var/tmp", "-t tmpfs -o ro"),
    _full_temporary_folder,
    _mounted("/dev/shm", "-t tmpfs -o size=4k"),
    _mounted("/sys", "-t tmpfs -o ro"),
    _mounted("{folder}/{tree}/reports", "-t tmpfs -o size=4k"),
)
RUNS: tuple[tuple[str, ...], ...] = (
    ("pytest", "suites/alpha", "--nodes=1x1"),
    ("pytest", "suites/alpha", "--nodes=1x1", "--plan"),
    ("pytest", "suites", "--collect-only"),
    ("pytest", "suites", "--nodes=1x1", "-n2", "-k", "converges"),
)
READERS: tuple[tuple[str, ...], ...] = (
    ("pytest_flagperf", "list"),
    ("pytest_flagperf", "show", "{run}"),
    ("pytest_flagperf", "report", "{run}"),
    ("pytest_flagperf", "compare", "{run}", "{run}"),
    ("pytest_flagperf", "watch", "--once", "{run}"),
)


@dataclass(frozen=True)
class Try:
    """One command in one environment, and its end."""

    described: str
    words: tuple[str, ...]
    code: int | None
    output: str

    @property
    def finding(self) -> str:
        """The fault of this try; empty without one."""
        if any(text in self.output for text in FAULTS_OF_PYTHON):
            return ""
        if self.code is None:
            return f"{self.described}: did not end within {LONGEST_S} s: {self.output[-500:]}"
        for mark in ("Traceback (most recent call last)", "INTERNALERROR", "Exception ignored"):
            if mark in self.output:
                return f"{self.described}: {self.output[max(0, self.output.index(mark) - 200) :][-3000:]}"
        if self.code < 0 or (self.code > 5 and self.code != PIPE_CLOSED):
            return f"{self.described}: exit code {self.code}: {self.output[-500:]}"
        return ""


def attempt(seed: int, number: int, tree: Path, run: Path, scratch: Path, *, plain: bool = False) -> Try:
    """Run the command of this number in its environment; ``plain`` runs pytest without the plugin instead."""
    choice = random.Random(f"{seed}-{number}")
    words = choice.choice(RUNS if choice.random() < 0.7 else READERS)
    folder = scratch / f"{number}{'p' * plain}"
    folder.mkdir()
    around = Surroundings(folder)
    faults = [fault(choice, around) for fault in choice.sample(FAULTS, choice.choice([1, 1, 2, 3]))]
    own = folder / (around.moved or "tree")
    shutil.copytree(tree, own)
    (own / "reports").mkdir()
    arguments = [word.replace("{run}", str(run)) for word in words]
    if plain:
        (own / "test_plain.py").write_text("def test_plain(): pass\n")
        parallel = [word for word in words if word == "-n2"]
        arguments = ["pytest", "-p", "no:flagperf", "test_plain.py", *parallel, "--html=report.html"]
    described = f"{number}: {' '.join(words)} with {', '.join(faults)}"
    code, output = run_in([sys.executable, "-m", *arguments], own, around)
    shutil.rmtree(folder, ignore_errors=True)
    return Try(described, words, code, output)


def run_in(argv: list[str], tree: Path, around: Surroundings) -> tuple[int | None, str]:
    variables = {name: value for name, value in os.environ.items() if name not in around.removed}
    variables |= around.variables
    errors = around.folder / "errors"

    def prepare() -> None:
        for step in around.prepare:
            step()

    with errors.open("wb") as error_file:
        read, write = os.pipe()
        target = {"/dev/full": "/dev/full", "a file": str(around.folder / "output")}.get(around.stdout)
        with open(target, "wb") if target else os.fdopen(os.dup(write), "wb") as out:  # noqa: PTH123 - also a descriptor
            child = subprocess.Popen(
                argv, cwd=tree, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=error_file,
                preexec_fn=prepare, start_new_session=True,
            )  # fmt: skip
        os.close(write)
        if around.stdout == "a broken pipe":
            os.close(read)
            output = b""
        code, output = _wait(child, None if around.stdout == "a broken pipe" else read)
    if target and target != "/dev/full":
        output += Path(target).read_bytes()
    text = (output + errors.read_bytes() if errors.exists() else output).decode("utf-8", "replace")
    return code, text


def _wait(child: subprocess.Popen[bytes], read: int | None) -> tuple[int | None, bytes]:
    import threading

    parts: list[bytes] = []

    def drain() -> None:
        if read is None:
            return
        with os.fdopen(read, "rb") as pipe:
            parts.append(pipe.read())

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        code: int | None = child.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        code = None
    reader.join(10)
    return code, b"".join(parts)
