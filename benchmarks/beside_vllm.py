"""Measure one vLLM server by our client and by ``vllm bench serve``, in turns, and print what each measured as JSON.

    PYTHONPATH=.:suites PYTHON benchmarks/beside_vllm.py --pairs=150

PYTHON has vLLM: that of ``llama31_8b:vllm``. The server has a Llama of random weights. Both clients have as many users,
send the same prompts as token ids, and ask for the same greedy answers, after a warm-up. The first alternates:
a disturbance of the machine affects both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common.serving.client import Client, Request
from common.serving.load import Load, LoadLimits, closed_loop
from common.serving.process import ServerProcess
from common.serving.vllm import ServedByVllm
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.benchmarks import serve
from vllm.benchmarks.datasets import SampleRequest

from flagperf_driver import options
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context

REPO = Path(__file__).resolve().parent.parent
SUITE = REPO / "suites" / "llama31_8b" / "vllm"
MODEL = {"num_layers": 4, "hidden_size": 512, "num_heads": 8, "num_kv_heads": 4, "head_size": 64}
"""Large enough that the client needs little of the time beside it."""
USERS, PROMPT, ANSWER, WAVES = 4, 64, 64, 6


def model() -> Any:
    """Return a model of random weights, with a tokenizer in its folder, which ``vllm bench serve`` needs to count."""
    kind = REPO / "packages" / "serving" / "pytest_flagperf_serving" / "defaults.py"
    own = options.values("", kind, *(SUITE / "config" / name for name in ("_base.py", "_small.py")), measures=True)
    training = REPO / "suites" / "llama31_8b" / "pytorch" / "config"
    case = options.values("pytorch", training / "_base.py", training / "_small.py") | MODEL
    own |= {"weights_of": "llama31_8b:pytorch:1x1", "case_config": case, "answer_tokens": ANSWER}
    ctx = Context(config=Config(own), scale="small", synthetic=True, suite_dir=SUITE, device=torch.device("cpu"))
    served = ServedByVllm(ctx)
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(served.vocabulary)}, "t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(served.folder)
    return served


def prompts(served: Any, seed: int) -> Iterator[list[int]]:
    generator = random.Random(seed)
    while True:
        yield generator.choices(range(served.vocabulary), k=PROMPT)


def ours(url: str, served: Any, seed: int, seconds: float) -> tuple[float, float]:
    """Return the output tokens per second and the median time to the first token, by our client."""
    requests = (Request(number, prompt, ANSWER) for number, prompt in enumerate(prompts(served, seed)))

    async def loaded() -> Load:
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(Client(url, served.name, 60)) for _ in range(USERS)]
            return await closed_loop(clients, requests, LoadLimits(seconds, seconds, 1.0))

    load = asyncio.run(loaded())
    assert not load.failed, load.failed[0].problem
    return load.request_rate * ANSWER, statistics.median(answer.first_token_s for answer in load.answered)


def theirs(url: str, served: Any, seed: int) -> tuple[float, float, float]:
    """Return the same by ``vllm bench serve``, and its seconds."""
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    words = [
        "--backend=openai", f"--base-url={url}", "--endpoint=/v1/completions", f"--model={served.folder}",
        f"--served-model-name={served.name}", "--dataset-name=custom", f"--max-concurrency={USERS}", "--temperature=0",
        "--ignore-eos", f"--num-warmups={USERS}", "--disable-tqdm",
    ]  # fmt: skip
    chosen = itertools.islice(prompts(served, seed), USERS * WAVES)
    samples = [SampleRequest(prompt, PROMPT, ANSWER, request_id=str(number)) for number, prompt in enumerate(chosen)]
    with contextlib.redirect_stdout(sys.stderr), mock.patch.object(serve, "get_samples", return_value=samples):
        result = serve.main(parser.parse_args(words))
    assert (result["failed"], result["total_output_tokens"]) == (0, len(samples) * ANSWER), result
    return result["output_throughput"], result["median_ttft_ms"] / 1000, result["duration"]


def pairs(url: str, served: Any, count: int) -> Iterator[dict[str, Any]]:
    """Yield what both measured, after a pair that is thrown away."""
    seconds = theirs(url, served, 0)[2]
    ours(url, served, 0, seconds)
    for number in range(1, count + 1):
        turns: dict[str, Callable[[], Sequence[float]]] = {
            "ours": lambda seed=number: ours(url, served, seed, seconds),  # type: ignore[misc]
            "theirs": lambda seed=number: theirs(url, served, seed),  # type: ignore[misc]
        }
        order = sorted(turns, reverse=number % 2 == 0)
        yield {name: turns[name]()[:2] for name in order}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150)
    count = parser.parse_args().pairs
    served = model()
    with tempfile.TemporaryDirectory() as folder, ServerProcess(served.command, Path(folder) / "server.log") as server:
        server.wait_ready(served.ctx.config.ready_timeout_s)
        for pair in pairs(server.url, served, count):
            print(json.dumps(pair), flush=True)


if __name__ == "__main__":
    main()
