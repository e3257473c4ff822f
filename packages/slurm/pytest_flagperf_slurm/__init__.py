"""The engine ``slurm`` of pytest-flagperf: rounds on the nodes of Slurm jobs. ``--cluster=slurm`` selects it, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_flagperf.hooks import EngineFactory, hookimpl

if TYPE_CHECKING:
    from pytest_flagperf.catalog import Catalog
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.settings import Settings, SiteTable

    from .allocation import SlurmAllocation


@hookimpl
def flagperf_engines() -> list[EngineFactory]:
    return [EngineFactory("slurm", open_engine)]


def open_engine(settings: Settings, catalog: Catalog, table: SiteTable) -> SlurmAllocation:
    """Return the hosts of Slurm jobs; Problems with all that is wrong in the table."""
    # Imported only for this engine: pytest imports each plugin.
    from .allocation import slurm_allocation
    from .config import SlurmConfig, read_slurm

    def exclusive(plan: Plan) -> bool:
        return (settings.lease or catalog.vendors[plan.vendor].toml.lease) == "host"

    conf = read_slurm(table.table, table.file) if table.table else SlurmConfig()
    return slurm_allocation(conf, exclusive, settings.lease_time)
