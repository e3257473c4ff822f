"""The engine that the settings select."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pytest_flagperf import original
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.engines import Engine
from pytest_flagperf.engines.agents.agents_engine import AgentsEngine
from pytest_flagperf.engines.agents.allocation import Allocation, FixedHosts
from pytest_flagperf.hooks import EngineFactory, Plugin
from pytest_flagperf.hooks.plugins import guard, named
from pytest_flagperf.hosts.cluster import ClusterConfig, read_cluster, split_hosts
from pytest_flagperf.packages import OWN, advice
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.settings import ENGINES, Settings, SiteTable
from pytest_flagperf.stored import FormatError, WriteError

_SLURM = "slurm"
"""The engine of a package that ``--cluster=slurm`` selects, too."""
_PARTS = [name for name in vars(Engine) if not name.startswith("_")]
"""The methods and properties of every engine."""


def open_engine(settings: Settings, catalog: Catalog, root: Path) -> Engine:
    """Return the engine; Problems if it cannot run with these settings."""
    if settings.engine_tables:
        _check_tables(settings.engine_tables)
    if settings.engine not in ENGINES:
        return _open_further(settings, catalog, root, settings.engine, "engine")
    if settings.cluster == _SLURM:
        return _open_further(settings, catalog, root, _SLURM, "cluster")
    return _open_agents(settings, catalog, root)


# -- our own engine -----------------------------------------------------------------------------------------


def _open_agents(settings: Settings, catalog: Catalog, root: Path) -> Engine:
    """Return the engine for this machine or for the hosts of a cluster."""
    conf = None
    if settings.cluster_conf and not settings.commanded("cluster"):
        conf = original.read_cluster_conf(root / settings.cluster_conf)
    elif settings.cluster_table is not None:
        conf = read_cluster(settings.cluster_table.table, settings.cluster_table.file)
    return AgentsEngine(settings, catalog, FixedHosts(_cluster(settings, conf)))


def _cluster(settings: Settings, conf: ClusterConfig | None) -> ClusterConfig | None:
    """Return the requested hosts; None for this machine."""
    if settings.cluster is not None:
        option = settings.as_written("cluster")
        if not split_hosts(settings.cluster):
            raise Problems([f"{option}: no host; expected at least one, as in --cluster=gpu1,gpu2"])
        conf = replace(conf or ClusterConfig(), hosts=split_hosts(settings.cluster), source=option)
    if conf is not None:
        conf.addresses()  # raises Problems for invalid names
    return conf


# -- the engine of a plugin ---------------------------------------------------------------------------------


def _open_further(settings: Settings, catalog: Catalog, root: Path, name: str, option: str) -> Engine:
    """Return a plugin's engine, which an option names.

    Problems if no plugin has the engine, or if the plugin raises an exception.
    """
    factories = named("flagperf_engines", EngineFactory, ENGINES)
    known = [*ENGINES, *factories]
    if name not in factories:
        choices = f"; choose from {', '.join(known)}"
        problem = advice(name) or f"unknown engine{near(name, known) or choices}"
        raise Problems([f"{settings.as_written(option)}: {problem}"])
    for other in ("cluster", "cluster_conf"):
        if settings.commanded(other) and option == "engine":
            raise Problems([f"{settings.as_written(other)}: only --engine=agents runs on the hosts of this option"])
    plugin, factory = factories[name]
    table = settings.engine_tables.get(name, SiteTable({}, root / "flagperf.toml"))
    opened = guard(plugin, f"engine {name}", lambda: factory.open(settings, catalog, table))
    engine = AgentsEngine(settings, catalog, opened) if isinstance(opened, Allocation) else opened
    missing = [
        part for part in _PARTS if not hasattr(type(engine), part) and part not in getattr(engine, "__dict__", ())
    ]
    if missing:
        problem = f"{type(engine).__name__} lacks {', '.join(missing)}; derive it from pytest_flagperf.engines.Engine"
        raise Problems([f"{plugin.label}: engine {name}: {problem}"])
    # The advice to uninstall a package does not suit an engine of our own wheel.
    return engine if plugin.package == OWN else cast("Engine", _GuardedEngine(plugin, name, engine))


def _check_tables(tables: Mapping[str, SiteTable]) -> None:
    """Raise Problems for misspelled names of [engines.NAME]; another engine may be installed on other machines."""
    factories = named("flagperf_engines", EngineFactory, ENGINES)
    problems = []
    for name, table in tables.items():
        if name in ENGINES:
            problems.append(f"{table.file}: [engines.{name}]: the table of this engine is [cluster]")
        elif name not in factories and (hint := near(name, factories)):
            problems.append(f"{table.file}: [engines.{name}]: unknown engine{hint}")
    if problems:
        raise Problems(problems)


class _GuardedEngine:
    """An engine of a plugin: an unforeseen exception becomes Problems that name its package."""

    def __init__(self, plugin: Plugin, name: str, engine: Engine) -> None:
        self._plugin, self._name, self._engine = plugin, name, engine

    def __getattr__(self, part: str) -> Any:
        def guarded(work: Callable[[], Any]) -> Any:
            return guard(self._plugin, f"engine {self._name}: {part}", work, (WriteError, FormatError))

        value = guarded(lambda: getattr(self._engine, part))
        if not callable(value):
            return value
        return lambda *arguments, **named_arguments: guarded(lambda: value(*arguments, **named_arguments))
