"""The process of a server: what is wrong with it is a sentence with its last words, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from common.serving.process import ServerError, ServerProcess

from serving_tests.conftest import REPO
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


def test_the_clock_of_readiness_begins_with_the_start(serve: Callable[..., ServerProcess]) -> None:
    begin = time.perf_counter()
    server = serve(ready=False)
    assert 0 < server.wait_ready(60) <= time.perf_counter() - begin
