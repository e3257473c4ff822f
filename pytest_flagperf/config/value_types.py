"""The type of a config key: from its annotation, else from its value in the lowest layer."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from flagperf_driver.node.logs.whole_numbers import LARGEST_INT

from ..catalog import BEST_EFFICIENCY

AT_LEAST_ONE = ("train_batch_size", "eval_batch_size", "gradient_accumulation_steps", "parity_samples", "eval_samples")
EFFICIENCIES = ("min_efficiency",)
NEVER_NEGATIVE = ("_steps", "_epochs", "_samples", "_time_s", "_timeout_s", "_interval_s", "_workers", "_freq")
"""Suffixes of the names of counts and times."""

_NAMES = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict}
_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a dict",
}

_PAIRS = re.compile(r"[a-z_]+=-?\d{1,9}(,[a-z_]+=-?\d{1,9})*")


@dataclass(frozen=True)
class ValueType:
    """The types that a key allows; without types, any. If ``choices`` is set, only these values are allowed."""

    types: tuple[type, ...] = ()
    none: bool = True
    choices: tuple[object, ...] = ()

    def expectation(self, value: object) -> str | None:
        """Return what is expected instead of this value; None if the value is allowed."""
        if not self.types and not self.choices:
            return None
        if value is None:
            return None if self.none else self._words()
        if any(value == choice for choice in self.choices) or any(_fits(value, kind) for kind in self.types):
            return None
        return self._words() + _hint(value, self.types)

    def read(self, value: object) -> object:
        """Return the dict that a text such as ``shard=4,tensor=2`` means where a dict is allowed, else the value."""
        if dict not in self.types or not isinstance(value, str) or not _PAIRS.fullmatch(value):
            return value
        pairs = [pair.split("=") for pair in value.split(",")]
        sizes = {name: int(number) for name, number in pairs}
        return sizes if len(sizes) == len(pairs) else value  # a repeated name is an error

    def _words(self) -> str:
        words = [*map(repr, self.choices), *(_WORDS[kind] for kind in self.types)]
        return " or ".join([*words, "None"] if self.none else words)


def value_type_of(value: object, annotation: str | None, *, none: bool) -> ValueType:
    """Return the type of a known annotation, else the type of the value; a value None allows any type."""
    annotated = _annotated(annotation) if annotation else None
    if annotated is not None:
        return annotated
    if value is None:
        return ValueType()
    of_value = list if isinstance(value, (list, tuple)) else type(value)
    return ValueType((of_value,) if of_value in _WORDS else (), none)


def not_json(value: object) -> str | None:
    """Return why a value cannot be sent to the hosts as JSON; None if it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return "expected a finite number"
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(not_json, value)), None)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return "expected a dict with strings as keys"
        return next(filter(None, map(not_json, value.values())), None)
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        return "expected a whole number of at most 64 bits"
    if value is None or isinstance(value, (bool, int, float, str)):
        return None
    return f"contains a {type(value).__name__}; expected numbers, strings, booleans, None, lists and dicts only"


def out_of_range(key: str, value: object) -> str | None:
    """Return the range of a key if the number is outside; the key's name decides, also for a suite's own keys."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if key in AT_LEAST_ONE:
        return None if value >= 1 else "expected at least 1"
    if key in EFFICIENCIES:
        return None if 0 < value <= BEST_EFFICIENCY else f"expected more than 0 and at most {BEST_EFFICIENCY}"
    if key.endswith(NEVER_NEGATIVE) and value < 0:
        return "expected at least 0"
    return None


def plain(value: object) -> object:
    """Return a deep copy with JSON's types."""
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
        return _type_of(ast.parse(text.strip("\"'"), mode="eval").body)
    except SyntaxError:
        return None


def _type_of(node: ast.expr) -> ValueType | None:
    if isinstance(node, ast.Constant) and node.value is None:
        return ValueType((), none=True)
    if isinstance(node, ast.Name):
        return _named(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([_type_of(node.left), _type_of(node.right)])
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if node.value.id != "Literal":
            return _named(node.value.id)
        choices = tuple(part.value for part in parts if isinstance(part, ast.Constant))
        return ValueType((), none=False, choices=choices)
    return None


def _named(name: str) -> ValueType | None:
    return ValueType((_NAMES[name],), none=False) if name in _NAMES else None


def _union(kinds: list[ValueType | None]) -> ValueType | None:
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    types = tuple(member for kind in known for member in kind.types)
    return ValueType(types, any(kind.none for kind in known), tuple(c for kind in known for c in kind.choices))
