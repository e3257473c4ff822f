"""The engine answers as the model that it got, and other weights are detected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import checking
import torch
from common.language.decoder import Decoder
from common.serving.client import Client, Request
from common.serving.process import ServerProcess
from common.serving.published import write
from model import TrainedLlama

from flagperf_driver import options
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context

_KIND = Path("packages", "serving", "pytest_flagperf_serving", "defaults.py")
_STEPS, _PROMPT, _ANSWER = 60, 48, 16


def _trained() -> TrainedLlama:
    root = checking.SUITE.parents[2]
    values = options.values("pytorch", root / _KIND, checking.SUITE / "config" / "_base.py")
    config = Config({**values, "max_steps": _STEPS, "lr_decay": _STEPS})
    return TrainedLlama(Context(config=config, scale="small", suite_dir=checking.SUITE, device=torch.device("cpu")))


def _served(model: TrainedLlama, texts: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the share of right tokens, and the log perplexity of the texts, of the engine with the written weights."""

    async def asked(url: str) -> tuple[list[list[int]], list[float]]:
        with Client(url, model.name, 60) as client:
            requests = [Request(number, text[:_PROMPT], _ANSWER) for number, text in enumerate(texts)]
            answers = [await client.complete(request) for request in requests]
            assert not [answer.problem for answer in answers if answer.problem]
            return [answer.tokens for answer in answers], [
                value for text in texts for value in await client.log_probabilities(text)
            ]

    with ServerProcess(model.command, checking.SCRATCH / "server.log") as server:
        server.wait_ready(300)
        answers, logged = asyncio.run(asked(server.url))
    right = model.right([text[:_PROMPT] for text in texts], answers)
    return sum(right) / (len(texts) * _ANSWER), -sum(logged) / len(logged)


@torch.no_grad()
def _loss(model: Decoder, texts: Sequence[Sequence[int]]) -> float:
    rows = torch.tensor(texts)
    loss: Any = model(rows[:, :-1], rows[:, 1:])
    return float(loss)


def check_the_engine_serves_the_weights_and_two_layers_swapped_are_others() -> None:
    model = _trained()
    decoder, texts = model.model, model.texts[:8]
    expected = _loss(decoder, texts)
    right, loss = _served(model, texts)
    assert right >= 0.99, right
    assert abs(loss / expected - 1) < 1e-3, (loss, expected)
    blocks = decoder.blocks
    decoder.blocks = torch.nn.ModuleList([blocks[1], blocks[0]])
    write(decoder, model.folder)
    decoder.blocks = blocks
    right, loss = _served(model, texts)
    assert right < 0.9, f"{right} of the tokens are right with swapped layers"
    assert loss / expected - 1 > 0.01, f"log perplexity {loss} with swapped layers, {expected} of the model"
