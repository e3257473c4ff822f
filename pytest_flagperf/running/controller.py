"""The machine that runs pytest: its load and memory before a run, and what the harness itself used.

psutil reads this machine only; the agent samples the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping

Figures = Mapping[str, float]


def before_run() -> Figures:
    """Return the cores, the load of the last minute, and the memory in bytes, all of it and what is available."""
    import psutil

    memory = psutil.virtual_memory()
    return {
        "cores": psutil.cpu_count() or 1,
        "load_1min": round(psutil.getloadavg()[0], 2),
        "memory": memory.total,
        "memory_available": memory.available,
    }


def own_cost() -> Figures:
    """Return the CPU time of this process in seconds, without that of its children, and its memory in bytes."""
    import psutil

    process = psutil.Process()
    with process.oneshot():
        times = process.cpu_times()
        return {"harness_cpu_s": round(times.user + times.system, 2), "harness_memory": process.memory_info().rss}
