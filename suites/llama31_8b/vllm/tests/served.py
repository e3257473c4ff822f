"""vLLM answers as the model that it got, other weights are detected, and what a CPU cannot compute is refused."""

import checking
import torch
from common.serving.vllm import ServedByVllm

from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context
from tests.suites import served


def check_vllm_serves_the_weights_and_two_layers_swapped_are_others() -> None:
    served.judge(checking.SUITE, ServedByVllm, checking.SCRATCH / "server.log")


def check_fp8_is_refused_on_a_cpu_before_the_model_is_trained() -> None:
    ctx = Context(config=Config({"precision": "fp8"}), suite_dir=checking.SUITE, device=torch.device("cpu"))
    checking.raises(ValueError, lambda: ServedByVllm(ctx), "precision is 'fp8'", "use fp32, bf16 or fp16")
