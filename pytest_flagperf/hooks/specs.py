"""The hooks that a plugin may define, and the types of what they return.

The types of other packages are imported for annotations only, so that every layer can call hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from pytest_flagperf.catalog import Catalog
    from pytest_flagperf.engines import Engine
    from pytest_flagperf.engines.agents.allocation import Allocation
    from pytest_flagperf.kind import Kind
    from pytest_flagperf.results import Outcome, StoredRun, Verdict
    from pytest_flagperf.settings import Settings, SiteTable

PROJECT = "flagperf"
"""The name of pluggy's project, and of the group of entry points that lists the plugins."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""The decorator for the hooks of a plugin."""


@dataclass(frozen=True)
class Exporter:
    """A format of ``flagperf export --format=NAME``.

    ``write(runs, folder)`` writes its files into an empty folder, from which they are moved to the user's folder; files
    of the same name are replaced.
    """

    name: str
    write: Callable[[Sequence[StoredRun], Path], None]


@dataclass(frozen=True)
class EngineFactory:
    """An engine of ``--engine=NAME``.

    ``open(settings, catalog, table)`` returns the engine, or an allocation whose hosts run rounds under agents, and
    starts nothing. ``table`` is [engines.NAME] of the settings file, not yet checked; it is empty if the file has no
    such table. ``defaults`` are values of options, by their names in ``Settings``, for runs that do not set them.
    """

    name: str
    open: Callable[[Settings, Catalog, SiteTable], Engine | Allocation]
    defaults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A command ``flagperf NAME``.

    ``module`` has ``add_arguments(parser)`` and ``run(arguments)``, which returns the exit code. Its docstring is the
    help. It may have ``EXAMPLE``, arguments that the help shows.
    """

    name: str
    module: ModuleType


@dataclass(frozen=True)
class Page:
    """A page of a run, ``NAME.html`` in its directory; the functions get the directory and the path of a page.

    ``extension`` returns what the page of pytest-html shows before the tests, ``standalone`` a complete page.
    """

    name: str
    extension: Callable[[Path, Path], str]
    standalone: Callable[[Path, Path], str]


@hookspec
def flagperf_roots() -> Iterable[str | Path]:  # type: ignore[empty-body]
    """Return folders with vendors/ or suites/, as ``--roots`` adds them."""


@hookspec
def flagperf_kinds() -> Iterable[Kind]:  # type: ignore[empty-body]
    """Return further kinds of suites."""


@hookspec
def flagperf_verdicts(rounds: Sequence[Outcome]) -> Iterable[Verdict]:  # type: ignore[empty-body]
    """Return further verdicts on the rounds of a case; read nothing but the outcomes.

    The name of each verdict gets the name of the plugin as a prefix: ``power`` of plugin ``lab`` becomes ``lab.power``.
    """


@hookspec
def flagperf_exporters() -> Iterable[Exporter]:  # type: ignore[empty-body]
    """Return further formats of ``flagperf export``."""


@hookspec
def flagperf_pages() -> Iterable[Page]:  # type: ignore[empty-body]
    """Return further pages of a run."""


@hookspec
def flagperf_engines() -> Iterable[EngineFactory]:  # type: ignore[empty-body]
    """Return further engines."""


@hookspec
def flagperf_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Return further commands of ``flagperf``."""
