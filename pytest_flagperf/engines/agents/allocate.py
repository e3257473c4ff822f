"""The allocation of a run: who gives its hosts, from the options and the settings file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flagperf_driver.node.agent import archive
from flagperf_driver.node.agent.archive import LogLimits
from pytest_flagperf import original
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.engines.agents.slurm import config as slurm
from pytest_flagperf.hosts.cluster import ClusterConfig, read_cluster, split_hosts
from pytest_flagperf.plan import Plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.settings import Settings

from .allocation import Allocation, FixedHosts


def allocate(settings: Settings, catalog: Catalog, root: Path) -> tuple[Allocation, LogLimits]:
    """Return who gives the hosts, and the limits of a round's logs from one host."""
    conf = None
    slurm_conf = slurm.SlurmConfig()
    if settings.slurm_table is not None:  # checked also if it is not used
        slurm_conf = slurm.read_slurm(settings.slurm_table.table, settings.slurm_table.file)
    if settings.cluster_conf and not settings.commanded("cluster"):
        conf = original.read_cluster_conf(root / settings.cluster_conf)
    elif settings.cluster_table is not None:
        conf = read_cluster(settings.cluster_table.table, settings.cluster_table.file)
    limits = conf or ClusterConfig()
    return (
        _slurm(settings, catalog, slurm_conf)
        if settings.cluster == slurm.NAME
        else FixedHosts(_cluster(settings, conf)),
        LogLimits(limits.max_log_gib * archive.GIB, limits.max_log_entries),
    )


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


def _slurm(settings: Settings, catalog: Catalog, conf: slurm.SlurmConfig) -> Allocation:
    from .slurm.allocation import slurm_allocation  # only runs with Slurm need it

    def exclusive(plan: Plan) -> bool:
        return (settings.lease or catalog.vendors[plan.vendor].toml.lease) == "host"

    return slurm_allocation(conf, exclusive, settings.lease_time)
