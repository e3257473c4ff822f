"""One process per rank, by torch.distributed's ``env://`` contract: no second import, exact exit codes."""

from __future__ import annotations

from flagperf_driver.launch import RankProcess, Site, World
from flagperf_driver.launch.environment import common_env


def launch(world: World, noderank: int, site: Site) -> list[RankProcess]:
    return [_rank(world, noderank, site, local_rank) for local_rank in range(world.nproc)]


def _rank(world: World, noderank: int, site: Site, local_rank: int) -> RankProcess:
    rank = noderank * world.nproc + local_rank
    place = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": world.nnodes * world.nproc,
        "LOCAL_WORLD_SIZE": world.nproc,
        "NODE_RANK": noderank,
    }
    env = common_env(world, noderank, site) | {name: str(value) for name, value in place.items()}
    cpus = site.cpus[local_rank] if site.cpus else ()
    return RankProcess(rank, local_rank, (site.python, "-u", site.program), env, cpus)
