"""vLLM answers as the model that it got, and other weights are detected."""

from collections.abc import Sequence

import checking
from common.serving.vllm import ServedByVllm

from tests.suites import served


class ServedInFp32(ServedByVllm):
    """As at the small scale: in bf16 one of 128 tokens is another."""

    def command(self, port: int) -> Sequence[str]:
        return [*super().command(port), "--dtype=float32", "--enforce-eager"]


def check_vllm_serves_the_weights_and_two_layers_swapped_are_others() -> None:
    served.judge(checking.SUITE, ServedInFp32, checking.SCRATCH / "server.log")
