"""A config file: the value of each of its names, with the line that assigned it.

A file that only assigns plain values is read without running it (``assignments.py``). Every other file is Python code.
It runs in a process of its own with a limit of time and of memory (``execute.py``), so that a file that never ends, or
builds huge values, is an error that names its line. A file that imports a framework is not run: where the caller
accepts such a file, it is read statement by statement.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from ..problems import Problems
from . import execute
from .assignments import Assigned, Unread, UnreadableError, parse, read, read_partly

TIME_LIMIT_S = 10.0
MEMORY_LIMIT = 1 << 30
_GRACE_S = 5.0
_SIGKILL = 9
_LINE = re.compile(r'  File "(.*)", line (\d+) in ')


class ConfigError(Problems):
    """An invalid config of a case."""


@dataclass(frozen=True)
class Module:
    """The values that a config file defines, without modules, functions, classes and names that begin with ``_``."""

    file: Path
    names: Mapping[str, Assigned]
    annotations: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, Unread] = field(default_factory=dict)
    """Names whose values depend on a framework, which the file imports."""


def load(file: Path, *, time_limit_s: float = TIME_LIMIT_S, frameworks: bool = False) -> Module:
    """Return the names of a config file; raise ConfigError with file and line of each problem.

    With ``frameworks``, a file may import modules that are not installed.
    """
    tree = _parse(file)
    names = read(file, tree)
    if names is not None:
        return Module(file, names, _annotations(tree))
    trees = _trees(file, tree)
    if frameworks and any(_imports_others(imported, file.parent) for imported in trees.values()):
        return _partly(file, tree)
    sources = tuple(path.read_bytes() for path in trees)
    return Module(file, _names(file, _run(file, sources, time_limit_s)), _annotations(tree))


def _partly(file: Path, tree: ast.Module) -> Module:
    try:
        values = read_partly(file, tree)
    except UnreadableError as error:
        raise ConfigError([str(error)]) from None
    names = {name: given for name, given in values.items() if isinstance(given, Assigned)}
    unread = {name: given for name, given in values.items() if isinstance(given, Unread)}
    return Module(file, names, _annotations(tree), unread)


def _parse(file: Path) -> ast.Module:
    try:
        return parse(file)
    except SyntaxError as error:
        raise ConfigError([f"{file}:{error.lineno or 1}: invalid Python: {error.msg}"]) from None
    except (OSError, ValueError) as error:  # a null byte is a ValueError
        raise ConfigError([f"{file}: cannot be read: {error}"]) from None


def _annotations(tree: ast.Module) -> dict[str, str]:
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


# -- files that are run ---------------------------------------------------------------------------------------


def _trees(file: Path, tree: ast.Module) -> dict[Path, ast.Module]:
    """Return the file and all neighbours that it imports; a cached reply depends on all of them."""
    trees = {file: tree}
    left = [tree]
    while left:
        for neighbour in _neighbours(left.pop(), file.parent):
            if neighbour not in trees:
                trees[neighbour] = _parse(neighbour)
                left.append(trees[neighbour])
    return trees


def _imports_others(tree: ast.Module, folder: Path) -> bool:
    """Return True if a file imports a module that is neither a neighbour nor in the standard library."""
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    tops = {module.partition(".")[0] for module in modules if module}
    return any(top not in sys.stdlib_module_names and not (folder / f"{top}.py").is_file() for top in tops)


def _neighbours(tree: ast.Module, folder: Path) -> list[Path]:
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names += [
        alias.name for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names
    ]
    places = [folder / f"{name}.py" for name in names if name.isidentifier()]
    return [place for place in places if os.path.isfile(place)]  # noqa: PTH113 - Path.is_file raises for a name that is too long


@lru_cache(maxsize=1024)
def _run(file: Path, sources: tuple[bytes, ...], time_limit_s: float) -> str:  # noqa: ARG001 - sources are a part of the key
    """Run the file in a process of its own and return its reply."""
    with tempfile.TemporaryFile() as reply, tempfile.TemporaryFile() as errors:
        code = _run_process(file, reply, errors, time_limit_s)
        text = _content(reply)
        if code or not text:
            raise ConfigError([_unfinished(file, code, _content(errors), time_limit_s)])
        return text


def _run_process(file: Path, reply: IO[bytes], errors: IO[bytes], time_limit_s: float) -> int:
    """Run the file in a process and return the exit code; end all processes that it started."""
    limits = [str(time_limit_s), str(MEMORY_LIMIT)]
    argv = [sys.executable, "-I", "-S", "-X", "utf8", execute.__file__, str(file), *limits]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=reply,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError([f"{file}: cannot be run: {error.strerror}"]) from None
    try:
        return process.wait(time_limit_s + _GRACE_S)
    except subprocess.TimeoutExpired:
        return -_SIGKILL
    finally:
        _kill_group(process)
        process.wait()


def _kill_group(leader: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started; on Windows only the process itself."""
    if sys.platform == "win32":
        leader.kill()
        return
    with suppress(ProcessLookupError, PermissionError):  # macOS permits no signal to a group that has ended
        os.killpg(leader.pid, _SIGKILL)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "backslashreplace")


def _unfinished(file: Path, code: int, errors: str, time_limit_s: float) -> str:
    """Return the problem of a file whose process sent no reply."""
    own = [f"{place}:{line}" for place, line in _LINE.findall(errors) if Path(place).parent == file.parent]
    where = own[0] if own else str(file)
    if "Timeout (" in errors or code == -_SIGKILL:
        return f"{where}: the file ran for longer than {time_limit_s:g} s; a config file must assign values and end"
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{where}: the file ended its process ({end}); a config file must assign values and end"


def _names(file: Path, reply: str) -> dict[str, Assigned]:
    try:
        content = json.loads(reply)
    except ValueError:
        raise ConfigError([f"{file}: the process that ran the file sent an invalid reply"]) from None
    if "problems" in content:
        raise ConfigError(content["problems"])
    return {name: Assigned(_decoded(value), Path(place), line) for name, value, place, line in content["names"]}


def _decoded(value: Any) -> object:
    """Return a value that ``execute.py`` encoded."""
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(map(_decoded, content))
    if kind == "dict":
        return {_decoded(key): _decoded(item) for key, item in content}
    name, text = content
    return type(name, (_Foreign,), {"text": text})()


class _Foreign:
    """A placeholder for a value that is not plain; its class has the name of the value's class."""

    text = ""

    def __repr__(self) -> str:
        return self.text
