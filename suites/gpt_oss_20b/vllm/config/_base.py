"""gpt-oss-20b of gpt_oss_20b:pytorch with random weights, in vLLM's own precision and with its own options."""

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
