"""A vendor's own steps: the functions of ``extern/trainer_adapter.py`` replace the suite's by name."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Collection, Iterator, Sequence

MODULE = "trainer_adapter"
_PACKAGE = "flagperf_extern"


class ExternError(ValueError):
    """A vendor's extern folder that cannot be used as it is; every problem told at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def load(folder: Path | None, allowed: Collection[str], module: str = MODULE) -> dict[str, Callable[..., Any]]:
    """The functions that ``folder``/``module``.py defines, each of whose names must be in ``allowed``.

    Names that begin with ``_`` and imported names replace nothing. The file's neighbours can be imported
    relatively (``from .layers import x``), or by plain name, where the suite's own modules come first.
    """
    files = _sources(folder)
    if folder is None or not files:
        return {}
    path = folder / (module + ".py")
    if not path.is_file():
        raise ExternError([_no_module(folder, module, files)])
    bound = _bindings(path)
    problems = _unknown(path, bound, allowed)
    if problems:
        raise ExternError(problems)
    loaded = _import(path, module)
    return _callables(path, loaded, [name for name in bound if name in allowed])


def _sources(folder: Path | None) -> list[str]:
    if folder is None or not folder.is_dir():
        return []
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def _no_module(folder: Path, module: str, files: Sequence[str]) -> str:
    there = ", ".join(name + ".py" for name in files)
    return f"{folder}: there is no {module}.py, so nothing here would be used; there is {there}"


def _bindings(path: Path) -> dict[str, ast.stmt]:
    """The public names that the file's top level binds by ``def`` or ``=``, not by import or class."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise ExternError([f"{path}:{error.lineno}: {error.msg}"]) from error
    return {name: node for node in _top_level(tree) for name in _names(node) if not name.startswith("_")}


def _top_level(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements that run at import, those under if, try and with included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _top_level(child)


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def _unknown(path: Path, bound: dict[str, ast.stmt], allowed: Collection[str]) -> list[str]:
    functions = {name: node for name, node in bound.items() if not isinstance(node, ast.Assign) and name not in allowed}
    return [
        f"{path}:{node.lineno}: {name!r} is not a step that can be replaced; {near(name, allowed)}"
        for name, node in functions.items()
    ]


def near(name: str, allowed: Collection[str]) -> str:
    """What the user may have meant, else what there is."""
    matches = difflib.get_close_matches(name, list(allowed), 3)
    if matches:
        return "did you mean {}?".format(" or ".join(map(repr, matches)))
    return "there is: {}".format(", ".join(sorted(allowed)) or "nothing")


def _import(path: Path, module: str) -> ModuleType:
    folder = str(path.parent)
    init = path.parent / "__init__.py"
    if init.is_file():
        _execute(_PACKAGE, init, [folder])
    else:
        package = ModuleType(_PACKAGE)
        package.__path__ = [folder]
        sys.modules[_PACKAGE] = package
    if folder not in sys.path and len(_sources(path.parent)) > 1:
        sys.path.append(folder)
    return _execute(_PACKAGE + "." + module, path, None)


def _execute(name: str, path: Path, search: list[str] | None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, str(path), submodule_search_locations=search)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def _callables(path: Path, loaded: ModuleType, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    there = {name: vars(loaded)[name] for name in names if name in vars(loaded)}
    wrong = [name for name, value in there.items() if not callable(value)]
    if wrong:
        raise ExternError([f"{path}: {name!r} is a step's name, but no function" for name in wrong])
    return there
