"""What silence means on the controller's side: who may be silent for how long.

* A connection answers a ping every ``PING_S`` seconds; after ``LINK_S`` without an answer the host is lost.
* The agent of a host on another machine gives up its controller after ``CONTROLLER_S`` without a message, and the relay
  of a Slurm node after ``RELAY_S``. An agent on the controller's machine sees the end of its pipe.
* An agent that watches ranks sends a message every second; one that is silent for longer than ``AGENT_S`` is stuck.
* A request to an agent has an answer within ``ANSWER_S``.

``flagperf_driver/node/silence.py`` is the table of the hosts' side, and ``stored/live_record.py`` says when the
controller itself counts as silent.
"""

from __future__ import annotations

PING_S = 2.0
LINK_S = 8.0
CONTROLLER_S = 10.0
RELAY_S = 30.0
AGENT_S = 60.0
ANSWER_S = 60.0
