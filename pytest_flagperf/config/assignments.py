"""Read config files that only assign plain values, without running them.

Most config files are of this kind. Reading one takes a fraction of a millisecond and cannot hang. ``read`` returns None
for every other file; such a file is run in a process of its own (``execute.py``).

A file that imports a framework cannot be run there. ``read_partly`` reads such a file statement by statement. It
returns the plain values, and an ``Unread`` for each name whose value depends on the import.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..limits import LARGEST_INT

MAX_BYTES = 1 << 20
"""Maximum size of a config file."""

T = TypeVar("T")
_MAX_TEXT = 100
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class Assigned:
    """The value of a name, and the place of the assignment."""

    value: object
    file: Path
    line: int


@dataclass(frozen=True)
class Unread:
    """A name whose value is unknown because the file was not run; ``source`` is the statement's text."""

    source: str
    file: Path
    line: int
    imported: bool
    """True if an import statement defines the name: a module, a class or a function instead of a value."""


class UnreadableError(Exception):
    """A statement hides which names the file assigns; the text names file and line."""


class _NotPlainError(Exception):
    """The file must be run: it does more than assign plain values."""


def parse(file: Path) -> ast.Module:
    """Return the syntax tree of a config file; raises OSError, SyntaxError or ValueError."""
    with file.open("rb") as stream:
        source = stream.read(MAX_BYTES + 1)
    if len(source) > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES >> 20} MiB, the maximum size of a config file")
    try:
        return ast.parse(source, filename=str(file))
    except (RecursionError, MemoryError):
        raise ValueError("an expression in the file is nested too deeply") from None


def read(file: Path, tree: ast.Module) -> dict[str, Assigned] | None:
    """Return the public names of a file in the order of their last assignment; None where the file must be run."""
    try:
        return _public(_names(file, tree, (file.stem,)))
    except (_NotPlainError, ArithmeticError, OSError, SyntaxError, ValueError, RecursionError):
        return None


def _names(file: Path, tree: ast.Module, importing: tuple[str, ...]) -> dict[str, Assigned]:
    names: dict[str, Assigned] = {}
    for statement in tree.body:
        _add(names, _plain(file, statement, names, importing))
    return names


def _add(names: dict[str, T], added: Mapping[str, T]) -> None:
    for name, assigned in added.items():
        names.pop(name, None)
        names[name] = assigned


def _plain(
    file: Path, statement: ast.stmt, names: Mapping[str, Assigned], importing: tuple[str, ...]
) -> dict[str, Assigned]:
    """Return the names that a statement assigns plain values to; raise where it does anything else."""
    if isinstance(statement, ast.ImportFrom):
        return _imported(file, statement, importing)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return _assigned(file, statement, names)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return {}  # a docstring
    raise _NotPlainError


def _assigned(file: Path, statement: ast.Assign | ast.AnnAssign, names: Mapping[str, Assigned]) -> dict[str, Assigned]:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    several = isinstance(statement, ast.Assign) and len(statement.targets) > 1
    if several or statement.value is None or not isinstance(target, ast.Name) or target.id.startswith("__"):
        raise _NotPlainError
    return {target.id: Assigned(_value(statement.value, names), file, target.lineno)}


def _imported(file: Path, statement: ast.ImportFrom, importing: tuple[str, ...]) -> dict[str, Assigned]:
    """Return the names that an import of a neighbouring file adds."""
    if statement.module in ("__future__", "typing") and not statement.level:
        if any(alias.name == "*" for alias in statement.names):
            raise _NotPlainError
        return {}  # only annotations use these names
    neighbour = file.parent / f"{statement.module}.py"
    if statement.level > 1 or not statement.module or statement.module in importing or not neighbour.is_file():
        raise _NotPlainError
    imported = _names(neighbour, parse(neighbour), (*importing, statement.module))
    if [alias.name for alias in statement.names] == ["*"]:
        return _public(imported)
    if any(alias.name not in imported for alias in statement.names):
        raise _NotPlainError
    return {alias.asname or alias.name: imported[alias.name] for alias in statement.names}


def _public(names: Mapping[str, T]) -> dict[str, T]:
    return {name: assigned for name, assigned in names.items() if not name.startswith("_")}


# -- files that import a framework ---------------------------------------------------------------------------


def read_partly(file: Path, tree: ast.Module) -> dict[str, Assigned | Unread]:
    """Return the public names of a file that is not run; raises UnreadableError, OSError or SyntaxError."""
    return _public(_partly(file, tree, (file.stem,)))


def _partly(file: Path, tree: ast.Module, importing: tuple[str, ...]) -> dict[str, Assigned | Unread]:
    names: dict[str, Assigned | Unread] = {}
    for statement in tree.body:
        known = {name: given for name, given in names.items() if isinstance(given, Assigned)}
        try:
            _add(names, _plain(file, statement, known, importing))
        except (_NotPlainError, ArithmeticError, OSError, SyntaxError, ValueError, RecursionError):
            _add(names, _unread_names(file, statement, importing))
    return names


def _unread_names(file: Path, statement: ast.stmt, importing: tuple[str, ...]) -> Mapping[str, Assigned | Unread]:
    """Return the names of a statement that is not plain; a neighbour may have plain values nevertheless."""
    if isinstance(statement, ast.ImportFrom):
        neighbour = file.parent / f"{statement.module}.py"
        if statement.module in importing:
            circle = " -> ".join([*importing, statement.module])
            raise UnreadableError(f"{file}:{statement.lineno}: the files import each other in a circle: {circle}")
        if statement.module and statement.level <= 1 and neighbour.is_file():
            return _from_neighbour(file, statement, _partly(neighbour, parse(neighbour), (*importing, neighbour.stem)))
        if statement.level or any(alias.name == "*" for alias in statement.names):
            raise UnreadableError(
                f"{file}:{statement.lineno}: {ast.unparse(statement)}: no {statement.module or ''}.py in"
                f" {file.parent.name}/; import the names one by one, or add the file"
            )
    return {name: Unread(_text(statement), file, line, imported) for name, line, imported in _bound([statement])}


def _from_neighbour(
    file: Path, statement: ast.ImportFrom, imported: Mapping[str, Assigned | Unread]
) -> dict[str, Assigned | Unread]:
    if [alias.name for alias in statement.names] == ["*"]:
        return _public(imported)
    unknown = Unread(_text(statement), file, statement.lineno, imported=True)
    return {alias.asname or alias.name: imported.get(alias.name, unknown) for alias in statement.names}


def _bound(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, int, bool]]:
    """Yield the names that statements bind, with line and whether an import binds them; without functions' own."""
    left: list[ast.AST] = list(statements)
    while left:
        node = left.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node.lineno, True
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, node.lineno, False
        left += ast.iter_child_nodes(node)


def _text(statement: ast.stmt) -> str:
    """Return the value that a statement assigns, else ``<its first line>``."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    text = ast.unparse(value or statement).partition("\n")[0].rstrip(":")
    text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
    return text if value else f"<{text}>"


# -- values --------------------------------------------------------------------------------------------------


def _value(node: ast.expr, names: Mapping[str, Assigned]) -> object:
    """Return the value of an expression; raises where its size is not limited by the size of its source."""
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_value(item, names) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if isinstance(node, ast.Dict):
        return dict(_pairs(node, names))
    if isinstance(node, ast.Constant):
        return _scalar(node.value)
    if isinstance(node, ast.Name) and node.id in names:
        # Repeated references to a list would be small here and huge when printed.
        return _scalar(names[node.id].value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        number = _number(_value(node.operand, names))
        return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _number(_value(node.left, names)), _number(_value(node.right, names))
        return _scalar(_OPERATORS[type(node.op)](left, right))
    raise _NotPlainError


def _pairs(node: ast.Dict, names: Mapping[str, Assigned]) -> Iterator[tuple[object, object]]:
    for key, item in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant):
            raise _NotPlainError
        yield _scalar(key.value), _value(item, names)


def _scalar(value: object) -> object:
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int) and abs(value) <= LARGEST_INT:
        return value
    raise _NotPlainError


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _NotPlainError
    return value
