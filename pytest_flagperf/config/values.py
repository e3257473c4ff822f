"""The values of a case's config: where each was set, and those given on the command line."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import redaction
from .module import ConfigError
from .translation import Translated
from .value_types import plain

_PUBLIC = (
    "an address with a user name, a password or a token is not accepted: parameters are stored in the report; set an"
    " environment variable of the ranks instead"
)
CASES_OWN = ("vendor", "data_dir")
"""Keys that a case always sets itself; each has an option of its own."""


@dataclass(frozen=True)
class Value:
    """A value and where it was set; layers are defaults, suite, scale, vendor, setting and case."""

    value: object
    file: str
    line: int
    layer: str

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Deviation:
    """A key that does not have the suite's own value for the scale."""

    key: str
    value: object
    reference: object
    file: str
    line: int


@dataclass(frozen=True)
class Resolved:
    """A case's whole config."""

    values: Mapping[str, Value]
    deviations: tuple[Deviation, ...]
    files: tuple[Path, ...]
    translated: tuple[Translated, ...] = ()
    """Where the vendor's file has the original's names: what became of each."""

    @property
    def config(self) -> dict[str, object]:
        """The bare values, as a training program reads them."""
        return {key: plain(value.value) for key, value in self.values.items()}


def parse_settings(items: Sequence[str], source: str = "") -> dict[str, Value]:
    """``key=value`` each, the value a Python literal or else a string; ``source`` is the file they stand in."""
    where = f"{source}: --set" if source else "--set"
    wrong = [item for item in items if "=" not in item or not item.partition("=")[0].isidentifier()]
    problems = [f"{where} {redaction.assignment(item)}: write key=value" for item in wrong]
    for item in items:
        if (public := redaction.assignment(item)) != item and item not in wrong:
            problems.append(f"{where} {public}: {_PUBLIC}")
    for item in items:
        if (key := item.partition("=")[0]) in CASES_OWN:
            problems.append(f"{where} {key}: {key} is the case's own: use --{key.replace('_', '-')}")
    if problems:
        raise ConfigError(problems)
    pairs = (item.partition("=") for item in items)
    return {key: Value(_literal(text), f"{where} {key}={text}", 0, "setting") for key, _, text in pairs}


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
