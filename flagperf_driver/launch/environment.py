"""The environment variables of all processes of a host, with any launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flagperf_driver.launch import Site, World


def common_env(world: World, noderank: int, site: Site) -> dict[str, str]:
    """Where ranks meet, their threads, files and devices."""
    env = {
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
        "OMP_NUM_THREADS": str(world.threads_per_rank),
        # Spinning threads of one rank take the cores of another.
        "OMP_WAIT_POLICY": "PASSIVE",
        "FLAGPERF_CASE": site.case_file,
        "FLAGPERF_LOG_DIR": site.log_dir,
        "PYTHONPATH": f"{site.code_root}:{site.code_root}/suites",
    }
    if world.visible_devices_env:
        env[world.visible_devices_env] = ",".join(map(str, world.devices_of(noderank)))
    return env
