"""The highest rate within limits: how it is searched, of a server with a known capacity, and of one that degrades."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from common.serving.client import Client, Request
from common.serving.load import Arrivals, Load, TokenLimits, keeps, open_loop
from common.serving.process import ServerProcess
from common.serving.search import RateSearch

from pytest_flagperf_serving.requests import most_beyond
from serving_tests import formula


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


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
def test_requests_are_sent_when_they_are_due_whatever_becomes_of_others(serve: Callable[..., ServerProcess]) -> None:
    load = loaded(serve(token_s=0.05).url, formula.NAME, 40.0)
    gaps, sent = random.Random(1), sorted(answer.sent for answer in load.answers)
    expected = [gaps.expovariate(1.0) / 40.0 for _ in sent]
    assert [after - before for before, after in itertools.pairwise(sent)] == pytest.approx(expected[1:])
    assert len(load.answers) > len(load.measured) > 0, "the first requests are not measured"
