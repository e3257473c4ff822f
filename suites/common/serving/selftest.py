"""The client's test of itself, against the echo engine, whose delays are known."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from common.serving.client import Answer, Client, Request
from common.serving.process import ServerError, ServerProcess

FIRST_S, TOKEN_S = 0.02, 0.005
_MOST_ERROR_S, _TRIES = 1e-3, 5
"""On a busy machine the echo engine or the client waits for a core now and then; a slow client is slow each time."""
_MODEL, _USERS, _REQUESTS, _TOKENS = "echo", 4, 4, 16
_BUSY_USERS, _BUSY_TOKENS = 16, 64
_READY_S, _EVENT_S = 60.0, 30.0


class SelfTest(NamedTuple):
    """By how much the client's times are wrong in the median, and its greatest rate."""

    first_token_error_s: float
    gap_error_s: float
    rate: float
    """Tokens per second at which the client, and not the server, is the bottleneck."""


def run(log: Path, client: Callable[..., Client] = Client) -> SelfTest:
    """Measure known delays, and then an engine without delays."""
    errors = math.inf, math.inf
    with ServerProcess(_command(FIRST_S, TOKEN_S), log) as server:
        server.wait_ready(_READY_S)
        for _ in range(_TRIES):
            answers, _ = asyncio.run(_asked(client, server.url, _USERS, _REQUESTS, _TOKENS))
            errors = min(errors, _errors(answers), key=_largest)
            if _largest(errors) < _MOST_ERROR_S:
                break
    with ServerProcess(_command(0.0, 0.0), log) as server:
        server.wait_ready(_READY_S)
        many, seconds = asyncio.run(_asked(client, server.url, _BUSY_USERS, 2, _BUSY_TOKENS))
    return SelfTest(*errors, sum(len(answer.tokens) for answer in many) / seconds)


def _errors(answers: Sequence[Answer]) -> tuple[float, float]:
    first = median(answer.first_token_s for answer in answers)
    return first - FIRST_S, median(gap for answer in answers for gap in answer.gaps_s) - TOKEN_S


def _largest(errors: tuple[float, float]) -> float:
    return max(map(abs, errors))


def _command(first_s: float, token_s: float) -> Callable[[int], list[str]]:
    program = [sys.executable, "-m", "common.serving.echo", f"--model={_MODEL}"]
    return lambda port: [*program, f"--port={port}", f"--first-s={first_s}", f"--token-s={token_s}"]


async def _asked(
    client: Callable[..., Client], url: str, users: int, requests: int, tokens: int
) -> tuple[list[Answer], float]:
    """Return the answers of all users, and the time that they took together."""

    async def user() -> list[Answer]:
        with client(url, _MODEL, _EVENT_S) as own:
            return [await own.complete(Request(number, (1, 2, 3), tokens)) for number in range(requests)]

    begin = time.perf_counter()
    answers = [answer for of_user in await asyncio.gather(*(user() for _ in range(users))) for answer in of_user]
    seconds = time.perf_counter() - begin
    failed = next((answer.problem for answer in answers if answer.problem), None)
    if failed:
        raise ServerError(f"the client's test of itself failed: {failed}")
    return answers, seconds
