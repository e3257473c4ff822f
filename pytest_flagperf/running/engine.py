"""The engine that the settings select."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_flagperf.catalog import Catalog
from pytest_flagperf.engines import Engine
from pytest_flagperf.engines.agents.allocations.choice import allocate
from pytest_flagperf.engines.agents.engine import AgentsEngine
from pytest_flagperf.problems import Problems
from pytest_flagperf.settings import Settings


def open_engine(settings: Settings, catalog: Catalog, root: Path) -> tuple[Settings, Engine, int]:
    """Return the settings with what the engine adds to them, the engine, and its number of hosts."""
    if settings.engine == "modelarts":
        return _open_modelarts(settings, catalog)
    allocation, limits = allocate(settings, catalog, root)
    count = sys.maxsize if allocation.host_count is None else allocation.host_count
    return settings, AgentsEngine(settings, catalog, allocation, limits), count


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
