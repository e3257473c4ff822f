"""Environment variables that all launchers set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flagperf_driver.launch import HostSetup, RoundHosts


def common_env(hosts: RoundHosts, noderank: int, setup: HostSetup) -> dict[str, str]:
    """Return the variables for a host's processes: the master's address, threads, files and devices."""
    env = {
        "MASTER_ADDR": hosts.master_addr,
        "MASTER_PORT": str(hosts.master_port),
        "OMP_NUM_THREADS": str(hosts.threads_per_rank),
        # Threads that wait actively would take cores from other ranks.
        "OMP_WAIT_POLICY": "PASSIVE",
        "FLAGPERF_CASE": setup.case_file,
        "FLAGPERF_LOG_DIR": setup.log_dir,
        "PYTHONPATH": f"{setup.code_root}:{setup.code_root}/suites",
    }
    if hosts.visible_devices_env:
        env[hosts.visible_devices_env] = ",".join(map(str, hosts.devices_of(noderank)))
    return env
