"""Names of the files in a host's folder of a round, used by the harness and the driver."""

from __future__ import annotations

CASE = "case.json"
"""The settings of the round, read by each rank."""
MILESTONE_TIMES = "milestones.json"
"""The times at which the agent saw its ranks' milestones."""
SAVE_STATE = "save_state.json"
"""The agent's request that the first rank's training saves its state; the rank removes it when it obeys."""
ORDERS_ASKED, ORDER = "agent.orders", "agent.order.json"
"""The pipe by which the first rank asks the agent for the order of an epoch's data, and the agent's answer."""
SYSTEM = "sys_info.log"
HOST_SERIES, LOAD_SERIES, DEVICE_SERIES = "host.series.csv", "load.series.csv", "devices.series.csv"
MONITORS = "monitors.json"
"""The sampler's report about itself, the host and the devices."""


def rank_log(rank: int) -> str:
    return f"rank{rank}.out.log"


def rank_exit(rank: int) -> str:
    """Return the name of the file that says how a rank ended."""
    return f"rank{rank}.exit.json"


def task_log(framework: str) -> str:
    """Return the name of the agent's log."""
    return f"start_{framework}_task.log"


def monitor_log(name: str) -> str:
    """Return the name of a monitor's log (one kind of samples, or one vendor's devices) in FlagPerf's format."""
    return f"{name}_monitor.log"
