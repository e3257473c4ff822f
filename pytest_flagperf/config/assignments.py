"""Config files that only assign plain values: read without running them.

Most config files are of this kind. Reading one takes a fraction of a millisecond and cannot hang. ``read`` returns None
for every other file; such a file is run in a process of its own (``execute.py``).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20
"""Maximum size of a config file."""

_LARGEST = 1 << 63
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
        if isinstance(statement, ast.ImportFrom):
            found = _imported(file, statement, importing)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            found = _assigned(file, statement, names)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        else:
            raise _NotPlainError
        for name, assigned in found.items():
            names.pop(name, None)
            names[name] = assigned
    return names


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
    there = _names(neighbour, parse(neighbour), (*importing, statement.module))
    if [alias.name for alias in statement.names] == ["*"]:
        return _public(there)
    if any(alias.name not in there for alias in statement.names):
        raise _NotPlainError
    return {alias.asname or alias.name: there[alias.name] for alias in statement.names}


def _public(names: Mapping[str, Assigned]) -> dict[str, Assigned]:
    return {name: assigned for name, assigned in names.items() if not name.startswith("_")}


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
        # A list inside itself many times would be small here and huge when it is printed.
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
    if isinstance(value, int) and abs(value) < _LARGEST:
        return value
    raise _NotPlainError


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _NotPlainError
    return value
