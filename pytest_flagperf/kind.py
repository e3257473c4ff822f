"""The kinds of suites: what each does its own way, found by ``kind = NAME`` of suite.toml and of stored runs.

The kinds of pytest-flagperf are in ``kinds/``, one folder each, and are found by the same hook as those of packages.
Everything else asks ``kind_of``, and imports no kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from .problems import Problems

if TYPE_CHECKING:
    from pytest_flagperf.case import Shape
    from pytest_flagperf.catalog.suite import Suite, SuiteTable
    from pytest_flagperf.config import Resolved

_OWN = "pytest_flagperf.kinds"


class Kind:
    """A kind of suites; derive from it, or, for suites with figures, from ``pytest_flagperf.kinds.MeasurementKind``.

    It is asked while tests are collected: its methods import what only they need.
    """

    name: ClassVar[str]
    table: ClassVar[type[SuiteTable]]
    """The keys of a suite.toml of this kind."""
    program: ClassVar[str]
    """The file in the suite's folder that each rank runs."""
    driver: ClassVar[tuple[str, ...]]
    """The folders of flagperf_driver that a rank runs beside the one of its framework; fingerprints contain them."""
    converges: ClassVar[bool] = False
    """Whether a case is meant to reach a target, unless --synthetic or --throughput-only measures throughput only."""
    needs_config: ClassVar[bool] = False
    """Whether cases at the reference scale need data and a config of the vendor."""
    guide: ClassVar[str] = ""
    """The document that describes how to add a suite of this kind."""

    def defaults(self, framework: str, driver: Path) -> list[Path]:
        """Return the files in the folder flagperf_driver with all config keys and their defaults."""
        raise NotImplementedError

    def check(
        self,
        suite: Suite,  # noqa: ARG002
        scale: str,  # noqa: ARG002
        shape: Shape,  # noqa: ARG002
        resolved: Resolved,
    ) -> tuple[Resolved, list[str]]:
        """Return the config of a case, with what follows from its shape, and the problems of its values."""
        return resolved, []


class HasKind(Protocol):
    """A suite, a plan or an outcome."""

    @property
    def kind(self) -> str: ...


def kind_of(one: HasKind) -> Kind:
    """Return the kind of a suite, a plan or an outcome."""
    return kind_named(one.kind)


def kind_named(name: str) -> Kind:
    """Return the kind of this name; Problems if neither pytest-flagperf nor an installed package has it."""
    known = _own() if name in _own() else kinds()
    if name not in known:
        has = ", ".join(known)
        raise Problems([f"kind {name!r} is unknown: install the package that has it; the kinds are {has}"])
    return known[name]


def kinds() -> dict[str, Kind]:
    """Return all kinds by name; Problems if a package has one of a taken name."""
    from .hooks.plugins import named  # commands on stored runs of our own kinds load no plugins

    further = named("flagperf_kinds", Kind, _own())
    return {**_own(), **{name: kind for name, (_, kind) in further.items()}}


@cache
def _own() -> Mapping[str, Kind]:
    return {kind.name: kind for kind in import_module(_OWN).flagperf_kinds()}
