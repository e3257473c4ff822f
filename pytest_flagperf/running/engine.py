"""The engine that the settings select."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_flagperf import original
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.engines import Engine
from pytest_flagperf.engines.agents.engine import AgentsEngine
from pytest_flagperf.hosts.cluster import ClusterConfig, read_cluster, split_hosts
from pytest_flagperf.problems import Problems
from pytest_flagperf.settings import Settings


def open_engine(settings: Settings, catalog: Catalog, root: Path) -> tuple[Settings, Engine, int]:
    """Return the settings with what the engine adds to them, the engine, and its number of hosts."""
    if settings.engine == "modelarts":
        return _open_modelarts(settings, catalog)
    cluster = _cluster(settings, root)
    return settings, AgentsEngine(settings, catalog, cluster), len(cluster.addresses()) if cluster else 1


def _open_modelarts(settings: Settings, catalog: Catalog) -> tuple[Settings, Engine, int]:
    # Imported only for this engine, since few runs need it.
    from pytest_flagperf.engines.modelarts.config import read_config
    from pytest_flagperf.engines.modelarts.engine import DATA_DIR, ModelArtsEngine

    for option in ("cluster", "cluster_conf"):
        if settings.commanded(option):
            raise Problems([f"{settings.as_written(option)}: --engine=modelarts runs on instances of ModelArts only"])
    config = read_config(settings.modelarts_table)
    added: dict[str, Any] = {} if settings.given("runtime") else {"runtime": "host"}
    if not settings.data_dir:
        added["data_dir"] = DATA_DIR
    sources = {**settings.sources, **dict.fromkeys(added, f"{config.source}: modelarts")}
    settings = replace(settings, **added, sources=sources)
    return settings, ModelArtsEngine(settings, catalog, config), 1 if config.single_server else config.instances


def _cluster(settings: Settings, root: Path) -> ClusterConfig | None:
    """Return the requested hosts; None for this machine."""
    conf = None
    if settings.cluster_conf and not settings.commanded("cluster"):
        conf = original.read_cluster_conf(root / settings.cluster_conf)
    elif settings.cluster_table is not None:
        conf = read_cluster(settings.cluster_table.table, settings.cluster_table.file)
    if settings.cluster is not None:
        option = settings.as_written("cluster")
        if not split_hosts(settings.cluster):
            raise Problems([f"{option}: no host; expected at least one, as in --cluster=gpu1,gpu2"])
        conf = replace(conf or ClusterConfig(), hosts=split_hosts(settings.cluster), source=option)
    if conf is not None:
        conf.addresses()  # raises Problems for invalid names
    return conf
