"""A vendor's own functions: the steps of a suite and the hooks of a device that they replace by name.

Steps are replaced by a case's ``extern/trainer_adapter.py``, hooks by the vendor's ``device.py``. Both are read by
both sides: the harness looks at the file without running it, a rank imports it.
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
"""How it is computed is a vendor's to change; ``flagperf_driver/pytorch/adapted.py`` checks that it is still that."""
KEPT = {
    "create_train_data": "the data are the suite's",
    "create_eval_data": "the data are the suite's",
    "evaluate_batch": "the suite measures the quality",
    "summarize": "the suite measures the quality",
    "count_samples": "the suite counts the samples",
    "create_scheduler": "the config tells the learning rate of each step",
}
"""Steps that say what is trained and how that is measured, each with the reason why no vendor replaces it."""
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
)
"""What a training asks of its device: ``Hooks`` in ``flagperf_driver/pytorch/hooks.py``."""
_PACKAGE = "flagperf_extern"


class ExternError(ValueError):
    """A vendor's extern folder that cannot be used as it is; every problem told at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def replaced(folder: Path | None) -> dict[str, int]:
    """The steps that ``folder``'s adapter replaces, each with its line; nothing of it is run.

    Names that begin with ``_`` replace nothing, and an imported name that would is refused.
    """
    path = _adapter(folder)
    return {} if path is None else named(path, REPLACEABLE, "step")


def load(folder: Path | None) -> dict[str, Callable[..., Any]]:
    """The functions of ``folder``'s adapter that replace steps.

    The file's neighbours can be imported relatively (``from .layers import x``), or by plain name, where the suite's
    own modules come first. A file that replaces no step is not run: nothing would tell of what it does.
    """
    path = _adapter(folder)
    names = {} if path is None else named(path, REPLACEABLE, "step")
    if path is None or not names:
        return {}
    return _callables(path, _import(path), list(names), "step")


def named(path: Path, allowed: Collection[str], what: str) -> dict[str, int]:
    """The names that a file replaces, each with its line; ``what`` they are is for messages. Nothing of it is run."""
    tree = _parsed(path)
    bound = _bindings(tree)
    problems = [*_refused(path, bound, allowed, what), *_only_imported(path, tree, bound, allowed, what)]
    if problems:
        raise ExternError(problems)
    return {name: node.lineno for name, node in bound.items() if name in allowed}


def functions(path: Path, allowed: Collection[str], what: str) -> dict[str, Callable[..., Any]]:
    """The functions of a file that replace something.

    It stands alone: what lies beside it is no part of it, and is not found by plain name.
    """
    names = list(named(path, allowed, what))
    return _callables(path, _execute("flagperf_" + path.stem, path, None), names, what)


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
    there = ", ".join(name + ".py" for name in files)
    return f"{folder}: there is no {MODULE}.py, so nothing here would be used; there is {there}"


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise ExternError([f"{path}:{error.lineno or 1}: {error.msg}"]) from error
    except ValueError as error:  # a null byte, before Python 3.12
        raise ExternError([f"{path}: {error}"]) from error


def _bindings(tree: ast.Module) -> dict[str, ast.stmt]:
    """The public names that the file's top level binds by ``def``, ``class`` or ``=``, not by import."""
    return {name: node for node in _top_level(tree) for name in _names(node) if not name.startswith("_")}


def _top_level(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements that run at import, those under if, try and with included."""
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


def _refused(path: Path, bound: dict[str, ast.stmt], allowed: Collection[str], what: str) -> list[str]:
    """Of every name that is kept, and of every function whose name is none; the rest may be called what it likes."""
    found = []
    for name, node in bound.items():
        where = f"{path}:{node.lineno}: {name!r}"
        if what == "step" and name in KEPT:
            found.append(f"{where} is not a vendor's to replace: {KEPT[name]}; these are: {', '.join(allowed)}")
        elif name not in allowed and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(f"{where} is not a {what} that can be replaced; {near(name, allowed)}")
    return found


def _only_imported(
    path: Path, tree: ast.Module, bound: Collection[str], allowed: Collection[str], what: str
) -> Iterator[str]:
    """Of every import that looks as if it replaced something: nobody would be told whose it is, so it does not."""
    for node in _top_level(tree):
        aliases = node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        for name in (alias.asname or alias.name for alias in aliases):
            if name in allowed and name not in bound:
                yield (
                    f"{path}:{node.lineno}: {name!r} is a {what}, and an import replaces none; "
                    f"import its module, and write {name} = MODULE.{name}, or import it by another name"
                )


def near(name: str, allowed: Collection[str]) -> str:
    """What the user may have meant, else what there is."""
    matches = difflib.get_close_matches(name, list(allowed), 3)
    if matches:
        return "did you mean {}?".format(" or ".join(map(repr, matches)))
    return "there is: {}".format(", ".join(sorted(allowed)) or "nothing")


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


def _callables(path: Path, loaded: ModuleType, names: Sequence[str], what: str) -> dict[str, Callable[..., Any]]:
    there = {name: vars(loaded)[name] for name in names if name in vars(loaded)}
    wrong = [name for name, value in there.items() if not callable(value)]
    if wrong:
        raise ExternError([f"{path}: {name!r} is the name of a {what}, but no function" for name in wrong])
    return there
