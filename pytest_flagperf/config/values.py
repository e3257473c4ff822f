"""The values of a case's config: where each was set, and those given on the command line."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import redaction
from ..stored.plan import Deviation, Value
from .module import ConfigError
from .translation import Translated
from .value_types import plain

_PUBLIC = (
    "an address with a user name, a password or a token is not accepted: parameters are stored in the report; set an"
    " environment variable of the ranks instead"
)
CASES_OWN = ("vendor", "data_dir")
"""Keys that a case always sets; each has its own option."""


@dataclass(frozen=True)
class Resolved:
    """The complete config of a case."""

    values: Mapping[str, Value]
    deviations: tuple[Deviation, ...]
    files: tuple[Path, ...]
    translated: tuple[Translated, ...] = ()
    """The outcome of each FlagPerf name in the vendor's file."""

    @property
    def config(self) -> dict[str, object]:
        """The values without their origins, for the training program."""
        return {key: plain(value.value) for key, value in self.values.items()}


def parse_settings(items: Sequence[str], source: str = "") -> dict[str, Value]:
    """Parse ``key=value`` items; a value is a Python literal, else a string. ``source`` is the file with the items."""
    where = f"{source}: --set" if source else "--set"
    invalid = [item for item in items if "=" not in item or not item.partition("=")[0].isidentifier()]
    problems = [f"{where} {redaction.assignment(item)}: expected key=value" for item in invalid]
    for item in items:
        if (public := redaction.assignment(item)) != item and item not in invalid:
            problems.append(f"{where} {public}: {_PUBLIC}")
    for item in items:
        if (key := item.partition("=")[0]) in CASES_OWN:
            problems.append(f"{where} {key}: cannot be set; use --{key.replace('_', '-')}")
    if problems:
        raise ConfigError(problems)
    pairs = (item.partition("=") for item in items)
    return {key: Value(_literal(text), f"{where} {key}={text}", 0, "setting") for key, _, text in pairs}


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
