"""The CPU time of the sampler as a share of one core: host only and with eight devices, at several rates.

The devices are the tests' replacement for NVML, which replies at once. A real driver takes longer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.helpers.sampling import Running, code_root, gpus

from .section import Goal, Section, table

DEVICES = 8
SECONDS = 20.0
"""The length of each measurement."""
CASES: Mapping[str, Mapping[str, object]] = {
    "the host, each second": {"every_s": 1.0},
    f"the host and {DEVICES} devices, each second (default)": {"every_s": 1.0, "device_every_s": 1.0, "nvml": True},
    f"the host and {DEVICES} devices, 10 times a second": {"every_s": 0.1, "device_every_s": 0.1, "nvml": True},
    f"{DEVICES} devices, 100 times a second": {"every_s": 1.0, "device_every_s": 0.01, "nvml": True},
}
JUDGED = f"the host and {DEVICES} devices, 10 times a second"


def busy_s(pid: int) -> float:
    """Return the CPU time of all threads; schedstat has nanoseconds, /proc/<pid>/stat only hundredths of a second."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def share_of_a_core(orders: Mapping[str, Any]) -> tuple[float, int]:
    """Return the sampler's percentage of a core and its missed samples."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, env = gpus(folder, DEVICES)
        running = Running(code_root(folder), folder / "out", env, **orders)
        time.sleep(2)
        start, before = busy_s(running.process.pid), time.monotonic()
        time.sleep(SECONDS)
        share = (busy_s(running.process.pid) - start) / (time.monotonic() - before)
        running.end()
        schedule = running.report()["schedule"]
        fastest = schedule["devices" if "devices" in schedule else "host"]
        return share * 100, fastest["missed"]


def measure() -> Section:
    """Sample at each rate."""
    costs = {name: share_of_a_core(orders) for name, orders in CASES.items()}
    rows = [(name, f"{share:.2f} %", str(missed)) for name, (share, missed) in costs.items()]
    goal = Goal(JUDGED, 0.5, costs[JUDGED][0], "% of a core", noise=0.3)
    return Section([table(("", "of one core", "missed samples"), rows)], [goal])
