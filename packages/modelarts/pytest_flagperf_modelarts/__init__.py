"""The engine ``modelarts`` of pytest-flagperf: rounds are training jobs of Huawei Cloud ModelArts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_flagperf.hooks import EngineFactory, hookimpl

if TYPE_CHECKING:
    from pytest_flagperf.catalog import Catalog
    from pytest_flagperf.engines import Engine
    from pytest_flagperf.settings import Settings, SiteTable

NAME = "modelarts"
DATA_DIR = "/home/ma-user/modelarts/inputs/data_url_0"
"""The documented folder of a job's input; each instance replaces it by the folder that it really has."""


@hookimpl
def flagperf_engines() -> list[EngineFactory]:
    return [EngineFactory(NAME, open_engine, {"runtime": "host", "data_dir": DATA_DIR})]


def open_engine(settings: Settings, catalog: Catalog, table: SiteTable) -> Engine:
    """Return the engine; Problems with all that is wrong in the table."""
    # Imported only for this engine: pytest imports each plugin.
    from .config import read_config
    from .engine import ModelArtsEngine

    return ModelArtsEngine(settings, catalog, read_config(table))
