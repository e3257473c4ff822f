"""The client and its load: known delays, a sentence for each wrong answer, and the highest rate within limits."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from common.serving import load, selftest
from common.serving.client import Client, Request, RequestFailed
from common.serving.load import Arrivals, Load, TokenLimits, keeps, open_loop
from common.serving.process import ServerProcess
from common.serving.search import RateSearch

from pytest_flagperf_serving.requests import most_beyond
from serving_tests import formula

pytestmark = pytest.mark.integration
PROMPT = (1, 2, 3)


class SlowClient(Client):  # type: ignore[misc]
    """A client that is slow on purpose: each event costs two milliseconds."""

    def _tokens(self, data: bytes) -> Any:
        time.sleep(0.002)
        return super()._tokens(data)


def test_the_client_gives_back_known_delays_and_a_slow_one_does_not(tmp_path: Path) -> None:
    def is_right(tested: selftest.SelfTest) -> bool:
        return bool(max(abs(tested.first_token_error_s), abs(tested.gap_error_s)) < 1e-3)

    # On a busy machine a process waits for a core for longer than that, but not each time.
    tested = (selftest.run(tmp_path / "echo.log") for _ in range(20))
    right = next(filter(is_right, tested), None)
    assert right is not None
    slow = selftest.run(tmp_path / "echo.log", SlowClient)
    assert not is_right(slow)
    assert slow.rate < right.rate / 4
    assert slow.rate < 500, "an event costs it two milliseconds"


@asynccontextmanager
async def raw_server(response: bytes) -> AsyncIterator[str]:
    """A server that sends these bytes to every request, and closes the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def problem_with(response: bytes) -> str:
    async def ask() -> str:
        async with raw_server(response) as url:
            with Client(url, "m", 10) as client:
                answer = await client.complete(Request(1, PROMPT, 2))
                assert len(answer.times) == len(answer.tokens), "a time for each token, also of two in one event"
                return str(answer.problem)

    return asyncio.run(ask())


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
GOOD = b'data: {"model": "m", "choices": [{"token_ids": [1, 2]}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (HEAD + GOOD + DONE, ""),
        (b"HTTP/1.1 500 Internal\r\n\r\nout of memory", "the server answered 500 Internal: out of memory"),
        (b"", "the server closed the connection without an answer"),
        (b"220 smtp ready\r\n\r\n", "the server answered smtp ready"),
        (HEAD + GOOD, "the stream ended after 2 of 2 tokens, without [DONE]"),
        (HEAD + b"data: {oops}\n\n" + DONE, "an event is {oops}; expected JSON with model, choices and their tok"),
        (HEAD + b'data: {"model": "m", "choices": [{"text": "a"}]}\n\n' + DONE, "the answer has 0 tokens; expected 2"),
        (HEAD + b"event: x\n\n" + DONE, "an event is event: x; expected data: and JSON"),
        (HEAD + b": a comment\n\n" + GOOD + DONE, ""),
        (HEAD + b'data: {"error": "busy"}\n\n', 'the server sent an error in the stream: {"error": "busy"}'),
        (HEAD + GOOD.replace(b'"m"', b'"other"') + DONE, "model 'other' answered; expected 'm'"),
        (HEAD + GOOD + GOOD + DONE, "the answer has 4 tokens; expected 2"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "the size of a chunk is b'xyz"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "closed in the middle of a chunk"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", "closed in the middle of a body"),
        (b"HTTP/1.1 200", "closed in the middle of a head"),
    ],
)
def test_a_wrong_answer_is_a_sentence(response: bytes, problem: str) -> None:
    got = problem_with(response)
    assert problem in got if problem else not got, got


def test_a_stalled_stream_a_server_that_is_away_and_no_probabilities_are_sentences(
    serve: Callable[..., ServerProcess],
) -> None:
    stalled = serve("stalls")

    async def ask() -> list[str]:
        one, away = Client(stalled.url, formula.NAME, 0.5), Client("http://127.0.0.1:9", "m", 0.5)
        problems = [(await client.complete(Request(1, PROMPT, 8))).problem for client in (one, away)]
        async with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as url:
            with Client(url, "m", 5) as client, pytest.raises(RequestFailed, match=r"no log .* of the prompt: \{\}"):
                await client.log_probabilities(PROMPT)
        return problems

    stall, away = asyncio.run(ask())
    assert stall == "no event for 0.5 s after 3 of 8 tokens"
    assert "no connection to 127.0.0.1:9 after 0 of 8 tokens" in away


def test_the_load_is_full_from_begin_to_end(serve: Callable[..., ServerProcess]) -> None:
    """With a fixed time for a token, as many users as there are get a token in this time."""
    url, users, token_s = serve(token_s=0.01).url, 4, 0.01

    async def measured() -> load.Load:
        requests = (Request(number, (number % 256, 1, 2), 8) for number in range(10_000))
        with ExitStack() as opened:
            clients = [opened.enter_context(Client(url, formula.NAME, 10)) for _ in range(users)]
            return await load.closed_loop(clients, requests, load.LoadLimits(1.0, 2.0, 0.01))

    result = asyncio.run(measured())
    assert not result.failed
    assert len([answer for answer in result.answers if answer.sent < result.begin]) >= 2 * users, "a wave, and the next"
    assert len([answer for answer in result.answers if answer.ended is None]) == users, "all are busy at the end"
    assert 0.5 < result.request_rate * 8 * token_s / users <= 1.05
    assert all(answer.first_token_s > token_s * 0.95 for answer in result.measured)


# -- the highest rate within limits: how it is searched, and of servers -----------------------------------------


def searched(kept: Callable[[float], bool], start: float, precision: float = 0.05) -> tuple[float, int]:
    """Return the highest rate, and after how many tries."""
    search, tried = RateSearch(start, precision), 0
    while (rate := search.next()) is not None:
        search.add(rate, kept=kept(rate))
        tried += 1
    return search.kept, tried


@pytest.mark.parametrize("start", [0.1, 0.5, 0.9, 3.0])
def test_the_search_finds_the_highest_rate_with_few_rates(start: float) -> None:
    rate, tried = searched(lambda rate: rate <= 0.8, start)
    assert 0.8 / 1.05 <= rate <= 0.8
    assert tried <= 14


def test_without_a_rate_the_search_ends_and_what_is_known_is_not_tried_again() -> None:
    assert searched(lambda _: False, 10.0) == (0.0, 6)
    known = RateSearch(1.0, 0.05, [(8.0, True), (10.0, False), (12.0, True)])
    assert (known.kept, known.beyond) == (8.0, 10.0), "a rate above a rate that was not kept is chance"
    assert known.next() == pytest.approx(math.sqrt(80), rel=1e-3)
    assert RateSearch(1.0, 0.05, [(8.0, True), (8.3, False)]).next() is None


def test_the_confidence_is_that_of_the_number_of_requests() -> None:
    assert most_beyond(300, 0) == pytest.approx(1 - 0.05 ** (1 / 300))
    assert most_beyond(300, 3) == pytest.approx(0.0257, abs=5e-4)
    assert most_beyond(20, 0) > 0.1


# -- real servers --------------------------------------------------------------------------------------------

FIRST_S, TOKEN_S, TOKENS = 0.01, 0.005, 3
LIMITS = TokenLimits(FIRST_S + 4 * (FIRST_S + (TOKENS - 1) * TOKEN_S), 1.0)


def loaded(url: str, model: str, rate: float) -> Load:
    async def measured() -> Load:
        requests = (Request(number, (1, 2, 3), TOKENS) for number in range(10_000))
        with ExitStack() as opened:
            arrivals = Arrivals(rate, 100, seed=1)
            return await open_loop(lambda: opened.enter_context(Client(url, model, 20)), requests, arrivals, LIMITS)

    return asyncio.run(measured())


def test_a_server_with_a_known_capacity_and_one_that_degrades(
    serve: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    capacity = 1 / (FIRST_S + (TOKENS - 1) * TOKEN_S)
    echo = [sys.executable, "-m", "common.serving.echo", "--model=echo", "--slots=1"]
    delays = [f"--first-s={FIRST_S}", f"--token-s={TOKEN_S}"]
    with ServerProcess(lambda port: [*echo, *delays, f"--port={port}"], tmp_path / "echo.log") as server:
        server.wait_ready(60)
        rate, _ = searched(lambda rate: keeps(loaded(server.url, "echo", rate), LIMITS), 0.9 * capacity, 0.4)
        overload = loaded(server.url, "echo", 3 * capacity)
    assert 0.2 * capacity < rate < capacity  # 0.6 by theory; a busy machine is slower
    assert not keeps(overload, LIMITS)
    assert len(overload.measured) < 100, "it ends as soon as it is known"
    assert all(answer.ended for answer in overload.answers), "and leaves no request to the next rate"
    degrading = serve("sleeps").url
    assert not keeps(loaded(degrading, formula.NAME, rate), LIMITS)


def test_a_client_that_is_gone_leaves_its_slot(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "common.serving.echo", "--model=echo", "--slots=1", "--token-s=0.01"]

    async def ask(url: str) -> str:
        with Client(url, "echo", 10) as gone:
            task = asyncio.create_task(gone.complete(Request(1, (1,), 10_000)))
            while not gone.tokens:
                await asyncio.sleep(0)
            task.cancel()
        with Client(url, "echo", 10) as waits:
            return str((await waits.complete(Request(2, (1,), 2))).problem)

    with ServerProcess(lambda port: [*command, f"--port={port}"], tmp_path / "echo.log") as server:
        server.wait_ready(60)
        assert asyncio.run(ask(server.url)) == ""


def test_requests_are_sent_when_they_are_due_whatever_becomes_of_others(serve: Callable[..., ServerProcess]) -> None:
    load = loaded(serve(token_s=0.05).url, formula.NAME, 40.0)
    gaps, sent = random.Random(1), sorted(answer.sent for answer in load.answers)
    expected = [gaps.expovariate(1.0) / 40.0 for _ in sent]
    assert [after - before for before, after in itertools.pairwise(sent)] == pytest.approx(expected[1:])
    assert len(load.answers) > len(load.measured) > 0, "the first requests are not measured"
