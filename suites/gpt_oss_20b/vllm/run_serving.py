"""Serve a trained gpt-oss by vLLM, and measure the server."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.measuring import main

from common.serving.measurement import Serving
from common.serving.vllm import ServedByVllm

if __name__ == "__main__":
    main(lambda ctx: Serving(ctx, ServedByVllm(ctx), distributed.gather))
