"""A generator of bad inputs for all options, files and commands; the same number makes the same input again."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_flagperf.commands import COMMANDS, main
from pytest_flagperf.settings import COMMAND_LINE_OPTIONS
from tests import trees
from tests.stored_runs import add_case, finish

from .small_tree import CASE, FILES, make_tree, start_run

LONGEST_S = 60
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
CANARY = "hostile-canary"
"""A file that only a shell would create: each command in the inputs creates it."""


def words(canary: Path) -> list[str]:
    """Words that are wrong in most places, and that a shell would run."""
    return [
        "", " ", "-", "--", "=", ",", ":", ";", "@", "/", "\\", "'", '"', "%", "%s%n", "{}", "{device}",
        f"$(touch {canary})", f"`touch {canary}`", f"; touch {canary};", f"| touch {canary}", f"&& touch {canary}",
        f"\ntouch {canary}\n", f"a'; touch {canary}; '", f'a"; touch {canary}; "', f"${{IFS}}$(touch {canary})",
        "x" * 256, "x" * 5000, "/".join(["x" * 200] * 30), "../" * 20 + "etc/passwd", "~nobody/x", "~", "/dev/null",
        "{0.__class__}", "/dev/zero", "/etc", "a\0b", "\0", "\ud800", "\udcff", "\ufeff", "ü", "汉字", "\u202ex",
        "\t", "\r\n", "0", "-1", "1e999", "nan", "inf", "9" * 19, "9" * 400, "9" * 5000, "0x" + "f" * 5000, "1_000",
        "1.5", "True", "None", "null", "[]", "{", "[" * 3000, "(" * 300, "-" * 3000, "a." * 3000, "1x1", "0x0", "1x",
        "x1", "999999999x999999999", ",1x1", "a:b:c:1:1:1", ":" * 5, "u:p@h", "https://u:p@h/x", "http://[",
        "file:///etc/passwd", "-oProxyCommand=touch", "*", "?", "[a-z]*", "**/*", "*" * 500, "#", "<!--", "<script>",
    ]  # fmt: skip


def values() -> list[object]:
    """Values of JSON, TOML and Python that are wrong in most places."""
    nested: object = 1
    for _ in range(300):
        nested = [nested]
    return [
        None, True, False, 0, -1, 1, 2**63, 10**400, -(10**400), 0.0, -0.5, 1e308, float("nan"), float("inf"), "", "x",
        "1", "x" * 5000, "9" * 5000, "\ud800", "\0", [], [None], [[]], {}, {"": {}}, {"a": None}, [1, "a"], nested,
        {"x" * 5000: 1}, ["x"] * 1000, "2026-01-01", "nan", "../..", "/",
    ]  # fmt: skip


class Inputs:
    """Random choices of one input."""

    def __init__(self, surface: str, number: int, canary: Path) -> None:
        self.random = random.Random(f"{surface}-{number}")
        self._words = words(canary)

    def word(self) -> str:
        """Return a hostile word, two of them, or one within a good word."""
        one, other = self.random.choice(self._words), self.random.choice(self._words)
        return self.random.choice(
            [one, one, one, one + other, f"a{one}b", f"{CASE}{one}", f"{one}={other}", f"{one},h1"]
        )

    def changed(self, text: str) -> str:
        """Return a good text with one or more faults."""
        for _ in range(self.random.choice([1, 1, 2, 3])):
            text = self.random.choice([self._cut, self._inserted, self._dropped, self._line, self._value])(text)
        return text

    def written(self, file: Path, text: str) -> str:
        """Write a changed text, sometimes as bytes that are not UTF-8."""
        text = self.changed(text)
        content = text.encode("utf-8", "surrogatepass")
        if self.random.random() < 0.1:
            place = self.random.randrange(len(content) + 1)
            content = content[:place] + self.random.randbytes(self.random.choice([1, 4, 100])) + content[place:]
        file.write_bytes(content)
        return repr(content[:400])

    def _cut(self, text: str) -> str:
        return text[: self.random.randrange(len(text) + 1)]

    def _dropped(self, text: str) -> str:
        start = self.random.randrange(len(text) + 1)
        return text[:start] + text[start + self.random.choice([1, 3, 20]) :]

    def _inserted(self, text: str) -> str:
        start = self.random.randrange(len(text) + 1)
        return text[:start] + self.word() + text[start:]

    def _line(self, text: str) -> str:
        lines = text.splitlines() or [""]
        number = self.random.randrange(len(lines))
        lines[number : number + 1] = self.random.choice(
            [[], [lines[number]] * 2, [self.word()], [self.word(), lines[number]]]
        )
        return "\n".join(lines) + "\n"

    def _value(self, text: str) -> str:
        """Replace the value after one of the equals signs."""
        lines = text.splitlines() or [""]
        number = self.random.randrange(len(lines))
        name, equals, _ = lines[number].partition("=")
        word = self.random.choice([self.word(), json.dumps(self.word()), repr(self.random.choice(values()))])
        lines[number] = f"{name}{equals} {word}"
        return "\n".join(lines) + "\n"

    def changed_json(self, document: object) -> object:
        """Return the document with one value changed, or without one key."""
        document = copy.deepcopy(document)
        place: Any = document
        while True:
            keys = (
                list(place) if isinstance(place, dict) else list(range(len(place))) if isinstance(place, list) else []
            )
            if not keys:
                return self.random.choice(values())
            key = self.random.choice(keys)
            if not isinstance(place[key], (dict, list)) or not place[key] or self.random.random() < 0.2:
                break
            place = place[key]
        if self.random.random() < 0.3:
            del place[key]
        else:
            place[key] = self.random.choice(values())
        return document


Surface = Callable[[Inputs, Path], str]
"""Make an input in a folder and pass it to the code; return a description of it. Any exception is a finding."""
SURFACES: dict[str, Surface] = {}


def surface(made: Surface) -> Surface:
    SURFACES[made.__name__] = made
    return made


# -- the command line and the settings ---------------------------------------------------------------


def _asked(folder: Path, options: Mapping[str, Any], described: str = "") -> str:
    start_run(folder, options, begin=True)
    return described or repr(options)[:400]


def _option(inputs: Inputs) -> tuple[str, Any]:
    option = inputs.random.choice(COMMAND_LINE_OPTIONS)
    if option.flag:
        return option.key, inputs.random.choice([True, False])
    if option.choices:
        return option.key, inputs.random.choice(option.choices)
    if isinstance(option.default, int):
        return option.key, inputs.random.choice([0, -1, 1, 3, 10**6])
    return option.key, [inputs.word()] if option.many else inputs.word()


@surface
def options(inputs: Inputs, folder: Path) -> str:
    return _asked(folder, dict(_option(inputs) for _ in range(inputs.random.choice([1, 1, 2, 4]))))


@surface
def cases(inputs: Inputs, folder: Path) -> str:
    return _asked(folder, {"case": [inputs.changed(inputs.random.choice([CASE, f"{CASE}=data"]))]})


@surface
def container_options(inputs: Inputs, folder: Path) -> str:
    text = "-e A=1 --memory 64g -v /a:/b:ro --mount type=bind,source=/a,target=/b --ulimit memlock=-1"
    text += " --device /dev/x{device}"
    described = inputs.changed(text)
    trees.set_options(folder, container_opt=[described])
    return _asked(folder, {"runtime": "docker"}, described)


@surface
def settings_file(inputs: Inputs, folder: Path) -> str:
    good = (
        'vendor = "cpu"\nnodes = "1x1"\nrepeat = 2\nset = ["max_steps=5"]\nroots = ["."]\n'
        "sample = 0.5\nsynthetic = true\n"
        'container-opt = ["--memory 1g"]\n[cluster]\nhosts = ["h1", "u@h2:22"]\nport = 22\nkey = "id"\ngateway = "g"\n'
        '[[expected]]\ncase = "alpha:*"\nverdict = "converged"\nreason = "known"\n'
    )
    name = inputs.random.choice(["flagperf.toml", "flagperf.toml", "pyproject.toml"])
    text = good if name == "flagperf.toml" else f"[tool.flagperf]\n{good.partition('[cluster]')[0]}"
    return _asked(folder, {}, inputs.written(folder / name, text))


@surface
def resumed(inputs: Inputs, folder: Path) -> str:
    run = folder / "reports/run1"
    run.mkdir(parents=True)
    asked = {"vendor": "cpu", "set": ["max_steps=5"], "roots": [str(folder)], "case": [CASE]}
    document = inputs.changed_json(asked)
    text = json.dumps(document)
    described = inputs.written(run / "options.json", text) if inputs.random.random() < 0.3 else repr(document)[:400]
    if not (run / "options.json").exists():
        (run / "options.json").write_text(text)
    return _asked(folder, {"resume": str(run)}, described)


# -- files ----------------------------------------------------------------------------------------------------------


def _file(inputs: Inputs, folder: Path, name: str, options: Mapping[str, Any] | None = None, text: str = "") -> str:
    described = inputs.written(folder / name, text or FILES[name])
    start_run(folder, options or {})
    return f"{name}: {described}"


REFERENCE = {"scale": "reference", "nodes": "1x1", "synthetic": True}


@surface
def vendor_toml(inputs: Inputs, folder: Path) -> str:
    return _file(inputs, folder, "vendors/cpu/vendor.toml", {"runtime": inputs.random.choice(["docker", "host"])})


@surface
def suite_toml(inputs: Inputs, folder: Path) -> str:
    return _file(inputs, folder, "suites/alpha/plain/suite.toml")


SNIPPETS = [
    "max_steps = 1 / 0", "max_steps = no_such_name", "import torch", "from ..up import x",
    "from config_CPUx1x1 import *", "raise SystemExit(0)", "raise KeyboardInterrupt", "raise BaseException('x')",
    "import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "def f(): return f()\nf()",
    "max_steps = 10 ** 5000", "max_steps = 1 << 100000", "max_steps = [1] * 10 ** 11", "note = 'x' * 10 ** 11",
    "x = []\nx.append(x)\nnote = x", "a = [1] * 10\n" + "a = [a] * 10\n" * 9 + "note = a",
    "class A:\n  def __repr__(self): raise ValueError\nnote = A()", "class A(str): pass\nnote = A('x')",
    "note = object()", "note = {1: 2, None: 3}", "note = float('nan')", "note = b'x'", "note = '\\ud800'",
    "note = '\\0'", "import threading; threading.Thread(target=lambda: 1).start()", "print('x' * 10)",
    "import sys; sys.exit('x')", "import sys; sys.stdout.close()",
    "import faulthandler; faulthandler.cancel_dump_traceback_later()", "globals().clear()",
    "__builtins__ = None\nx = 1", "del __file__", "from typing import *", "max_steps: 'int | None' = 3",
    "max_steps: (lambda: 1)() = 3", "width: List[", "max_steps = 3\nmax_steps: str", "import importlib",
    "exec('max_steps = 3')", "max_steps = int(input())", "open('/etc/passwd', 'a').close()",
    "locals()['max_steps'] = 'x'", "max_steps = lambda: 1", "(max_steps) = 3", "max_steps, note = 3, 4",
    "max_steps = note = 3", "max_steps += 1", "for max_steps in range(3): pass", "max_steps = -True",
    "max_steps = 0xffffffffffffffffffff", "note = ((((((1,),),),),),)", "note = 1e308 * 10", "max_steps = 7 % 0",
    "note = 'a' % 5", "note = -'a'", "note = [1] + [2]", "async def f(): pass", "yield 3", "return 3", "await x",
    "vendor = None", "target = 0.1", "data_dir = 5", "train_data = '../../etc'", "seed = -1",
    "throughput_only = 1 > 0", f"import os; os.system('touch {CANARY}')", f"max_steps = open('{CANARY}', 'w').close()",
]  # fmt: skip


@surface
def config_files(inputs: Inputs, folder: Path) -> str:
    base = "suites/alpha/plain/config"
    name = inputs.random.choice(
        [f"{base}/_base.py", f"{base}/mutable_params.py", "vendors/cpu/alpha-plain/config/config_CPUx1x1.py"]
    )
    text = FILES[name] + inputs.random.choice(SNIPPETS) + "\n"
    if inputs.random.random() < 0.5:
        return _file(inputs, folder, name, REFERENCE, text)
    (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    return _asked(folder, REFERENCE, f"{name}: {text}")


@surface
def test_conf(inputs: Inputs, folder: Path) -> str:
    text = (
        f'VENDOR = "cpu"\nCASES = {{\n    "{CASE}": "data",\n    "alpha:plain:CPU:1:2:1": "",\n}}\n'
        'PIP_SOURCE = "https://h/simple"\nACCE_CONTAINER_OPT = "--gpus all -e A=1"\nSHM_SIZE = "32g"\n'
        'CLEAR_CACHES = True\nACCE_VISIBLE_DEVICE_ENV_NAME = "X"\nFLAGPERF_LOG_PATH = "logs"\n'
    )
    described = inputs.written(folder / "test_conf.py", text)
    return _asked(
        folder,
        {"test_conf": str(folder / "test_conf.py"), "runtime": inputs.random.choice(["docker", "host"])},
        described,
    )


@surface
def cluster_conf(inputs: Inputs, folder: Path) -> str:
    described = inputs.written(
        folder / "cluster_conf.py", 'HOSTS = ["10.0.0.2", "h3"]\nSSH_PORT = "22"\nMASTER_PORT = "29501"\n'
    )
    return _asked(folder, {"cluster_conf": str(folder / "cluster_conf.py")}, described)


@surface
def requirements(inputs: Inputs, folder: Path) -> str:
    text = "torch==2.10\n-r more.txt\n--extra-index-url https://h/simple\npkg @ https://h/p.whl\na[b]>=1; os_name>'a'\n"
    folders = ["suites/alpha/plain", "vendors/cpu/alpha-plain/config"]
    name = f"{inputs.random.choice(folders)}/requirements.txt"
    (folder / name).with_name("more.txt").write_text("-r requirements.txt\n" if inputs.random.random() < 0.2 else "x\n")
    return _file(inputs, folder, name, {"runtime": "docker"}, text)


@surface
def environment_file(inputs: Inputs, folder: Path) -> str:
    name = "vendors/cpu/alpha-plain/config/environment_variables.sh"
    return _file(inputs, folder, name, {}, "export A=1\ndeclare -x B='2'\nC=3\n")


@surface
def adapters(inputs: Inputs, folder: Path) -> str:
    name = inputs.random.choice(["vendors/cpu/alpha-plain/extern/trainer_adapter.py", "vendors/cpu/device.py"])
    (folder / name).parent.mkdir(exist_ok=True)
    return _file(
        inputs,
        folder,
        name,
        {},
        "def create_optimizer(config, model):\n    return None\ndef synchronize(device): pass\n",
    )


@surface
def baselines(inputs: Inputs, folder: Path) -> str:
    place = folder / "reports/baselines"
    place.mkdir(parents=True)
    good = {
        "schema": 1,
        "case": CASE,
        "fingerprint": {"key": "a", "machine": {}},
        "accepted": {"run": "run1", "by": "me"},
        "metrics": {
            "p_core": {"value": 100.0, "unit": "samples/s", "direction": "higher", "lower": 0.9, "upper": None}
        },
    }
    file = place / f"{CASE.replace(':', '_')}.json"
    document = inputs.changed_json(good)
    file.write_text(json.dumps(document))
    described = inputs.written(file, json.dumps(good)) if inputs.random.random() < 0.3 else repr(document)[:400]
    return _asked(folder, {}, described)


# -- the commands ---------------------------------------------------------------------------------------------------


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _command(arguments: list[str]) -> None:
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    assert code in (0, 1, 2), code


@surface
def command_lines(inputs: Inputs, folder: Path) -> str:
    command = inputs.random.choice(list(COMMANDS))
    arguments = [command, *(inputs.word() for _ in range(inputs.random.choice([0, 1, 1, 2])))]
    option = inputs.random.choice(
        ["--to", "--vendor", "--hw", "--nodes", "--tool", "--device", "--shapes", "--case", "--root"]
    )
    with _in(folder):
        _command([*arguments, f"{option}={inputs.word()}"] if inputs.random.random() < 0.5 else arguments)
    return repr(arguments)[:400]


@dataclass
class Stored:
    """A good run directory, which is made once."""

    folder: Path | None = None

    def copy(self, beside: Path, to: Path) -> Path:
        if self.folder is None or not self.folder.is_dir():
            self.folder = beside / "good-run"
            add_case(self.folder, "converged_1x1")
            finish(self.folder)
        shutil.copytree(self.folder, to)
        return to


_STORED = Stored()
READERS = [
    "show",
    "report",
    "compare",
    "accept",
    "table",
    "export",
    "mllog",
    "calibrate",
    "bundle",
]


@surface
def run_directories(inputs: Inputs, folder: Path) -> str:
    run = _STORED.copy(folder.parent, folder / "run1")
    file = inputs.random.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    if file.suffix == ".json" and inputs.random.random() < 0.8:
        document = inputs.changed_json(json.loads(file.read_text()))
        file.write_text(json.dumps(document))
    else:
        inputs.written(file, file.read_text(errors="replace"))
    command = inputs.random.choice(READERS)
    arguments = [command, str(run), *([str(folder / "other")] if command == "compare" else [])]
    if command == "compare":
        _STORED.copy(folder.parent, folder / "other")
    arguments += ["--to", str(folder / "made")] if command in ("export", "mllog", "bundle") else []
    if command == "calibrate":
        trees.write_suite(folder)
        arguments.append("--dry-run")
    with _in(folder):
        _command(arguments)
    return f"{file.relative_to(run)} {arguments}"


@surface
def published_results(inputs: Inputs, folder: Path) -> str:
    """A results.json or a README of a tree whose README sections are written."""
    trees.tree(folder)
    _STORED.copy(folder.parent, folder / "run1")
    results = folder / "reports" / "published" / "one" / "results.json"
    results.parent.mkdir(parents=True)
    body = json.loads((folder / "run1" / "results.json").read_text())
    for outcome in (outcome for case in body["cases"] for outcome in case["outcomes"]):
        outcome |= {"vendor": "acme", "hardware": "X9", "nproc": 8, "scale": "reference"}
    results.write_text(json.dumps(body))
    _command(["readme", str(folder)])
    if inputs.random.random() < 0.7:
        results.write_text(json.dumps(inputs.changed_json(body)))
        described = "results.json"
    else:
        file = inputs.random.choice(sorted(folder.rglob("*.md")))
        described = inputs.written(file, file.read_text())
    _command(["readme", str(folder), *inputs.random.choice([[], ["--check"]])])
    return described


# -- trying ---------------------------------------------------------------------------------------------------------


class HangError(Exception):
    """An input took too long."""


@dataclass
class Watch:
    """Records every program that is started while an input is tried."""

    shells: list[str] | None = None

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.shells is None:
            return
        if event == "os.system":
            self.shells.append(str(arguments))
        elif event == "subprocess.Popen" and Path(str(arguments[0])).name in SHELLS:
            self.shells.append(str(arguments[1])[:400])


_WATCH = Watch()


def watch_for_shells() -> None:
    """Record every program that is started from now on; Python cannot remove such a hook."""
    if _WATCH.shells is None:
        sys.addaudithook(_WATCH.hear)
        _WATCH.shells = []


@contextmanager
def _in_time() -> Iterator[None]:
    def too_long(number: int, frame: FrameType | None) -> None:
        raise HangError(f"it did not end within {LONGEST_S} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def finding(name: str, number: int, scratch: Path) -> str | None:
    """Try one input; return the problem, or None."""
    watch_for_shells()
    assert _WATCH.shells is not None
    _WATCH.shells.clear()
    folder = scratch / f"{name}-{number}"
    canary = scratch / CANARY
    make_tree(folder)
    state = f"{name} {number}: "
    try:
        with _in_time():
            SURFACES[name](Inputs(name, number, canary), folder)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        place = [
            frame for frame in frames if "pytest_flagperf" in frame.filename or "flagperf_driver" in frame.filename
        ]
        where = f"{place[-1].filename}:{place[-1].lineno}" if place else str(frames[-1])
        return f"{state}{type(error).__name__}: {str(error)[:300]} at {where}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if canary.exists():
        canary.unlink()
        return f"{state}a shell ran a part of it"
    return f"{state}a shell was started: {_WATCH.shells}" if _WATCH.shells else None
