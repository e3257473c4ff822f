"""Lost hosts: how long to wait for them, and the new connection to their agents."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_flagperf.hosts import Channel, Host, HostError, HostGone, HostLost, silence
from pytest_flagperf.hosts.deploy import attach

_AGAIN_S = 1.0
"""Seconds between two attempts."""
_AFTER_A_FAULT_S = 5.0
"""A round that has already failed waits for a lost host at most this long."""


def give_up_time(lease_ends: float, stopped_at: float | None) -> float:
    """Return how long to wait for a lost host: until its lease ends, or shortly after the round was stopped."""
    return lease_ends if stopped_at is None else min(lease_ends, stopped_at + _AFTER_A_FAULT_S)


def reconnect_to_agent(
    host: Host, log_dir: str, after: int, why: str, is_given_up: Callable[[], bool]
) -> tuple[Channel | None, str]:
    """Return a new connection to a lost host's agent, or None and the reason of the last failure when it is given up.

    HostError if the host is back and its agent is not running.
    """
    while not is_given_up():
        try:
            host.reconnect()
        except HostGone as error:
            return None, str(error)
        except HostError as error:
            why = str(error)
            time.sleep(_AGAIN_S)
            continue
        try:
            return connect_to_agent(host, log_dir, after), why
        except HostLost as error:
            why = str(error)
    return None, why


def connect_to_agent(host: Host, log_dir: str, after: int) -> Channel:
    """Return a new connection to a running agent, which repeats its messages after the number ``after``."""
    channel = attach(host, log_dir)
    try:
        channel.send({"op": "attach", "after": after})
        first = channel.receive(silence.ANSWER_S)
        if first is None or first["type"] != "attached":
            reason = channel.error_output().strip() or f"it answered {first}"
            raise HostError(f"the agent is not running: the host was restarted, or the agent was killed: {reason}")
    except TimeoutError as error:
        channel.close(0.0)
        raise HostLost(f"{host.name}: its agent does not answer") from error
    except HostError:
        channel.close(0.0)
        raise
    return channel
