"""Llama 3.1 8B with the weights of the data directory, in vLLM's own precision and with its own options."""

from typing import Literal

weights_of = "llama31_8b:pytorch"
one_server = True
precision: Literal["fp32", "bf16", "fp16", "fp8"] = "bf16"  # of the server; fp8: vLLM rounds the weights of its layers
engine_options: list[str] = []  # further arguments of vllm serve
concurrencies = [1, 4, 16, 64]
prompt_tokens = 1024
answer_tokens = 256
point_least_s = 20.0
point_most_s = 60.0

# -- published weights, judged by the rules of MLPerf Inference v6.1 for Llama 3.1 8B (../README.md) --------------
accuracy_set = "summaries"
accuracy_answer_tokens = 128
# The reference implementation's in bf16: language/llama3.1-8b/README.md of github.com/mlcommons/inference.
accuracy_reference = {"rouge1": 38.7792, "rouge2": 15.9075, "rougeL": 24.4957, "rougeLsum": 35.793}
accuracy_length = 8167644 / 13368  # characters
# The whole set is one point, in which the ranks do not report.
init_timeout_s = 14400.0
hang_timeout_s = 14400.0
