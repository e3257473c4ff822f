"""Any text in options, files and commands: no traceback, no hang, no shell.

Hypothesis changes good inputs and makes a fault as small as it can; ``--hostile-inputs=10000`` tries that many.
"""

import copy
import faulthandler
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_flagperf.commands import all_commands, main
from pytest_flagperf.settings import COMMAND_LINE_OPTIONS
from tests.helpers import trees

from .small_tree import CASE, FILES, make_tree, start_run

pytestmark = pytest.mark.integration

LONGEST_S = 60
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
REFERENCE = {"scale": "reference", "nodes": "1x1", "synthetic": True}
# Words that are wrong in most places, or that a shell would run.
WORDS = [
    "", " ", "-", "=", ",", ":", "@", "/", "\\", "'", '"', "%s%n", "{}", "{device}", "{0.__class__}", "$(touch x)",
    "`touch x`", "; touch x;", "\ntouch x\n", "x" * 256, "x" * 5000, "/".join(["x" * 200] * 30), "../" * 20 + "etc",
    "~nobody/x", "/dev/zero", "/etc", "a\0b", "\ud800", "\udcff", "\ufeff", "汉字", "\t", "\r\n", "-1", "1e999", "nan",
    "9" * 400, "9" * 5000, "0x" + "f" * 5000, "1.5", "True", "None", "null", "[]", "[" * 3000, "(" * 300, "-" * 3000,
    "a." * 3000, "0x0", "1x", "999999999x999999999", ":" * 5, "u:p@h", "https://u:p@h/x", "http://[", "-oProxy=x",
    "*" * 500, "**/*", "#",
]  # fmt: skip
VALUES = [
    None, True, 0, -1, 2**63, 10**400, -0.5, 1e308, float("nan"), float("inf"), "", "x" * 5000, "\ud800", "\0", [],
    [None], {}, {"": {}}, [1, "a"], ["x"] * 1000, "../..", json.loads("[" * 300 + "]" * 300),
]  # fmt: skip
word = st.sampled_from(WORDS) | st.text(max_size=8) | st.builds("{}={}".format, *[st.sampled_from(WORDS)] * 2)


@st.composite
def changed(draw: st.DrawFn, good: str) -> str:
    """Return a good text of which one to three parts are replaced; often the value after an equals sign."""
    for _ in range(draw(st.integers(1, 3))):
        values = [at + 1 for at, char in enumerate(good) if char == "="]
        if draw(st.booleans()) and values:
            start = draw(st.sampled_from(values))
            end = next((at for at in range(start, len(good)) if good[at] == "\n"), len(good))
            new = draw(word | word.map(json.dumps) | st.sampled_from(VALUES).map(repr))
        else:
            start = draw(st.integers(0, len(good)))
            end, new = start + draw(st.sampled_from([0, 1, 3, 20, len(good)])), draw(word)
        good = good[:start] + new + good[end:]
    return good


@st.composite
def changed_json(draw: st.DrawFn, good: object) -> str:
    """Return a JSON text of which one value is changed or removed, or which is changed as any text."""
    if draw(st.integers(0, 3)) == 0:
        return draw(changed(json.dumps(good)))
    document: Any = copy.deepcopy(good)
    *parents, last = draw(st.sampled_from(list(_places(document))))
    place = document
    for name in parents:
        place = place[name]
    if draw(st.booleans()):
        place[last] = draw(st.sampled_from(VALUES))
    else:
        del place[last]
    return json.dumps(document)


def _places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield (*above, name)
        yield from _places(item, (*above, name))


SETTINGS = """\
vendor = "cpu"
nodes = "1x1"
repeat = 2
set = ["max_steps=5"]
roots = ["."]
sample = 0.5
synthetic = true
container-opt = ["--memory 1g"]
[cluster]
hosts = ["h1", "u@h2:22"]
port = 22
key = "id"
gateway = "g"
[[expected]]
case = "alpha:*"
verdict = "converged"
reason = "known"
"""
TEST_CONF = f"""\
VENDOR = "cpu"
CASES = {{
    "{CASE}": "data",
    "alpha:plain:CPU:1:2:1": "",
}}
PIP_SOURCE = "https://h/simple"
ACCE_CONTAINER_OPT = "--gpus all -e A=1"
SHM_SIZE = "32g"
CLEAR_CACHES = True
"""
CONTAINER_OPTIONS = "-e A=1 --memory 64g -v /a:/b:ro --mount type=bind,source=/a,target=/b --ulimit memlock=-1"
REQUIREMENTS = (
    "torch==2.10\n-r more.txt\n--extra-index-url https://h/simple\npkg @ https://h/p.whl\na[b]>=1; os_name>'a'\n"
)
BASELINE = {
    "schema": 1,
    "case": CASE,
    "fingerprint": {"key": "a", "machine": {}},
    "accepted": {"run": "run1", "by": "me"},
    "metrics": {"p_core": {"value": 100.0, "unit": "samples/s", "direction": "higher", "lower": 0.9, "upper": None}},
}
STORED_OPTIONS = {"vendor": "cpu", "set": ["max_steps=5"], "roots": ["."], "case": [CASE]}


@dataclass(frozen=True)
class Input:
    """A file of a tree whose text is changed, and the options of the run that reads it."""

    file: str
    text: st.SearchStrategy[str]
    options: dict[str, Any]


def of_tree(file: str, **options: Any) -> Input:
    return Input(file, changed(FILES[file]), options)


_CASE_CONFIG = "vendors/cpu/alpha-plain/config"
INPUTS = {
    "settings": Input("flagperf.toml", changed(SETTINGS), {}),
    "pyproject": Input("pyproject.toml", changed(f"[tool.flagperf]\n{SETTINGS.partition('[cluster]')[0]}"), {}),
    "vendor": of_tree("vendors/cpu/vendor.toml", runtime="docker"),
    "suite": of_tree("suites/alpha/plain/suite.toml"),
    "base config": of_tree("suites/alpha/plain/config/_base.py", **REFERENCE),
    "mutable parameters": of_tree("suites/alpha/plain/config/mutable_params.py", **REFERENCE),
    "vendor's config": of_tree(f"{_CASE_CONFIG}/config_CPUx1x1.py", **REFERENCE),
    "test_conf.py": Input("test_conf.py", changed(TEST_CONF), {"test_conf": "test_conf.py", "runtime": "docker"}),
    "cluster_conf.py": Input(
        "cluster_conf.py", changed('HOSTS = ["10.0.0.2", "h3"]\nSSH_PORT = "22"\n'), {"cluster_conf": "cluster_conf.py"}
    ),
    "host.yaml": Input(
        "host.yaml",
        changed('HOSTS: ["10.0.0.2"]\nNPROC_PER_NODE: 8\nCASES:\n  "computation-BF16:A100": "pytorch_2.3"\n'),
        {"test_conf": "host.yaml"},
    ),
    "requirements": Input(f"{_CASE_CONFIG}/requirements.txt", changed(REQUIREMENTS), {"runtime": "docker"}),
    "environment": Input(f"{_CASE_CONFIG}/environment_variables.sh", changed("export A=1\ndeclare -x B=2\nC=3\n"), {}),
    "adapter": Input(
        "vendors/cpu/alpha-plain/extern/trainer_adapter.py",
        changed("def create_optimizer(config, model):\n    return None\n"),
        {},
    ),
    "baseline": Input(f"reports/baselines/{CASE.replace(':', '_')}.json", changed_json(BASELINE), {}),
    "stored options": Input("reports/run1/options.json", changed_json(STORED_OPTIONS), {"resume": "reports/run1"}),
}


def _option() -> st.SearchStrategy[dict[str, Any]]:
    def value(option: Any) -> st.SearchStrategy[Any]:
        if option.flag:
            return st.booleans()
        if option.choices:
            return st.sampled_from(option.choices)
        if isinstance(option.default, int):
            return st.sampled_from([0, -1, 1, 3, 10**6])
        if isinstance(option.default, float):
            return st.floats()
        text = changed(CASE) | word if option.key == "case" else word
        return st.lists(text, min_size=1, max_size=2) if option.many else text

    return st.fixed_dictionaries({}, optional={option.key: value(option) for option in COMMAND_LINE_OPTIONS})


class Shells:
    """The shells that this process has started; Python cannot remove such a hook."""

    def __init__(self) -> None:
        self.started: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.system" or (event == "subprocess.Popen" and Path(str(arguments[0])).name in SHELLS):
            self.started.append(str(arguments)[:400])


Try = Callable[[st.SearchStrategy[Any], Callable[[Path, Any], object]], None]


@pytest.fixture(scope="module")
def shells() -> Shells:
    return Shells()


@pytest.fixture
def each(
    shells: Shells, tmp_path: Path, pytestconfig: pytest.Config, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Try:  # fmt: skip
    """Try many inputs, each in a tree of its own that is the current folder."""
    numbers = itertools.count()
    count = max(1, int(pytestconfig.getoption("hostile_inputs")) // (len(INPUTS) + 3))

    def try_each(inputs: st.SearchStrategy[Any], use: Callable[[Path, Any], object]) -> None:
        @settings(
            max_examples=count, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        @given(inputs)
        def one(made: Any) -> None:
            folder = make_tree(tmp_path / str(next(numbers)))
            monkeypatch.chdir(folder)
            shells.started.clear()
            faulthandler.dump_traceback_later(LONGEST_S, exit=True)
            try:
                use(folder, made)
            finally:
                faulthandler.cancel_dump_traceback_later()
                capfd.readouterr()
            assert shells.started == []

        one()

    return try_each


def _start(folder: Path, options: dict[str, Any]) -> str:
    paths = ("test_conf", "cluster_conf", "resume")
    return start_run(
        folder, {key: str(folder / value) if key in paths else value for key, value in options.items()}, begin=True
    )


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INPUTS)
def test_any_text_of_a_file_is_read_or_refused(name: str, each: Try) -> None:
    made = INPUTS[name]

    def use(folder: Path, text: str) -> None:
        _write(folder, f"{_CASE_CONFIG}/more.txt", "-r requirements.txt\n")
        _write(folder, made.file, text)
        _start(folder, made.options)

    each(made.text, use)


def test_any_option_is_used_or_refused_also_those_of_containers(each: Try) -> None:
    each(_option(), lambda folder, options: start_run(folder, options, begin=True))

    def use(folder: Path, text: str) -> None:
        trees.set_options(folder, container_opt=[text])
        start_run(folder, {"runtime": "docker"}, begin=True)

    each(changed(CONTAINER_OPTIONS), use)


def test_any_words_of_a_command_have_an_exit_code(each: Try) -> None:
    options = ["--to", "--vendor", "--hw", "--nodes", "--tool", "--device", "--shapes", "--case", "--root"]
    arguments = st.lists(word | st.builds("{}={}".format, st.sampled_from(options), word), max_size=3)

    def use(folder: Path, words: list[str]) -> None:
        with suppress(SystemExit):
            assert main(words) in (0, 1, 2)

    each(st.builds(lambda name, words: [name, *words], st.sampled_from(sorted(all_commands())), arguments), use)


CONFIGS = [
    *(f"{text}0x{'f' * 5000}" for text in ("note = ", "max_steps += ", "max_steps: ")),
    "from config_CPUx1x1 import *", "raise SystemExit(0)", "max_steps = 1 << 100000", "x = []\nx.append(x)\nnote = x",
    "class A(str): pass\nnote = A('x')", "note = {1: 2, None: 3}", "note = b'x'", "note = '\\ud800'", "note = '\\0'",
    "max_steps: 'int | None' = 3", "max_steps: (lambda: 1)() = 3", "width: List[", "max_steps = 3\nmax_steps: str",
    "exec('max_steps = 3')", "(max_steps) = 3", "max_steps = note = 3", "max_steps = -True", "note = 'a' % 5",
    "note = -'a'", "vendor = None", "data_dir = 5", "seed = -1", "throughput_only = 1 > 0",
    "import os; os.system('touch ran')", "max_steps = open('ran', 'w').close()", f"max_steps = {'-' * 500_000}1",
    "from os import system\nsystem('touch ran')",
]  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    *({name: "x" * 300} for name in ("vendor", "hw", "cluster", "image", "reports", "resume")),
    *({name: "x/" * 3000} for name in ("data_dir", "test_conf", "cluster_conf", "resume")),
    {"roots": ["x/" * 3000]}, {"cluster": ","}, {"cluster": ""}, {"set": ["max_steps=" + "9" * 5000]},
    {"nodes": "9" * 5000 + "x1"}, {"vendor": "$(touch ran)"}, {"cluster": "h;touch${IFS}ran"},
]  # fmt: skip
SETTINGS_FILES = [
    'roots = ["\\u0000"]', f'[cluster]\nhosts = ["h"]\nkey = "{"x" * 300}"', f'data-dir = "{"x" * 300}"',
    'cluster = ","', f'python = "{"x/" * 3000}"', 'container-opt = ["`touch ran`"]\nruntime = "docker"\nimage = "i"',
    'vendor = "\udcff"',
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_what_has_caught_a_fault_is_used_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[tuple[str, str, dict[str, Any]]] = [
        *((f"{_CASE_CONFIG}/config_CPUx1x1.py", f"{text}\n", REFERENCE) for text in CONFIGS),
        *(("flagperf.toml", text, {}) for text in SETTINGS_FILES),
        *(("flagperf.toml", "", options) for options in OPTIONS),
    ]
    for number, (file, text, options) in enumerate(tries):
        folder = make_tree(tmp_path / str(number))
        monkeypatch.chdir(folder)
        (folder / file).write_bytes(text.encode("utf-8", "surrogateescape"))
        start_run(folder, options, begin=True)
        assert not (folder / "ran").exists(), text


@pytest.mark.parametrize("wrong", ["", '{"vendor": "cp', "\0" * 50, "[]", '{"case": 5}', '{"set": 5}', '{"vendor": 5}'])
def test_damaged_stored_options_are_refused(wrong: str, tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    start_run(root, {"vendor": "cpu"}, begin=True)
    (options,) = root.glob("reports/*/options.json")
    options.write_text(wrong)
    assert f"cannot resume: {options}: " in start_run(root, {"resume": str(options.parent)})
    options.write_text('{"vendor": "cpu"}')
    assert "continuing" in start_run(root, {"resume": str(options.parent)})  # the control
    nowhere = start_run(root, {"resume": str(root / "nowhere")})
    assert "cannot resume: " in nowhere
    assert "no such directory; expected a run directory" in nowhere


def test_a_shell_is_seen(each: Try) -> None:
    """The control of all tests above: they see a shell, and an error."""
    with pytest.raises(AssertionError, match="/bin/sh"):
        each(st.just(0), lambda *_: subprocess.run(["/bin/sh", "-c", "exit"], check=True))
    with pytest.raises(ZeroDivisionError):
        each(st.just(0), lambda *_: 1 / 0)
