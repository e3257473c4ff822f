"""gpt-oss-20b with the weights of the data directory, in vLLM's own precision and with its own options."""

from typing import Literal

weights_of = "gpt_oss_20b:pytorch"
one_server = True
precision: Literal["fp32", "bf16", "fp16", "fp8"] = "bf16"  # of the server; fp8: vLLM rounds the weights of its layers
engine_options: list[str] = []  # further arguments of vllm serve
concurrencies = [1, 4, 16, 64]
prompt_tokens = 1024
answer_tokens = 256
point_least_s = 20.0
point_most_s = 60.0

# -- published weights, judged as gpt_oss_20b:transformers judges them (../README.md) -------------------------------
accuracy_set = "questions"
accuracy_answer_tokens = 32768
accuracy_temperature = 1.0
accuracy_reference = {"aime25": 91.7, "gpqa_diamond": 71.5}
# The whole set is one point, in which the ranks do not report.
init_timeout_s = 86400.0
hang_timeout_s = 86400.0
event_timeout_s = 3600.0  # a request may wait for the cache of others, which are long
