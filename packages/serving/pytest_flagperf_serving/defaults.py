"""The config keys of all serving suites, beside those of measurements, whose loop calls their points."""

from __future__ import annotations

# -- the model ----------------------------------------------------------------------------------------------
weights_of = ""  # the training of the served model, with or without the shape of its case: llama31_8b:pytorch:1x2
case_settings: list[str] = []  # settings of a training in the round, as in ["max_steps=120"]
case_config: dict[str, object] = {}  # the training's config, which the harness sets
weights_dir = ""  # the harness sets both if the run trains this model before
weights_of_run = ""  # the case of that training
memory_estimate: dict[str, object] = {}  # of a device, in bytes, and the concurrencies left out; the harness sets it

one_server = False  # one server has the devices of all ranks; else the device of each rank has its own

throughput_only = False  # --synthetic sets it

# -- a server that stands already: only engines that list these keys as mutable, such as openai ---------------
endpoint = ""  # its URL, as in http://10.0.0.7:8000; empty: the run starts the server
model_name = ""  # what it calls the model; empty: it has one model
weights = ""  # the folder of the weights that it serves, in Hugging Face's format: they judge its answers

# -- the load ------------------------------------------------------------------------------------------------
concurrencies = [1, 2, 4, 8]  # numbers of requests that the server has at once; each is a point
prompt_tokens = 64  # of each request
answer_tokens = 32  # of each answer
point_least_s = 2.0  # measured at each concurrency, after a wave of requests that is not measured
point_most_s = 6.0  # if the interval is not narrow enough earlier
point_interval = 0.05  # half of the 95 % confidence interval at which a point is done, as a share of the rate

# -- the highest rate of requests ----------------------------------------------------------------------------
# The limits of MLPerf Inference for Llama 3.1 8B, of which the 99th percentiles of a rate are judged.
server_ttft_s = 2.0  # to the first token
server_tpot_s = 0.1  # for a token after it, as a mean over the answer
interactive_ttft_s = 0.5
interactive_tpot_s = 0.03
rate_requests = 300  # measured at each rate, of which three may be beyond the limits
rate_precision = 0.05  # by which the lowest rate beyond the limits is above the highest within, as a share
rate_most_s = 240.0  # of the search for one pair of limits; a rate takes at most a quarter of it; 0: no search

# -- the judgement of answers --------------------------------------------------------------------------------
accuracy_texts = 16  # held-out texts whose begins are prompts, with and without load

# -- published weights and the set that judges them: the reference scale ---------------------------------------
accuracy_set = ""  # the module of suites/common/serving that reads and scores the set; empty: the suite trains
accuracy_requests = 0  # questions of the set, drawn by the seed; 0: all, as MLPerf requires
accuracy_answer_tokens = 128  # the most tokens of an answer
accuracy_temperature = 0.0  # at which answers are sampled; 0: greedy
accuracy_reference: dict[str, float] = {}  # the stored scores of the weights, from 0 to 100
accuracy_length = 0.0  # the stored mean length of an answer, as the set counts it; 0: not judged

# -- timeouts ------------------------------------------------------------------------------------------------
ready_timeout_s = 900.0  # from the start of the server until it answers
event_timeout_s = 60.0  # without an event of an answer

MUTABLE = [
    "accuracy_requests", "accuracy_texts", "answer_tokens", "case_settings", "concurrencies", "event_timeout_s",
    "prompt_tokens", "rate_most_s", "rate_precision", "rate_requests", "ready_timeout_s", "weights_of",
]  # fmt: skip
"""Keys that a vendor's file and ``--set`` may override in every serving suite; the limits are those of the suite."""
