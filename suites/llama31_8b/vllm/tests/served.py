"""vLLM answers as the model that it got, and other weights are detected."""

import checking
from common.serving.vllm import ServedByVllm

from tests.suites import served


def check_vllm_serves_the_weights_and_two_layers_swapped_are_others() -> None:
    served.judge(checking.SUITE, ServedByVllm, checking.SCRATCH / "server.log")
