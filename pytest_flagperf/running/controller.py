"""The load and memory of the controller, which is the machine that runs pytest, and what pytest-flagperf used there.

The agents sample the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping

Figures = Mapping[str, float]


def before_run() -> Figures:
    """Return the number of cores, the load average of one minute, and the total and available memory in bytes."""
    import psutil

    memory = psutil.virtual_memory()
    return {
        "cores": psutil.cpu_count() or 1,
        "load_1min": round(psutil.getloadavg()[0], 2),
        "memory": memory.total,
        "memory_available": memory.available,
    }


def own_cost() -> Figures:
    """Return the CPU time of this process in seconds, without its children, and its memory in bytes."""
    import psutil

    process = psutil.Process()
    with process.oneshot():
        times = process.cpu_times()
        return {"harness_cpu_s": round(times.user + times.system, 2), "harness_memory": process.memory_info().rss}
