"""A vendor's functions that replace a suite's steps or a device's hooks of the same name.

A case's ``extern/trainer_adapter.py`` replaces steps, the vendor's ``device.py`` replaces hooks. The harness parses
these files without running them; a rank imports them.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Collection, Iterator, Sequence

MODULE = "trainer_adapter"
REPLACEABLE = (
    "create_model",
    "convert_model",
    "model_to_fp16",
    "compile_model",
    "model_to_ddp",
    "prepare_batch",
    "calculate_loss",
    "backward",
    "create_optimizer",
    "create_grad_scaler",
)
"""Steps that a vendor may replace to compute differently. ``pytorch/vendor_step_checks.py`` checks the results."""
NOT_REPLACEABLE = {
    "create_train_data": "the suite provides the data",
    "create_eval_data": "the suite provides the data",
    "evaluate_batch": "the suite measures the quality",
    "summarize": "the suite measures the quality",
    "count_samples": "the suite counts the samples",
    "count_tokens": "the suite counts the tokens",
    "step_figures": "the suite measures the figures of a step",
    "create_scheduler": "the config sets the learning rate of each step",
}
"""Steps that define what is trained and how it is measured, each with the reason why a vendor cannot replace it."""
HOOKS = (
    "set_device",
    "settings",
    "seed",
    "autocast",
    "grad_scaler",
    "copy_stream",
    "synchronize",
    "events",
    "memory",
    "profiler",
)
"""Names of the fields of ``Hooks`` in ``flagperf_driver/pytorch/hooks.py``."""
_PACKAGE = "flagperf_extern"


def has_hooks(framework: str) -> bool:
    """Return whether a vendor's ``device.py`` can replace hooks of this framework; a user's own may have some."""
    folder = Path(__file__).parent / framework
    return not folder.is_dir() or (folder / "hooks.py").is_file()


class ExternError(ValueError):
    """All problems of a vendor's extern folder or ``device.py``."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def replaced_steps(folder: Path | None) -> dict[str, int]:
    """Return the steps that ``folder``'s adapter replaces, each with its line, without running the adapter.

    Names that begin with ``_`` replace nothing. An import that binds the name of a step is an error.
    """
    path = _adapter(folder)
    return {} if path is None else replaced_names(path, REPLACEABLE, "step")


def load_steps(folder: Path | None) -> dict[str, Callable[..., Any]]:
    """Import ``folder``'s adapter and return the functions that replace steps.

    The adapter may import other files of its folder, relatively (``from .layers import x``) or by plain name; by plain
    name, the suite's modules take precedence. An adapter that replaces no step is not imported, because no report would
    show its effects.
    """
    path = _adapter(folder)
    names = {} if path is None else replaced_names(path, REPLACEABLE, "step")
    if path is None or not names:
        return {}
    return _callables(path, _import(path), list(names), "step")


def replaced_names(path: Path, allowed: Collection[str], kind: str) -> dict[str, int]:
    """Return the names that a file replaces, each with its line, without running the file.

    ``kind`` says in messages what the names stand for, e.g. "step".
    """
    tree = _parsed(path)
    bound = _bindings(tree)
    problems = [*_not_allowed(path, bound, allowed, kind), *_imported_names(path, tree, bound, allowed, kind)]
    if problems:
        raise ExternError(problems)
    return {name: node.lineno for name, node in bound.items() if name in allowed}


def load_functions(path: Path, allowed: Collection[str], kind: str) -> dict[str, Callable[..., Any]]:
    """Import a file and return its functions that replace something.

    The file cannot import other files of its folder.
    """
    names = list(replaced_names(path, allowed, kind))
    return _callables(path, _execute("flagperf_" + path.stem, path, None), names, kind)


def _adapter(folder: Path | None) -> Path | None:
    files = _sources(folder)
    if folder is None or not files:
        return None
    path = folder / (MODULE + ".py")
    if not path.is_file():
        raise ExternError([_no_module(folder, files)])
    return path


def _sources(folder: Path | None) -> list[str]:
    if folder is None or not folder.is_dir():
        return []
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def _no_module(folder: Path, files: Sequence[str]) -> str:
    others = ", ".join(name + ".py" for name in files)
    return f"{folder}: {MODULE}.py not found, so no file of this folder would be used; found {others}"


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise ExternError([f"{path}:{error.lineno or 1}: {error.msg}"]) from error
    except ValueError as error:  # a null byte, before Python 3.12
        raise ExternError([f"{path}: {error}"]) from error


def _bindings(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return the public names that the file's top level binds by ``def``, ``class`` or ``=``, not by import."""
    return {name: node for node in _top_level(tree) for name in _names(node) if not name.startswith("_")}


def _top_level(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements that run at import, including those under if, try and with."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _top_level(child)


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _not_allowed(path: Path, bound: dict[str, ast.stmt], allowed: Collection[str], kind: str) -> list[str]:
    """Report every step that cannot be replaced and every function of an unknown name.

    Classes and constants may have any other name.
    """
    problems = []
    for name, node in bound.items():
        where = f"{path}:{node.lineno}: {name!r}"
        if kind == "step" and name in NOT_REPLACEABLE:
            reason = NOT_REPLACEABLE[name]
            problems.append(f"{where} cannot be replaced by a vendor: {reason}; allowed: {', '.join(allowed)}")
        elif name not in allowed and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            problems.append(f"{where} is not a {kind} that can be replaced; {suggest(name, allowed)}")
    return problems


def _imported_names(
    path: Path, tree: ast.Module, bound: Collection[str], allowed: Collection[str], kind: str
) -> Iterator[str]:
    """Report every import that binds an allowed name: reports could not show which code replaces it."""
    for node in _top_level(tree):
        aliases = node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        for name in (alias.asname or alias.name for alias in aliases):
            if name in allowed and name not in bound:
                yield (
                    f"{path}:{node.lineno}: {name!r} is a {kind}, and an import cannot replace a {kind}; "
                    f"import the module and write {name} = MODULE.{name}, or import it under another name"
                )


def suggest(name: str, allowed: Collection[str]) -> str:
    """Return the allowed names that are similar to ``name``, or all allowed names."""
    matches = difflib.get_close_matches(name, list(allowed), 3)
    if matches:
        return "did you mean {}?".format(" or ".join(map(repr, matches)))
    return "choose from {}".format(", ".join(sorted(allowed)))


def _import(path: Path) -> ModuleType:
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
    return _execute(_PACKAGE + "." + path.stem, path, None)


def _execute(name: str, path: Path, search: list[str] | None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, str(path), submodule_search_locations=search)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def _callables(path: Path, loaded: ModuleType, names: Sequence[str], kind: str) -> dict[str, Callable[..., Any]]:
    functions = {name: vars(loaded)[name] for name in names if name in vars(loaded)}
    wrong = {name: type(value).__name__ for name, value in functions.items() if not callable(value)}
    if wrong:
        raise ExternError(
            [f"{path}: {name!r} replaces a {kind}, so it must be a function; got {got}" for name, got in wrong.items()]
        )
    return functions
