"""A server: what is wrong with it is a sentence, nothing of its process is left, and a standing one is left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from common.serving.process import ServerError, ServerProcess
from common.serving.standing import StandingServer, served_name

from serving_tests import formula
from serving_tests.conftest import REPO, outcome_of
from serving_tests.test_client import raw_server
from serving_tests.test_measurement import failed, points_of
from tests.helpers.processes import running
from tests.helpers.waiting import until

pytestmark = pytest.mark.integration
PARENT = """
import sys, time
from pathlib import Path
from common.serving.process import ServerProcess
from serving_tests import formula
server = ServerProcess(formula.command, Path(sys.argv[1]))
server.wait_ready(60)
print(server._process.pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    return any(process.pid == pid for process in running())


def test_a_server_that_is_not_ready_in_time_and_one_that_prints_nothing(tmp_path: Path) -> None:
    with (
        ServerProcess(lambda _: [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log") as server,
        pytest.raises(ServerError, match=r"the server was not ready after 0.5 s; it printed nothing"),
    ):
        server.wait_ready(0.5)


def test_the_last_words_of_an_error_are_its_message(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "raise MemoryError('no memory')"]
    with ServerProcess(lambda _: program, tmp_path / "log") as server:
        server._process.wait(60)
        assert server.last_words() == "its last words: MemoryError: no memory"
        assert "Traceback" in (tmp_path / "log").read_text(), "the control"


def test_a_server_that_was_killed_is_named_with_the_signal(serve: Callable[..., ServerProcess]) -> None:
    server = serve()
    server.check("never")
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait(10)
    with pytest.raises(ServerError, match="ended with signal SIGKILL at 4 at once; its last words: serving formula on"):
        server.check("at 4 at once")


def test_a_stopped_server_leaves_no_process_and_its_memory_is_known(serve: Callable[..., ServerProcess]) -> None:
    server = serve()
    assert server.peak_memory() > 5e6
    server.stop()
    assert not is_alive(server._process.pid)
    assert server.peak_memory() == 0


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    path = os.pathsep.join([str(REPO / "suites"), str(REPO / "packages" / "serving"), str(REPO)])
    argv = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    until(lambda: not is_alive(pid), "the server ends", 20)


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
