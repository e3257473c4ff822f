"""A config file: the value of each of its names, with the line that assigned it.

A config file is written in Python, but it is read and never run. It assigns values: literals, names assigned above,
arithmetic, lists and dicts. It may import the files beside it, and define names by other imports, functions and
classes, which have no value. Every other statement is refused.
"""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from flagperf_driver.node.logs.whole_numbers import LARGEST_INT

from ..problems import Problems
from ..stored.plan import Value

MAX_BYTES = 1 << 20
"""Maximum size of a config file."""
_MAX_SIZE = 2 * MAX_BYTES
_MAX_TEXT = 100
_MAX_BITS = 10_000
"""Python prints no number of more than 4,300 digits."""
_VALUES = (
    "config files are read, not run; expected numbers, strings, True, False, None, lists, tuples, dicts, + - * / // and"
    " names assigned above; write the value itself"
)
_STATEMENTS = (
    "config files are read, not run; expected assignments to names, as in lr = 0.1, and imports; write the value of"
    " each name itself"
)
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class ConfigError(Problems):
    """An invalid config of a case."""


@dataclass(frozen=True)
class Unread:
    """A name whose value is unknown; ``source`` is the text of its value, or ``<the statement>``."""

    source: str
    where: str
    reason: str
    imported: bool = False
    """True for a module, a function or a class: a name without a value."""


Names: TypeAlias = dict[str, Value | Unread]


@dataclass(frozen=True)
class Module:
    """The values that a config file defines, without names that begin with ``_``."""

    names: Mapping[str, Value] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, Unread] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def load(file: Path, layer: str = "", place: str | None = None) -> Module:
    """Return the names of a config file; raise ConfigError with file and line of each problem.

    The values are of ``layer``, and ``place`` is shown instead of the file's folder.
    """
    module = load_partly(file, layer, place)
    unread = {name: given for name, given in module.unread.items() if not given.imported}
    problems = [f"{given.where}: {name}: {given.reason}" for name, given in unread.items()]
    if module.problems or problems:
        raise ConfigError([*module.problems, *problems])
    return module


def load_partly(file: Path, layer: str = "", place: str | None = None) -> Module:
    """Return the names of a config file, and its problems; raise ConfigError if it is not Python."""
    folder = file.parent
    reader = _ModuleReader(folder, str(folder) if place is None else place, layer)
    tree = reader.parse(file)
    public = _public(reader.read(file, tree))
    names = {name: given for name, given in public.items() if isinstance(given, Value)}
    unread = {name: given for name, given in public.items() if isinstance(given, Unread)}
    return Module(names, _annotations(tree), unread, tuple(reader.problems))


def _parse(file: Path, shown: str) -> ast.Module:
    try:
        with file.open("rb") as stream:
            source = stream.read(MAX_BYTES + 1)
        if len(source) > MAX_BYTES:
            raise ValueError(f"the file is larger than {MAX_BYTES >> 20} MiB, the maximum size of a config file")
        tree = ast.parse(source, filename=shown)
    except SyntaxError as error:
        raise ConfigError([f"{shown}:{error.lineno or 1}: invalid Python: {error.msg}"]) from None
    except (RecursionError, MemoryError):
        raise ConfigError([f"{shown}: cannot be read: an expression in the file is nested too deeply"]) from None
    except (OSError, ValueError) as error:  # a null byte is a ValueError
        raise ConfigError([f"{shown}: cannot be read: {error}"]) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value.bit_length() > _MAX_BITS:
            raise ConfigError([f"{shown}:{node.lineno}: got a number of more than {_MAX_BITS} bits"])
    return tree


def _annotations(tree: ast.Module) -> dict[str, str]:
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _public(names: Names) -> Names:
    return {name: given for name, given in names.items() if not name.startswith("_")}


class _NoValueError(Exception):
    """An expression has no value here; the text is the reason, ``cause`` the name above that has no value either."""

    def __init__(self, reason: str, cause: Unread | None = None) -> None:
        super().__init__(reason)
        self.cause = cause


class _RefusedError(Exception):
    """A statement is refused; the text is the reason."""


class _ModuleReader:
    """Reads the files of one folder that import each other, each once; ``place`` is shown instead of the folder."""

    def __init__(self, folder: Path, place: str, layer: str) -> None:
        self.problems: list[str] = []
        self._folder, self._place, self._layer = folder, place, layer
        self._read: dict[Path, Names] = {}
        self._reading: list[str] = []
        self._values = _Values()

    def parse(self, file: Path) -> ast.Module:
        return _parse(file, self._shown(file))

    def _shown(self, file: Path) -> str:
        return file.name if self._place == "." else f"{self._place}/{file.name}"  # joining paths takes longer

    def read(self, file: Path, tree: ast.Module) -> Names:
        """Return the names in the order of their last assignment."""
        names, shown = self._read.setdefault(file, {}), self._shown(file)
        self._reading.append(file.stem)
        for statement in tree.body:
            try:
                for name, given in self._names(shown, statement, names):
                    names.pop(name, None)
                    names[name] = given
            except _RefusedError as error:
                self.problems.append(f"{shown}:{statement.lineno}: {_text(statement)}: {error}")
            except ConfigError as error:
                self.problems += error.problems
        self._reading.pop()
        return names

    def _names(self, file: str, statement: ast.stmt, names: Names) -> Iterator[tuple[str, Value | Unread]]:
        """Yield the names that a statement defines."""
        if isinstance(statement, ast.ImportFrom):
            yield from self._imported(file, statement)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.asname or alias.name.partition(".")[0], _without_value(file, statement)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name, _without_value(file, statement)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            yield from self._assigned(file, statement, names)
        elif not isinstance(statement, ast.Pass) and not (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)  # a docstring
        ):
            raise _RefusedError(_STATEMENTS)

    def _assigned(
        self, file: str, statement: ast.Assign | ast.AnnAssign, names: Names
    ) -> Iterator[tuple[str, Value | Unread]]:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if not isinstance(target, ast.Name) or target.id.startswith("__"):
                raise _RefusedError(_STATEMENTS)
        if statement.value is None:  # only an annotation
            return
        given: Value | Unread
        try:
            given = Value(self._values.of(statement.value, names), file, statement.lineno, self._layer)
        except _NoValueError as error:
            reason = f"{error}: {_VALUES}"
            given = error.cause or Unread(_text(statement.value), f"{file}:{statement.lineno}", reason)
        yield from ((target.id, given) for target in targets if isinstance(target, ast.Name))

    def _imported(self, file: str, statement: ast.ImportFrom) -> Iterator[tuple[str, Value | Unread]]:
        """Yield the names of an import; those of a neighbouring file have their values."""
        neighbour = self._folder / f"{statement.module}.py"
        if statement.level > 1 or not statement.module or not _is_file(neighbour):
            if any(alias.name == "*" for alias in statement.names):
                place = f"no {statement.module or '__init__'}.py in {self._folder.name}/"
                raise _RefusedError(f"{place}; import the names one by one, or add the file")
            for alias in statement.names:
                yield alias.asname or alias.name, _without_value(file, statement)
            return
        if neighbour.stem in self._reading:
            circle = " -> ".join([*self._reading, neighbour.stem])
            raise ConfigError([f"{file}:{statement.lineno}: the files import each other in a circle: {circle}"])
        imported = self._read.get(neighbour)
        if imported is None:
            imported = self.read(neighbour, self.parse(neighbour))
        if statement.names[0].name == "*":
            yield from _public(imported).items()
            return
        for alias in statement.names:
            if alias.name not in imported:
                raise _RefusedError(f"no name {alias.name!r} in {neighbour.name}")
            yield alias.asname or alias.name, imported[alias.name]


def _is_file(place: Path) -> bool:
    try:
        return place.is_file()
    except OSError:  # the name is too long
        return False


def _without_value(file: str, statement: ast.stmt) -> Unread:
    source, where = f"<{_text(statement)}>", f"{file}:{statement.lineno}"
    return Unread(source, where, f"{source} has no value here: {_VALUES}", imported=True)


def _text(node: ast.stmt | ast.expr) -> str:
    """Return the first line of a statement or an expression, without the contents of strings, which may be secret."""
    try:
        node = copy.deepcopy(node)
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, (str, bytes)):
                part.value = "..."
        text = ast.unparse(node).partition("\n")[0].rstrip(":")
    except RecursionError:
        return "..."
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


class _Values:
    """Computes the values of expressions; the sum of their sizes is limited, as repeated references can be huge."""

    def __init__(self) -> None:
        self._left = _MAX_SIZE

    def of(self, node: ast.expr, names: Names) -> object:
        """Return the value of an expression; raise _NoValueError if it has none."""
        try:
            value = self._value(node, names)
            self._count(value)
        except RecursionError:
            raise _NoValueError("the expression is nested too deeply") from None
        return value

    def _value(self, node: ast.expr, names: Names) -> object:
        if isinstance(node, (ast.List, ast.Tuple)):
            items = [self._value(item, names) for item in node.elts]
            return items if isinstance(node, ast.List) else tuple(items)
        if isinstance(node, ast.Dict):
            return {
                self._key(key, names): self._value(item, names)
                for key, item in zip(node.keys, node.values, strict=True)
            }
        if isinstance(node, ast.Constant):
            return _scalar(node.value)
        if isinstance(node, ast.Name):
            return _named(node.id, names)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            number = _number(self._value(node.operand, names))
            return -number if isinstance(node.op, ast.USub) else number
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return self._binary(node, self._value(node.left, names), self._value(node.right, names))
        raise _NoValueError(f"{_text(node)!r} is not evaluated")

    def _key(self, node: ast.expr | None, names: Names) -> object:
        if node is None:
            raise _NoValueError("'**' in a dict is not evaluated")
        return _scalar(self._value(node, names))

    def _binary(self, node: ast.BinOp, left: Any, right: Any) -> object:
        if isinstance(node.op, ast.Add) and type(left) is type(right) and type(left) in (str, list, tuple):
            self._spend(len(left) + len(right))
            return left + right
        one, other = _number(left), _number(right)
        try:
            return _scalar(_OPERATORS[type(node.op)](one, other))
        except ArithmeticError as error:
            raise _NoValueError(f"{_text(node)!r}: {error}") from None

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _NoValueError(f"the file's values are too large: more than {_MAX_SIZE:,} items and characters")

    def _count(self, value: object) -> None:
        left = [value]
        while left:
            item = left.pop()
            self._spend(1 + (len(item) if isinstance(item, str) else 0))
            if isinstance(item, (list, tuple)):
                left += item
            elif isinstance(item, dict):
                left += [*item.keys(), *item.values()]


def _named(name: str, names: Names) -> object:
    given = names.get(name)
    if isinstance(given, Value):
        return given.value
    if given is None:
        raise _NoValueError(f"no name {name!r} is assigned above")
    raise _NoValueError(f"{name!r} is {given.source}", None if given.imported else given)


def _scalar(value: object) -> object:
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int) and abs(value) <= LARGEST_INT:
        return value
    what = "a number of more than 63 bits" if isinstance(value, int) else f"a {type(value).__name__}"
    raise _NoValueError(f"got {what}")


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _NoValueError(f"arithmetic with a {type(value).__name__}")
    return value
