"""Llama 3.1 8B with the data directory's weights, behind a server that ``server_command`` starts, or that stands."""

weights_of = "llama31_8b:pytorch"
precision = "bf16"
concurrencies = [1, 4, 16, 64]
prompt_tokens = 1024
answer_tokens = 256
point_least_s = 20.0
point_most_s = 60.0

# The words that start a server, with {model}, the folder of the weights, {port}, and, if it needs them, {python},
# {device}, {requests}, the most at once, and {places}, the most tokens of a prompt with its answer.
server_command = [
    "{python}", "-m", "common.serving.continuous_batching", "{model}", "--port={port}", "--model=served",
    "--device={device}", "--requests={requests}", "--places={places}",
]  # fmt: skip

# -- published weights, judged by the rules of MLPerf Inference v6.1 for Llama 3.1 8B (../README.md) --------------
accuracy_set = "summaries"
accuracy_answer_tokens = 128
# The reference implementation's in bf16: language/llama3.1-8b/README.md of github.com/mlcommons/inference.
accuracy_reference = {"rouge1": 38.7792, "rouge2": 15.9075, "rougeL": 24.4957, "rougeLsum": 35.793}
accuracy_length = 8167644 / 13368  # characters
# The whole set is one point, in which the ranks do not report.
init_timeout_s = 14400.0
hang_timeout_s = 14400.0
