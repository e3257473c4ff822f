"""Read ais-bench's modelarts_config.py, config.sh and config.json by their literals; nothing in them is executed."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_flagperf.problems import Problems

CONFIG, SHELL, TESTER = "modelarts_config.py", "config.sh", "config.json"
_TABLES = ("access_config", "session_config", "session_config_v2")
_EXPORT = re.compile(r"\s*export\s+([A-Za-z_]\w*)=(.*)")
_SESSION = {
    "inputs": "data",
    "code_dir": "code",
    "out_base_url": "output",
    "job_name": "job_name",
    "framework_type": "framework",
    "framework_version": "framework_version",
    "pool_id": "pool",
    "train_instance_type": "flavor",
    "train_instance_count": "instances",
    "job_description_prefix": "description",
}
_ACCESS = {
    "server": "obs_endpoint",
    "region_name": "region",
    "project_id": "project",
    "iam_endpoint": "iam_endpoint",
    "obs_endpoint": "obs_endpoint",
    "modelarts_endpoint": "modelarts_endpoint",
}
_ENDPOINTS = ("iam_endpoint", "obs_endpoint", "modelarts_endpoint")
_WITHOUT_EFFECT = {
    "boot_file": "the boot file is part of the uploaded code",
    "hyperparameters": "the suite's config has the hyper-parameters; --set changes them",
    "parameters": "the suite's config has the hyper-parameters; --set changes them",
    "nas_type": "the data are read from OBS",
    "nas_share_addr": "the data are read from OBS",
    "nas_mount_path": "the data are read from OBS",
}


@dataclass(frozen=True)
class OriginalFiles:
    """The settings in ais-bench's files, as keys of [engines.modelarts], and the keys of the account."""

    table: Mapping[str, Any] = field(default_factory=dict)
    access: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    without_effect: tuple[str, ...] = ()
    """A sentence for each setting without effect."""


def read_original(folder: Path) -> OriginalFiles:
    """Read the files of ais-bench's folder code/config, and code/config.json; Problems with all their problems."""
    problems: list[str] = []
    variables = exports(folder / SHELL, problems) if (folder / SHELL).is_file() else {}
    tables = _tables(folder / CONFIG, problems)
    tester = next((file for file in (folder / TESTER, folder.parent / TESTER) if file.is_file()), None)
    notes = _tester_notes(tester, problems) if tester else []
    version = variables.get("MODELARTS_VERSION", "V1").lower()
    if version not in ("v1", "v2"):
        problems.append(f"{folder / SHELL}: MODELARTS_VERSION={version}: expected V1 or V2")
    session = "session_config_v2" if version == "v2" else "session_config"
    for name in ("access_config", session):
        if name not in tables and not problems:
            problems.append(f"{folder / CONFIG}: {name} not found")
    if problems:
        raise Problems(problems)
    access = tables["access_config"]
    table, more = _translated(access, tables[session], session)
    table["version"] = version
    if "SINGLESERVER_MODE" in variables:
        table["single_server"] = variables["SINGLESERVER_MODE"].lower() == "true"
    if "PYTHON_COMMAND" in variables:
        more.append(f"PYTHON_COMMAND={variables['PYTHON_COMMAND']}: pytest runs with the Python that started it")
    where = folder / CONFIG
    return OriginalFiles(
        table,
        str(access.get("access_key") or ""),
        str(access.get("secret_access_key") or ""),
        tuple([f"{where}: {sentence}" for sentence in more] + notes),
    )


def _translated(access: Mapping[str, Any], session: Mapping[str, Any], name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the two tables as keys of [engines.modelarts], and sentences on settings without effect."""
    table: dict[str, Any] = {}
    notes = []
    private = all(access.get(endpoint) for endpoint in _ENDPOINTS)
    for key, value in access.items():
        if key in _ENDPOINTS and not private:
            if value:
                notes.append(f"access_config.{key}: has an effect only if all of {', '.join(_ENDPOINTS)} are set")
        elif key in _ACCESS and value and (key != "server" or not private):
            table[_ACCESS[key]] = value
    for key, value in session.items():
        if key in _SESSION and value not in (None, ""):
            table[_SESSION[key]] = value
        elif key in _WITHOUT_EFFECT and value:
            notes.append(f"{name}.{key} has no effect: {_WITHOUT_EFFECT[key]}")
    return table, notes


def _tables(path: Path, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Return the tables of modelarts_config.py: assignments of a dict literal, alone or in ``ed(...)``."""
    try:
        tree = ast.parse(path.read_text("utf-8"), str(path))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return {}
    except (SyntaxError, ValueError) as error:
        problems.append(f"{path}: not a Python file: {type(error).__name__}")
        return {}
    tables: dict[str, dict[str, Any]] = {}
    for statement in tree.body:
        problem = _take(statement, tables)
        if problem:
            problems.append(f"{path}:{statement.lineno}: {problem}")
    return tables


def _take(statement: ast.stmt, tables: dict[str, dict[str, Any]]) -> str | None:
    """Add a statement's values to the tables. Return its problem, if any, without a value, which may be secret."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    ):
        return None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return "expected only imports and assignments of literals; the file is read, not executed"
    target, value = statement.targets[0], statement.value
    if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
        value = value.args[0]
    try:
        literal = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return f"{ast.unparse(target)}: expected a literal, as in 'text', 8, None, [...] or ed({{...}})"
    if isinstance(target, ast.Name) and target.id in _TABLES:
        if not isinstance(literal, dict) or not all(isinstance(key, str) for key in literal):
            return f"{target.id}: expected a dict with strings as keys"
        tables[target.id] = literal
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in tables:
        tables[target.value.id][target.attr] = literal
    return None


def exports(path: Path, problems: list[str]) -> dict[str, str]:
    """Return the variables that a shell file exports with a literal value."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}")
        return {}
    values = {}
    for number, line in enumerate(lines, 1):
        match = _EXPORT.match(line)
        if match is None or any(letter in match[2] for letter in "$`"):
            continue
        try:
            words = shlex.split(match[2], comments=True)
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
            continue
        values[match[1]] = words[0] if words else ""
    return values


def _tester_notes(path: Path, problems: list[str]) -> list[str]:
    """Return a note on the tester server of config.json, which is used only in ais-bench's network mode."""
    try:
        table = json.loads(path.read_text("utf-8"))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return []
    except ValueError as error:
        problems.append(f"{path}: invalid JSON: {error}")
        return []
    names = sorted(_names(table))
    return [f"{path}: {', '.join(names)}: no effect, because results are kept on this machine"] if names else []


def _names(table: object) -> Iterator[str]:
    """Yield the names of all values in nested tables."""
    if isinstance(table, dict):
        for key, value in table.items():
            if isinstance(value, dict):
                yield from _names(value)
            else:
                yield str(key)
