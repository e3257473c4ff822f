"""A config file, run as the plain Python it is, with the line that gave each name its value.

It runs in a namespace of its own: neither ``sys.path`` nor ``sys.modules`` hears of it. It may import its
neighbours and the standard library; frameworks belong to the training program, not to its configuration.
"""

from __future__ import annotations

import ast
import builtins
import copy
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..problems import Problems


class ConfigError(Problems):
    """The config of a case does not hold."""


@dataclass(frozen=True)
class Assigned:
    """A name's value, and where it was given."""

    value: object
    file: Path
    line: int


@dataclass(frozen=True)
class Module:
    """What a config file defines, without what is no value: modules, functions, classes, ``_`` names."""

    file: Path
    names: Mapping[str, Assigned]
    annotations: Mapping[str, str] = field(default_factory=dict)


def load(file: Path) -> Module:
    """Run a config file; a ConfigError names file and line of what it does wrong."""
    return _Folder(file.parent).load(file)


@dataclass(frozen=True)
class _Import:
    """An import statement anywhere in a file; ``source`` is the neighbour, None: the standard library."""

    first: int
    last: int
    names: Mapping[str, str]  # what it is called here -> what it is called there; "*" for all
    source: str | None


@dataclass
class _Folder:
    """The files of one folder that import each other, each run once."""

    path: Path
    loaded: dict[str, tuple[Module, types.ModuleType]] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)

    def load(self, file: Path) -> Module:
        return self._load(file)[0]

    def _load(self, file: Path) -> tuple[Module, types.ModuleType]:
        if file.stem in self.running:
            circle = " -> ".join([*self.running, file.stem])
            raise ConfigError([f"{file}: the files import each other in a circle: {circle}"])
        if file.stem not in self.loaded:
            self.running.append(file.stem)
            self.loaded[file.stem] = self._run(file)
            self.running.remove(file.stem)
        return self.loaded[file.stem]

    def _run(self, file: Path) -> tuple[Module, types.ModuleType]:
        tree = _parse(file)
        module = types.ModuleType(file.stem)
        own_builtins = {**vars(builtins), "__import__": self._import}
        namespace = vars(module)
        namespace |= {"__file__": str(file), "__builtins__": own_builtins}
        lines = _Lines(namespace)
        try:
            exec(compile(tree, str(file), "exec", dont_inherit=True), namespace, lines)  # noqa: S102 - a config file is code
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:  # a config file that calls sys.exit() must not end the run
            raise ConfigError([_raised(file, error)]) from error
        imports = list(_imports(tree, self.path))
        return Module(file, dict(self._names(file, namespace, lines.line, imports)), _annotations(tree)), module

    def _import(
        self,
        name: str,
        _globals: Mapping[str, object] | None = None,
        _locals: Mapping[str, object] | None = None,
        wanted: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        """The ``__import__`` that a config file sees."""
        if level == 1 and not name:
            package = types.ModuleType(self.path.name)
            for neighbour in wanted or ():
                setattr(package, neighbour, self._neighbour(neighbour))
            return package
        if level <= 1 and (self.path / f"{name}.py").is_file():
            return self._neighbour(name)
        top = name.partition(".")[0]
        if level == 0 and (top in sys.stdlib_module_names or top == "__future__"):
            return __import__(name, None, None, wanted or (), 0)
        raise ImportError(
            f"{'.' * level}{name} cannot be imported: a config file may import the files beside it in "
            f"{self.path.name}/ and Python's standard library; frameworks belong to the training program"
        )

    def _neighbour(self, name: str) -> types.ModuleType:
        return self._load(self.path / f"{name}.py")[1]

    def _names(
        self, file: Path, namespace: Mapping[str, Any], lines: Mapping[str, int], imports: Sequence[_Import]
    ) -> Iterator[tuple[str, Assigned]]:
        for name, line in lines.items():
            if name not in namespace or name.startswith("_") or _is_program(namespace[name]):
                continue
            there, origin = self._origin(name, namespace[name], line, imports)
            if there:
                if origin:
                    yield name, origin
                continue
            yield name, Assigned(_copy(namespace[name]), file, line)

    def _origin(self, name: str, value: object, line: int, imports: Sequence[_Import]) -> tuple[bool, Assigned | None]:
        """Whether an import gave the name its value, and what the neighbour that it came from says of it."""
        for statement in imports:
            there = statement.names.get(name, name if "*" in statement.names else None)
            if not (statement.first <= line <= statement.last) or there is None:
                continue
            if statement.source is None:
                return True, None
            module, space = self.loaded[statement.source]
            if getattr(space, there, None) is value:
                return True, module.names.get(there)
        return False, None


class _Lines(dict[str, Any]):
    """A module's locals while it runs: hands every name to its globals and notes the line that set it.

    The order is that of the last assignments. ``ast`` would not know which branch of an ``if`` was taken.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__()
        self.namespace = namespace
        self.line: dict[str, int] = {}

    def __setitem__(self, name: str, value: object) -> None:
        self.namespace[name] = value
        self.line.pop(name, None)
        self.line[name] = sys._getframe(1).f_lineno

    def __getitem__(self, name: str) -> Any:
        return self.namespace[name]

    def __delitem__(self, name: str) -> None:
        del self.namespace[name]
        self.line.pop(name, None)


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text else ""
        raise ConfigError([f"{file}:{error.lineno or 1}: is no Python: {error.msg}{text}"]) from None
    except (OSError, ValueError, RecursionError) as error:  # a null byte is a ValueError
        raise ConfigError([f"{file}: cannot be read: {error}"]) from None


def _raised(file: Path, error: Exception | SystemExit) -> str:
    """The line of the file itself that raised, or the last one below it that is a neighbour's."""
    if isinstance(error, SyntaxError) and error.filename == str(file):  # what only the compiler sees
        return f"{file}:{error.lineno or 1}: is no Python: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == file.parent]
    where = f"{own[-1].filename}:{own[-1].lineno}" if own else str(file)
    return f"{where}: {type(error).__name__}: {error}"


def _copy(value: object) -> object:
    """A copy through and through; what cannot be copied is no plain value, which is told when it is used."""
    try:
        return copy.deepcopy(value)
    except TypeError:
        return value


def _is_program(value: object) -> bool:
    return isinstance(value, (types.ModuleType, type)) or callable(value)


def _annotations(tree: ast.Module) -> dict[str, str]:
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _imports(tree: ast.Module, folder: Path) -> Iterator[_Import]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        source = node.module if isinstance(node, ast.ImportFrom) else None
        neighbour = source if source and (folder / f"{source}.py").is_file() else None
        names = {alias.asname or alias.name: alias.name for alias in node.names}
        yield _Import(node.lineno, node.end_lineno or node.lineno, names, neighbour)
