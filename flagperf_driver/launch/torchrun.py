"""torchrun with a static rendezvous: one process per host starts the ranks; each redirects its own log."""

from __future__ import annotations

from flagperf_driver.launch import RankProcess, Site, World
from flagperf_driver.launch.environment import common_env

FRAMEWORKS = frozenset(["pytorch"])


def launch(world: World, noderank: int, site: Site) -> list[RankProcess]:
    options = {
        "nnodes": world.nnodes,
        "nproc-per-node": world.nproc,
        "node-rank": noderank,
        "master-addr": world.master_addr,
        "master-port": world.master_port,
        "max-restarts": 0,  # a rank that died is a fault, not something to try again
    }
    switches = (f"--{name}={value}" for name, value in options.items())
    argv = (site.python, "-u", "-m", "torch.distributed.run", *switches, site.program)
    first = noderank * world.nproc
    env = common_env(world, noderank, site) | {"NODE_RANK": str(noderank)}
    cpus = tuple(sorted({cpu for its in site.cpus for cpu in its})) if all(site.cpus) else ()  # it binds no rank itself
    return [RankProcess(first, 0, argv, env, cpus, tuple(range(first, first + world.nproc)))]
