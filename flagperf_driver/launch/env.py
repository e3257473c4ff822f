"""Start one process per rank with the environment variables of torch.distributed's ``env://``."""

from __future__ import annotations

from flagperf_driver.launch import HostSetup, RankProcess, RoundHosts
from flagperf_driver.launch.environment import common_env


def launch(hosts: RoundHosts, noderank: int, setup: HostSetup) -> list[RankProcess]:
    return [_rank(hosts, noderank, setup, local_rank) for local_rank in range(hosts.nproc)]


def _rank(hosts: RoundHosts, noderank: int, setup: HostSetup, local_rank: int) -> RankProcess:
    rank = noderank * hosts.nproc + local_rank
    variables = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": hosts.nnodes * hosts.nproc,
        "LOCAL_WORLD_SIZE": hosts.nproc,
        "NODE_RANK": noderank,
    }
    env = common_env(hosts, noderank, setup) | {name: str(value) for name, value in variables.items()}
    cpus = setup.cpus[local_rank] if setup.cpus else ()
    return RankProcess(rank, local_rank, (setup.python, "-u", setup.program), env, cpus)
