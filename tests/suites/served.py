"""The check of an engine: it answers as the model that it got, and other weights are detected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common.serving.client import Client, Request
from common.serving.process import ServerProcess
from common.serving.published import write

from flagperf_driver import options
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context

_KIND = Path("packages", "serving", "pytest_flagperf_serving", "defaults.py")
_STEPS = 60
_PROMPT, _ANSWER = 48, 16


def trained(suite: Path, engine: type[Any]) -> Any:
    """Return the model that a serving suite trains at the small scale, in fewer steps."""
    return engine(context(suite, "_base.py", "_small.py"))


def context(suite: Path, *layers: str, **settings: Any) -> Context:
    """Return the context of a serving suite with these files of its config; its training is the small one."""
    own = options.values("", suite.parents[2] / _KIND, *(suite / "config" / name for name in layers), measures=True)
    model, framework = own["weights_of"].split(":")
    config = suite.parents[1] / model / framework / "config"
    case = options.values(framework, config / "_base.py", config / "_small.py")
    own |= {"weights_of": f"{model}:{framework}:1x1", "case_config": {**case, "max_steps": _STEPS}, **settings}
    return Context(config=Config(own), scale="small", seed=42, suite_dir=suite, device=torch.device("cpu"))


def served(model: Any, texts: Sequence[Sequence[int]], log: Path) -> tuple[float, float]:
    """Return the share of right tokens, and the log perplexity of the texts, of the engine with the written weights."""

    async def asked(url: str) -> tuple[list[list[int]], list[float]]:
        with Client(url, model.name, 60) as client:
            requests = [Request(number, text[:_PROMPT], _ANSWER) for number, text in enumerate(texts)]
            answers = [await client.complete(request) for request in requests]
            assert not [answer.problem for answer in answers if answer.problem]
            return [answer.tokens for answer in answers], [
                value for text in texts for value in await client.log_probabilities(text)
            ]

    with ServerProcess(model.command, log) as server:
        server.wait_ready(300)
        answers, logged = asyncio.run(asked(server.url))
    right = model.right([text[:_PROMPT] for text in texts], answers)
    return sum(right) / (len(texts) * _ANSWER), -sum(logged) / len(logged)


def judge(suite: Path, engine: type[Any], log: Path) -> None:
    """Serve the weights, and then the same with two layers swapped."""
    model = trained(suite, engine)
    decoder, texts = model.model, model.texts[:8]
    rows = torch.tensor(texts)
    with torch.no_grad():
        expected = float(decoder(rows[:, :-1], rows[:, 1:]))
    right, loss = served(model, texts, log)
    assert right >= 0.99, right
    assert abs(loss / expected - 1) < 1e-3, (loss, expected)
    blocks = decoder.blocks
    decoder.blocks = torch.nn.ModuleList([blocks[1], blocks[0]])
    write(decoder, model.folder)
    decoder.blocks = blocks
    right, loss = served(model, texts, log)
    assert right < 0.9, f"{right} of the tokens are right with swapped layers"
    assert loss / expected - 1 > 0.01, f"log perplexity {loss} with swapped layers, {expected} of the model"
