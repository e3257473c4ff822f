"""What silence means on the controller's side: who may be silent for how long.

* The process on a host, and the controller, send a sign of life after ``PING_S`` seconds of silence, later with many
  hosts (``ping_s``); ``LINK_S`` after it is due the host is lost, and after ``RELAY_S`` the controller.
  An agent sees the end of its input when the process on its host has ended or has lost the controller.
* An agent that watches ranks sends a beat every ``BEAT_S``, and samples every ``SAMPLES_S``; one that is silent for
  longer than ``AGENT_S`` is stuck.
* A request to an agent has an answer within ``ANSWER_S``.

All hosts of a round together send at most ``RATE`` signs of life of a kind in a second, so that many hosts do not keep
the controller busy: ``every_s``. With 1,024 hosts, beats and samples come every 10 s, and a host that has sent nothing
else for 15 s sends a sign of life.

``flagperf_driver/node/silence.py`` is the table of the hosts' side, and ``stored/live_record.py`` says when the
controller itself counts as silent.
"""

from __future__ import annotations

RATE = 100.0
PING_S = 2.0
LINK_S = 8.0
RELAY_S = 30.0
BEAT_S = 1.0
SAMPLES_S = 5.0
AGENT_S = 60.0
ANSWER_S = 60.0


def every_s(seconds: float, hosts: int) -> float:
    """Return the seconds between two signs of life of a host, among so many hosts: the given ones, or more."""
    return max(seconds, hosts / RATE)


def ping_s(hosts: int) -> float:
    """Return the silence after which one of so many hosts sends a sign of life: the beat of its agent is late."""
    return max(PING_S, 1.5 * hosts / RATE)
