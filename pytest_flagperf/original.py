"""Read FlagPerf's ``test_conf.py`` and ``cluster_conf.py``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from .case import Case, CaseError
from .config.module import Assigned, load
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
_OURS = {
    "VENDOR": "vendor",
    "FLAGPERF_LOG_PATH": "reports",
    "PIP_SOURCE": "pip_source",
    "ACCE_CONTAINER_OPT": "container_opt",
    "SHM_SIZE": "shm_size",
    "CLEAR_CACHES": "clear_caches",
}
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
    """One entry of CASES, with the absolute path of its data directory."""

    case: Case
    data_dir: str | None
    where: str


@dataclass(frozen=True)
class TestConf:
    """The contents of a test_conf.py; ``given`` has each known name with its value, file and line."""

    __test__: ClassVar[bool] = False  # pytest takes a class of this name for tests

    file: Path
    cases: tuple[NamedCase, ...]
    given: Mapping[str, Assigned]
    unknown: tuple[str, ...]

    @property
    def settings(self) -> dict[str, object]:
        """The values of our options, by their keys; paths are relative to the file's folder."""
        values = {ours: self.value(theirs) for theirs, ours in _OURS.items()}
        if values["reports"]:
            values["reports"] = located(str(values["reports"]), self.file.absolute().parent)
        if values["container_opt"]:
            values["container_opt"] = (str(values["container_opt"]).strip(),)
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
        return f"{self.given[name].file}:{self.given[name].line}"


def read_test_conf(file: Path) -> TestConf:
    """Read and check the file; raise one error with all problems."""
    names = load(file).names
    given = {name: names[name] for name in _TYPES if name in names}
    problems = [problem for name, value in given.items() for problem in _wrong_type(name, value)]
    problems += _wrong_level(given.get("FLAGPERF_LOG_LEVEL"))
    problems += _unusable_folder(given.get("FLAGPERF_LOG_PATH"))
    cases = given.get("CASES")
    if cases is None:
        problems.append(f'{file}: CASES is missing; write CASES = {{"model:framework:...": "data directory"}}')
    named: list[NamedCase] = []
    if cases and isinstance(cases.value, dict):
        named = list(_cases(cases, cases.value, problems))
        if not cases.value:
            problems.append(f"{cases.file}:{cases.line}: CASES contains no case")
    if problems:
        raise OriginalError(problems)
    unknown = [name for name in names if name not in _TYPES]
    return TestConf(file, tuple(named), given, tuple(_unknown(name, names[name]) for name in unknown))


def read_cluster_conf(file: Path) -> ClusterConfig:
    """Read and check the file; raise one error with all problems."""
    names = load(file).names
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
        f"{value.file}:{value.line}: {name} has no effect: {_CLUSTER_WITHOUT_EFFECT[name]}"
        for name, value in given.items()
        if name in _CLUSTER_WITHOUT_EFFECT
    ]
    unknown = [
        f"{value.file}:{value.line}: {name} is not a setting of cluster_conf.py and has no effect"
        f"{near(name, list(_CLUSTER_TYPES))}"
        for name, value in names.items()
        if name not in _CLUSTER_TYPES
    ]
    return replace(conf, without_effect=(*notes, *unknown))


def _renamed(problem: str, names: Mapping[str, str]) -> str:
    for ours, theirs in names.items():
        problem = problem.replace(ours, theirs, 1)
    return problem


def _wrong_type(name: str, given: Assigned) -> Iterator[str]:
    expected = {**_TYPES, **_CLUSTER_TYPES}[name]
    if not isinstance(given.value, expected) and (given.value is not None or expected in (dict, list)):
        words = {
            str: "a string",
            bool: "True or False",
            dict: "a dict of case strings to data directories",
            list: "a list of strings",
        }
        got = kind(given.value) if name in _MAY_BE_SECRET else shown(given.value)
        yield f"{given.file}:{given.line}: {name}: expected {words[expected]}; got {got}"


def _wrong_level(given: Assigned | None) -> list[str]:
    if given is None or not isinstance(given.value, str) or given.value.lower() in LOG_LEVELS:
        return []
    expected = f"expected {', '.join(LOG_LEVELS)}{near(given.value, LOG_LEVELS)}"
    return [f"{given.file}:{given.line}: FLAGPERF_LOG_LEVEL is {shown(given.value)}; {expected}"]


def _unusable_folder(given: Assigned | None) -> list[str]:
    if given is None or not isinstance(given.value, str) or not given.value:
        return []
    problem = unusable_path(located(given.value, given.file.absolute().parent))
    return [f"{given.file}:{given.line}: FLAGPERF_LOG_PATH is {shown(given.value)}; {problem}"] if problem else []


def _cases(cases: Assigned, entries: Mapping[object, object], problems: list[str]) -> Iterator[NamedCase]:
    lines = _lines(cases.file)
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
            data_dir = located(folder, cases.file.absolute().parent) if folder else None
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


def _unknown(name: str, given: Assigned) -> str:
    place = f"{given.file}:{given.line}"
    return f"{place}: {name} is not a setting of test_conf.py and has no effect{near(name, list(_TYPES))}"
