"""What silence means on a host: who may be silent for how long, and how the seconds are counted.

The agent of the host notices the silence of

* a rank: after ``init_timeout_s`` before its first step, then after ``hang_timeout_s``. They are keys of the config
  (flagperf_driver/defaults.py); agent/rank_health.py finds the rank for which the others wait.
* the starter in a container: after ``STARTER_S`` before its first sign of life, then after ``CONTAINER_S``.
* the controller: the process of the controller on the host (host_process.py) notices it and ends the agent's input. A
  controller that stays lost for ``lease-time`` ends the ranks: agent/main.py, ``_check_controller``.
"""

from __future__ import annotations

CONTAINER_S = 30.0
"""Its starter shows a sign of life ten times a second, unless the container is paused or stuck in the kernel."""
STARTER_S = 180.0
"""A vendor's hook may set up the devices for two minutes before the container runs."""
_LONGEST_TICK_S = 2.0


def longer(silent_s: float, passed_s: float) -> float:
    """Add the time since the last check to a silence.

    A longer pause of the agent itself, for example of a frozen host or in a debugger, is not the silence of another.
    """
    return silent_s + min(passed_s, _LONGEST_TICK_S)
