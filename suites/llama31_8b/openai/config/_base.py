"""The small Llama of llama31_8b:pytorch, behind a server that ``server_command`` starts, or that stands."""

weights_of = "llama31_8b:pytorch"
case_settings = ["max_steps=120"]

# The words that start a server, with {model}, the folder of the weights, {port}, and, if it needs them, {python},
# {device}, {requests}, the most at once, and {places}, the most tokens of a prompt with its answer.
server_command = [
    "{python}", "-m", "common.serving.continuous_batching", "{model}", "--port={port}", "--model=served",
    "--device={device}", "--requests={requests}", "--places={places}",
]  # fmt: skip

# Below MLPerf's limits, which a model of this size keeps until its queue grows for a minute.
server_ttft_s = 0.2
server_tpot_s = 0.05
interactive_ttft_s = 0.05
interactive_tpot_s = 0.015
rate_most_s = 20.0

expected_time_s = 90.0  # measured on a shared core
