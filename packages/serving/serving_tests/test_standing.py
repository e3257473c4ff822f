"""A server that the run did not start: it is measured, judged and left alone, and what is wrong is a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from common.serving.process import ServerError, ServerProcess
from common.serving.standing import StandingServer, served_name

from serving_tests import formula
from serving_tests.outcomes import outcome_of
from serving_tests.test_client import raw_server
from serving_tests.test_measurement import failed, points_of

pytestmark = pytest.mark.integration


def test_a_standing_server_is_measured_and_left_alone(
    serve: Callable[..., ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    outcome = outcome_of(
        points_of(tmp_path, monkeypatch, endpoint=f"{server.url}/v1/", model_name="", concurrencies=[2])
    )
    assert failed(outcome) - {"client"} == set()
    assert outcome.value("right_tokens") == 1.0
    assert (outcome.value("time_to_ready"), outcome.value("server_memory")) == (None, None), "the run cannot know them"
    server.check("never")
    wrong = serve("wrong")
    outcome = outcome_of(points_of(tmp_path, monkeypatch, endpoint=wrong.url, concurrencies=[2]))
    assert {"accurate right_tokens", "under_load"} <= failed(outcome), "the control: a server with other weights"


def test_a_standing_server_that_ends_under_load_is_a_sentence(
    serve: Callable[..., ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve("exits")
    message = f"no request was answered at [48] at once: .*; the server at {server.url} was not started by this run"
    with pytest.raises(ServerError, match=message):
        points_of(tmp_path, monkeypatch, endpoint=server.url, concurrencies=[4, 8], synthetic=True, answer_tokens=400)


def test_the_name_of_the_model_is_that_of_the_server(serve: Callable[..., ServerProcess]) -> None:
    url = serve().url
    assert served_name(url, "") == served_name(url, formula.NAME) == formula.NAME
    with pytest.raises(ServerError, match=f"the server at {url} has 'formula'; expected 'llama'"):
        served_name(url, "llama")


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": "a"}, {"id": "b"}]}', "has 'a', 'b'; set model_name to one of them"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "/v1/models: it answered 200: '<html>'; expected 200 and a list of models"),
        (b'HTTP/1.1 401 Unauthorized\r\n\r\n{"data": [{"id": "a"}]}', "it answered 401: "),
        (b"", "no server answered: Remote end closed connection without response"),
    ],
)
def test_another_server_is_a_sentence(response: bytes, problem: str) -> None:
    async def ask() -> None:
        async with raw_server(response) as url:
            with pytest.raises(ServerError) as raised:
                await asyncio.to_thread(served_name, url, "")
            assert problem in str(raised.value)

    asyncio.run(ask())
    with pytest.raises(ServerError, match=r"127.0.0.1:9/v1/models: no server answered: .*; start it, or correct"):
        StandingServer("http://127.0.0.1:9").wait_ready(1)
