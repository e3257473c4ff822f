"""Read FlagPerf's ``test_conf.py`` and ``cluster_conf.py``, and ``host.yaml``, which is both for its ``base/``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from . import host_yaml
from .case import Case, CaseError
from .config import Value, load
from .hosts.cluster import ClusterConfig, ClusterError, read_cluster
from .problems import Problems, kind, near, shown, unusable_path
from .settings import located

# The type of each name. Names may be missing, and all except dicts may be None.
_TYPES: Mapping[str, type] = {
    "VENDOR": str,
    "CASES": dict,
    "ACCE_CONTAINER_OPT": str,
    "ACCE_VISIBLE_DEVICE_ENV_NAME": str,
    "PIP_SOURCE": str,
    "SHM_SIZE": str,
    "CLEAR_CACHES": bool,
    "FLAGPERF_PATH": str,
    "FLAGPERF_LOG_PATH": str,
    "FLAGPERF_LOG_LEVEL": str,
}
_HOST_YAML_TYPES: Mapping[str, type] = {"NPROC_PER_NODE": int, "BENCHMARKS_OR_TOOLKITS": str}
_OURS = {
    "VENDOR": "vendor",
    "FLAGPERF_LOG_PATH": "reports",
    "PIP_SOURCE": "pip_source",
    "ACCE_CONTAINER_OPT": "container_opt",
    "SHM_SIZE": "shm_size",
    "CLEAR_CACHES": "clear_caches",
}
_MODES = ("BENCHMARK", host_yaml.TOOLKIT)
_MAY_BE_SECRET = ("ACCE_CONTAINER_OPT", "PIP_SOURCE", "HOSTS")
_WITHOUT_EFFECT = {
    "FLAGPERF_PATH": "the code is copied to every host before a round",
}
LOG_LEVELS = ("debug", "info", "warning", "error")


# The same for cluster_conf.py.
_CLUSTER_TYPES: Mapping[str, type] = {"HOSTS": list, "SSH_PORT": str, "MASTER_PORT": str, "HOSTS_PORTS": list}
_CLUSTER_WITHOUT_EFFECT = {
    "MASTER_PORT": "each round uses a free port",
    "HOSTS_PORTS": "each round uses free ports",
}


class OriginalError(Problems):
    """An invalid file of FlagPerf."""


@dataclass(frozen=True)
class NamedCase:
    """One entry of CASES, with the absolute path of its data directory; ``unsupported`` is why it cannot run here."""

    case: Case
    data_dir: str | None
    where: str
    unsupported: str | None = None


@dataclass(frozen=True)
class TestConf:
    """The contents of a test_conf.py or host.yaml; ``given`` has each known name with its value, file and line."""

    __test__: ClassVar[bool] = False  # pytest takes a class of this name for tests

    file: Path
    cases: tuple[NamedCase, ...]
    given: Mapping[str, Value]
    unknown: tuple[str, ...]

    @property
    def settings(self) -> dict[str, object]:
        """The values of our options, by their keys; paths are relative to the file's folder."""
        values = {ours: self.value(theirs) for theirs, ours in _OURS.items()}
        if values["reports"]:
            values["reports"] = located(str(values["reports"]), self.file.absolute().parent)
        if values["container_opt"]:
            values["container_opt"] = (str(values["container_opt"]).strip(),)
        if self.value("HOSTS"):
            values["cluster_conf"] = str(self.file.absolute())
        return {key: value for key, value in values.items() if value}

    @property
    def without_effect(self) -> list[str]:
        """A note on each name without effect."""
        notes = [
            f"{self.where(name)}: {name} has no effect: {reason}"
            for name, reason in _WITHOUT_EFFECT.items()
            if self.value(name)
        ]
        return [*notes, *self.unknown]

    def value(self, name: str) -> object:
        return self.given[name].value if name in self.given else None

    def where(self, name: str) -> str:
        return self.given[name].where


def read_test_conf(file: Path) -> TestConf:
    """Read and check the file, also a host.yaml; raise one error with all problems."""
    yaml = host_yaml.load(file) if host_yaml.is_yaml(file) else None
    names = yaml.names if yaml else load(file).names
    types = {**_TYPES, **_CLUSTER_TYPES, **_HOST_YAML_TYPES} if yaml else _TYPES
    given = {name: names[name] for name in types if name in names}
    problems = [problem for name, value in given.items() for problem in _wrong_type(name, value)]
    problems += _wrong_word(given.get("FLAGPERF_LOG_LEVEL"), "FLAGPERF_LOG_LEVEL", LOG_LEVELS)
    problems += _wrong_word(given.get("BENCHMARKS_OR_TOOLKITS"), "BENCHMARKS_OR_TOOLKITS", _MODES)
    problems += _unusable_folder(given.get("FLAGPERF_LOG_PATH"))
    cases = given.get("CASES")
    if yaml:
        problems += [f"{file}: {name} is missing" for name in ("CASES", "HOSTS", "NPROC_PER_NODE") if name not in given]
    elif cases is None:
        problems.append(f'{file}: CASES is missing; write CASES = {{"model:framework:...": "data directory"}}')
    named: list[NamedCase] = []
    if cases and isinstance(cases.value, dict) and not (yaml and problems):
        named = list(_base_cases(yaml, problems) if yaml else _cases(cases, cases.value, problems))
        if not cases.value:
            problems.append(f"{cases.where}: CASES contains no case")
    if problems:
        raise OriginalError(problems)
    unknown = [_unknown(name, names[name], list(types)) for name in names if name not in types]
    return TestConf(file, tuple(named), given, tuple(unknown))


def _base_cases(yaml: host_yaml.HostYaml, problems: list[str]) -> Iterator[NamedCase]:
    values: dict[str, Any] = {name: given.value for name, given in yaml.names.items()}
    is_toolkit = str(values.get("BENCHMARKS_OR_TOOLKITS", "")).upper() == host_yaml.TOOLKIT
    reason = f"BENCHMARKS_OR_TOOLKITS is {host_yaml.TOOLKIT}: a program of the vendor's, which does not run here"
    for entry, case in host_yaml.base_cases(values["CASES"], len(values["HOSTS"]), values["NPROC_PER_NODE"]):
        where = f"{yaml.names['CASES'].file}:{yaml.lines[entry]}"
        if isinstance(case, CaseError):
            problems += [f"{where}: {problem}" for problem in case.problems]
        else:
            yield NamedCase(case, None, where, f"{reason}; set BENCHMARK" if is_toolkit else None)


def read_cluster_conf(file: Path) -> ClusterConfig:
    """Read and check the file; raise one error with all problems."""
    yaml = host_yaml.load(file) if host_yaml.is_yaml(file) else None
    names = yaml.names if yaml else load(file).names
    given = {name: names[name] for name in _CLUSTER_TYPES if name in names}
    problems = [problem for name, value in given.items() for problem in _wrong_type(name, value)]
    if "HOSTS" not in given:
        problems.append(f'{file}: HOSTS is missing; write HOSTS = ["10.0.0.2", "10.0.0.3"]')
    if problems:
        raise OriginalError(problems)
    # Use the checks of [cluster] in flagperf.toml, and replace its key names in messages by FlagPerf's names.
    table: dict[str, object] = {"hosts": given["HOSTS"].value}
    port = given["SSH_PORT"].value if "SSH_PORT" in given else None
    if port is not None:
        table["port"] = int(str(port)) if re.fullmatch("[0-9]{1,9}", str(port)) else port
    try:
        conf = read_cluster(table, file)
    except ClusterError as error:
        ours = {"cluster.hosts": "HOSTS", "cluster.port": "SSH_PORT"}
        raise OriginalError(_renamed(problem, ours) for problem in error.problems) from error
    notes = [
        f"{value.where}: {name} has no effect: {_CLUSTER_WITHOUT_EFFECT[name]}"
        for name, value in given.items()
        if name in _CLUSTER_WITHOUT_EFFECT
    ]
    unknown = [
        f"{value.where}: {name} is not a setting of cluster_conf.py and has no effect{near(name, list(_CLUSTER_TYPES))}"
        for name, value in names.items()
        if not yaml and name not in _CLUSTER_TYPES
    ]
    return replace(conf, without_effect=(*notes, *unknown))


def _renamed(problem: str, names: Mapping[str, str]) -> str:
    for ours, theirs in names.items():
        problem = problem.replace(ours, theirs, 1)
    return problem


def _wrong_type(name: str, given: Value) -> Iterator[str]:
    expected = {**_TYPES, **_CLUSTER_TYPES, **_HOST_YAML_TYPES}[name]
    if not isinstance(given.value, expected) and (given.value is not None or expected in (dict, int, list)):
        words = {
            str: "a string",
            bool: "True or False",
            int: "a whole number",
            dict: 'entries such as "computation-BF16:A100": "pytorch_2.3"'
            if host_yaml.is_yaml(Path(given.file))
            else "a dict of case strings to data directories",
            list: "a list of strings",
        }
        got = kind(given.value) if name in _MAY_BE_SECRET else shown(given.value)
        yield f"{given.where}: {name}: expected {words[expected]}; got {got}"


def _wrong_word(given: Value | None, name: str, words: Sequence[str]) -> list[str]:
    if given is None or not isinstance(given.value, str) or given.value.lower() in map(str.lower, words):
        return []
    expected = f"expected {', '.join(words)}{near(given.value, words)}"
    return [f"{given.where}: {name} is {shown(given.value)}; {expected}"]


def _unusable_folder(given: Value | None) -> list[str]:
    if given is None or not isinstance(given.value, str) or not given.value:
        return []
    problem = unusable_path(located(given.value, Path(given.file).absolute().parent))
    return [f"{given.where}: FLAGPERF_LOG_PATH is {shown(given.value)}; {problem}"] if problem else []


def _cases(cases: Value, entries: Mapping[object, object], problems: list[str]) -> Iterator[NamedCase]:
    lines = _lines(Path(cases.file))
    for key, numbers in lines.items():
        if len(numbers) > 1 and key in entries:
            places = " and ".join(map(str, numbers))
            problems.append(f"{cases.file}:{numbers[-1]}: case {shown(key)} is listed in lines {places}; keep one")
    for key, folder in entries.items():
        where = f"{cases.file}:{lines.get(key, [cases.line])[0]}"
        if folder is not None and not isinstance(folder, str):
            problems.append(f"{where}: the data directory of case {shown(key)} is {shown(folder)}; expected a string")
            continue
        try:
            data_dir = located(folder, Path(cases.file).absolute().parent) if folder else None
            yield NamedCase(Case.parse(str(key)), data_dir, where)
        except CaseError as error:
            problems += [f"{where}: {problem}" for problem in error.problems]


def _lines(file: Path) -> dict[object, list[int]]:
    """Return the lines of each key of CASES: a dict itself keeps only the last of equal keys."""
    lines: dict[object, list[int]] = {}
    for node in _assigned(ast.parse(file.read_bytes()), "CASES"):
        for key in node.keys if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant):
                lines.setdefault(key.value, []).append(key.lineno)
    return lines


def _assigned(tree: ast.Module, name: str) -> list[ast.expr]:
    """Return the value of the last plain assignment to a name, if any."""
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)
    ]
    return values[-1:]


def _unknown(name: str, given: Value, known: Sequence[str]) -> str:
    file = Path(given.file).name
    return f"{given.where}: {name} is not a setting of {file} and has no effect{near(name, known)}"
