"""The config keys of all serving suites, beside those of trainings and measurements.

A suite trains what it serves, so it has the keys of trainings; the loop of measurements calls its points.
"""

from __future__ import annotations

# -- the load ------------------------------------------------------------------------------------------------
concurrencies = [1, 2, 4, 8]  # numbers of requests that the server has at once; each is a point
prompt_tokens = 64  # of each request
answer_tokens = 32  # of each answer
point_least_s = 2.0  # measured at each concurrency, after a wave of requests that is not measured
point_most_s = 6.0  # if the interval is not narrow enough earlier
point_interval = 0.05  # half of the 95 % confidence interval at which a point is done, as a share of the rate

# -- the judgement of answers --------------------------------------------------------------------------------
accuracy_texts = 16  # held-out texts whose begins are prompts, with and without load

# -- timeouts ------------------------------------------------------------------------------------------------
ready_timeout_s = 900.0  # from the start of the server until it answers
event_timeout_s = 60.0  # without an event of an answer

MUTABLE = ["accuracy_texts", "answer_tokens", "concurrencies", "event_timeout_s", "prompt_tokens", "ready_timeout_s"]
"""Keys that a vendor's file and ``--set`` may override in every serving suite."""
