"""The kind of a config key: from its annotation, else from its value in the lowest layer."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args

from flagperf_driver.node.logs.whole_numbers import LARGEST_INT

from ..catalog import BEST_EFFICIENCY
from ..problems import shown
from ..typed import Check, choices_of

AT_LEAST_ONE = ("train_batch_size", "eval_batch_size", "gradient_accumulation_steps", "parity_samples", "eval_samples")
EFFICIENCIES = ("min_efficiency",)
NEVER_NEGATIVE = ("_steps", "_epochs", "_samples", "_time_s", "_timeout_s", "_interval_s", "_workers", "_freq")
"""Suffixes of the names of counts and times."""

_KINDS = {"bool": bool, "int": int, "float": float, "str": str, "list": list[Any], "tuple": list[Any], "dict": dict}
_PAIRS = re.compile(r"[a-z_]+=-?\d{1,9}(,[a-z_]+=-?\d{1,9})*")
_CHECK = Check(python=True)


def kind_of_key(value: object, annotation: str | None, *, none: bool) -> Any:
    """Return the kind of a known annotation, else that of the value; a value None allows any."""
    name = type(value).__name__
    return _annotated(annotation or "") or _annotated(f"{name} | None" if none else name) or Any


def kind_problem(value: object, kind: Any) -> str | None:
    """Return the problem of a value that is not a choice, or has another type; None for a valid value."""
    if (expected := _CHECK.expected(value, kind)) is None:
        return None
    is_choice = isinstance(value, str) and choices_of(kind)
    return f"expected {expected}" if is_choice else f"is {shown(value)}; expected {expected}"


def read_value(value: object, kind: Any) -> object:
    """Return the dict that a text such as ``shard=4,tensor=2`` means where a dict is allowed, else the value."""
    if dict not in (kind, *get_args(kind)) or not isinstance(value, str) or not _PAIRS.fullmatch(value):
        return value
    pairs = [pair.split("=") for pair in value.split(",")]
    sizes = {name: int(number) for name, number in pairs}
    return sizes if len(sizes) == len(pairs) else value  # a repeated name is an error


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


def is_size(key: str, text: str) -> bool:
    """Return True if a key is a size, such as a batch: a whole number, but no count of steps, time or seed."""
    return re.fullmatch("[1-9][0-9]*", text) is not None and key != "seed" and not key.endswith(NEVER_NEGATIVE)


def plain(value: object) -> object:
    """Return a deep copy with JSON's types."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


@cache
def _annotated(text: str) -> Any:
    """Return the kind that an annotation means; None for an unknown one."""
    try:
        return _kind(ast.parse(text.strip("\"'"), mode="eval").body)
    except SyntaxError:
        return None


def _kind(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and node.value is None:
        return type(None)
    if isinstance(node, ast.Name):
        return _KINDS.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        left, right = _kind(node.left), _kind(node.right)
        return left | right if left and right else None
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        if node.value.id != "Literal":
            return _KINDS.get(node.value.id)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return Literal[tuple(part.value for part in parts if isinstance(part, ast.Constant))]
    return None
