"""How long a lost host is waited for, and how its agent is reached again."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_flagperf.hosts import Channel, Host, HostError, HostLost
from pytest_flagperf.hosts.deploy import attach

ANSWER_S = 60.0
"""How long an agent may take to answer."""
_AGAIN_S = 1.0
"""Between two tries."""
_AFTER_A_FAULT_S = 5.0
"""A round that has a fault already waits no longer for a lost host."""


def latest_return(lease_ends: float, stopped_at: float | None) -> float:
    """Until when a lost host is waited for: until its agent's lease ends, or shortly after the round was stopped."""
    return lease_ends if stopped_at is None else min(lease_ends, stopped_at + _AFTER_A_FAULT_S)


def reach_again(
    host: Host, log_dir: str, after: int, why: str, is_given_up: Callable[[], bool]
) -> tuple[Channel | None, str]:
    """Return a new connection to a lost host's agent; None, and why the last try failed, when it is given up.

    HostError where the host is back and the agent is not.
    """
    while not is_given_up():
        try:
            host.reconnect()
        except HostError as error:
            why = str(error)
            time.sleep(_AGAIN_S)
            continue
        try:
            return attached(host, log_dir, after), why
        except HostLost as error:
            why = str(error)
    return None, why


def attached(host: Host, log_dir: str, after: int) -> Channel:
    """A new connection to an agent that runs already; it says again what came after that number."""
    channel = attach(host, log_dir)
    try:
        channel.send({"op": "attach", "after": after})
        first = channel.receive(ANSWER_S)
        if first is None or first["type"] != "attached":
            said = channel.complaint().strip() or f"it answered {first}"
            raise HostError(f"no agent was there: the host was restarted, or the agent killed: {said}")
    except TimeoutError as error:
        channel.close(0.0)
        raise HostLost(f"{host.name}: its agent does not answer") from error
    except HostError:
        channel.close(0.0)
        raise
    return channel
