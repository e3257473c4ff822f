"""The names of the files that a host writes into its folder of a round, for both sides."""

from __future__ import annotations

CASE = "case.json"
"""What a rank reads before it trains."""
LAUNCHER_LOG = "launcher.log"
"""The log of a launcher that starts several ranks; the ranks have logs of their own."""
MILESTONE_TIMES = "milestones.json"
"""When the agent saw the milestones of its ranks."""
SYSTEM = "sys_info.log"
HOST_SERIES, LOAD_SERIES, DEVICE_SERIES = "host.series.csv", "load.series.csv", "devices.series.csv"
MONITORS = "monitors.json"
"""What the sampler says of itself, of the host and of the devices."""


def rank_log(rank: int) -> str:
    return f"rank{rank}.out.log"


def rank_exit(rank: int) -> str:
    """How a rank ended."""
    return f"rank{rank}.exit.json"


def task_log(framework: str) -> str:
    """The agent's own log."""
    return f"start_{framework}_task.log"


def monitor_log(name: str) -> str:
    """The samples of one kind, or of one vendor's devices, in the original's format."""
    return f"{name}_monitor.log"
