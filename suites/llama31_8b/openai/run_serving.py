"""Measure a trained Llama behind any server with OpenAI's API."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.measuring import main

from common.serving.any_server import ServedByAny
from common.serving.measurement import Serving

if __name__ == "__main__":
    main(lambda ctx: Serving(ctx, ServedByAny(ctx), distributed.gather))
