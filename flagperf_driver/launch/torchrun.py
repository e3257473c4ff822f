"""Start one torchrun process per host, with a static rendezvous; each rank redirects its own output."""

from __future__ import annotations

from flagperf_driver.launch import HostSetup, RankProcess, RoundHosts
from flagperf_driver.launch.environment import common_env

FRAMEWORKS = frozenset(["pytorch"])


def launch(hosts: RoundHosts, noderank: int, setup: HostSetup) -> list[RankProcess]:
    options = {
        "nnodes": hosts.nnodes,
        "nproc-per-node": hosts.nproc,
        "node-rank": noderank,
        "master-addr": hosts.master_addr,
        "master-port": hosts.master_port,
        "max-restarts": 0,  # report a rank that died; do not retry
    }
    switches = (f"--{name}={value}" for name, value in options.items())
    argv = (setup.python, "-u", "-m", "torch.distributed.run", *switches, setup.program)
    first = noderank * hosts.nproc
    env = common_env(hosts, noderank, setup) | {"NODE_RANK": str(noderank)}
    # torchrun does not bind its ranks, so it may use the cores of all of them.
    cpus = tuple(sorted({cpu for cores in setup.cpus for cpu in cores})) if all(setup.cpus) else ()
    return [RankProcess(first, 0, argv, env, cpus, tuple(range(first, first + hosts.nproc)))]
