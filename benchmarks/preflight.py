"""The time of preflight on many hosts: cold, with new connections and code to copy, and again."""

from __future__ import annotations

import time

from pytest_flagperf.engines.agents.preflight import HostRequirements, inspect
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.host_pool import run_on_each
from pytest_flagperf.hosts.ssh import ssh_hosts
from tests.lab.lab import Lab

from .section import Goal, Section, table

HOSTS = 32


def measure() -> Section:
    """Run preflight on new hosts twice."""
    with Lab() as lab:
        conf = lab.ssh_settings(lab.hosts(HOSTS, fresh=True))
        hosts, took = ssh_hosts(conf), []
        try:
            for _ in range(2):
                began = time.perf_counter()
                inspect(hosts, HostRequirements(pack({}), nnodes=2))
                took.append(time.perf_counter() - began)
        finally:
            run_on_each(hosts, lambda host: host.close())
    rows = [(str(HOSTS), *(f"{seconds:.1f} s" for seconds in took))]
    goal = Goal(f"{HOSTS} hosts, cold", 10, took[0], "s", noise=0.2)
    return Section([table(("hosts", "cold", "again"), rows)], [goal])
