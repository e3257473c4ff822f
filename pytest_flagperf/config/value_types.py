"""What values a key takes: read off its annotation, else off the value it has in the lowest layer."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..catalog import BEST_EFFICIENCY
from ..limits import LARGEST_INT

AT_LEAST_ONE = ("train_batch_size", "eval_batch_size", "gradient_accumulation_steps", "parity_samples", "eval_samples")
EFFICIENCIES = ("min_efficiency",)
NEVER_NEGATIVE = ("_steps", "_epochs", "_samples", "_time_s", "_timeout_s", "_workers", "_freq")
"""How the names of counts and times end."""

_NAMES = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict}
_SAME = {
    "List": "list",
    "Tuple": "list",
    "Sequence": "list",
    "tuple": "list",
    "Dict": "dict",
    "Mapping": "dict",
}
_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a dict",
}


@dataclass(frozen=True)
class ValueType:
    """The types that a key takes; none at all: any. ``choices`` are the only values where there are some."""

    types: tuple[type, ...] = ()
    none: bool = True
    choices: tuple[object, ...] = ()

    def refusal(self, value: object) -> str | None:
        """What would be allowed instead of this value; None where it fits."""
        if value is None:
            return None if self.none or (not self.types and not self.choices) else self._wanted()
        if self.choices:
            return None if any(value == choice for choice in self.choices) else self._wanted()
        if not self.types or any(_fits(value, kind) for kind in self.types):
            return None
        return self._wanted() + _hint(value, self.types)

    def _wanted(self) -> str:
        words = [repr(choice) for choice in self.choices] or [_WORDS[kind] for kind in self.types]
        return " or ".join([*words, "None"] if self.none else words)


def value_type_of(value: object, annotation: str | None, *, none: bool) -> ValueType:
    """By the annotation where it is one that is understood, else by the value; None says nothing."""
    told = _annotated(annotation) if annotation else None
    if told is not None:
        return told
    if value is None:
        return ValueType()
    held = list if isinstance(value, (list, tuple)) else type(value)
    return ValueType((held,) if held in _WORDS else (), none)


def unsayable(value: object) -> str | None:
    """Why a value cannot travel to the hosts in JSON; None where it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return "is not finite; allowed are finite numbers"
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(unsayable, value)), None)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return "is a dict whose keys are not all strings"
        return next(filter(None, map(unsayable, value.values())), None)
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        return "is too large; allowed are whole numbers of at most 64 bits"
    if value is None or isinstance(value, (bool, int, float, str)):
        return None
    return f"holds a {type(value).__name__}, and only plain values travel to the hosts"


def out_of_range(key: str, value: object) -> str | None:
    """Which numbers a key takes, where this is none of them; by its name, as a suite's own keys have no other say."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if key in AT_LEAST_ONE:
        return None if value >= 1 else "is too small; allowed is 1 and more"
    if key in EFFICIENCIES:
        return None if 0 < value <= BEST_EFFICIENCY else f"allowed is more than 0, up to {BEST_EFFICIENCY}"
    if key.endswith(NEVER_NEGATIVE) and value < 0:
        return "is below 0; allowed is 0 and more"
    return None


def plain(value: object) -> object:
    """A copy through and through, of JSON's own types."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def _fits(value: object, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is float:
        return isinstance(value, (int, float))
    return isinstance(value, (list, tuple) if kind is list else kind)


def _hint(value: object, kinds: tuple[type, ...]) -> str:
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"; write {int(value)}"
    return ""


def _annotated(text: str) -> ValueType | None:
    try:
        return _of(ast.parse(text.strip("\"'"), mode="eval").body)
    except SyntaxError:
        return None


def _of(node: ast.expr) -> ValueType | None:
    if isinstance(node, ast.Constant) and node.value is None:
        return ValueType((), none=True)
    if isinstance(node, (ast.Name, ast.Attribute)):
        kind = _NAMES.get(_SAME.get(_name(node), _name(node)))
        return ValueType((kind,), none=False) if kind else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _either([_of(node.left), _of(node.right)])
    if isinstance(node, ast.Subscript):
        return _subscript(_name(node.value), node.slice)
    return None


def _subscript(name: str, inner: ast.expr) -> ValueType | None:
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if name == "Literal":
        return ValueType((), none=False, choices=tuple(part.value for part in parts if isinstance(part, ast.Constant)))
    if name == "Optional":
        return _either([*map(_of, parts), ValueType((), none=True)])
    if name == "Union":
        return _either([*map(_of, parts)])
    kind = _NAMES.get(_SAME.get(name, name))
    return ValueType((kind,), none=False) if kind else None


def _either(kinds: list[ValueType | None]) -> ValueType | None:
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    types = tuple(held for kind in known for held in kind.types)
    return ValueType(types, any(kind.none for kind in known), tuple(c for kind in known for c in kind.choices))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
