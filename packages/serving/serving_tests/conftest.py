"""What the tests of serving share: the hosts' side, and a server of a model that is a formula."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[3]
# As on a host: the code of suites/common is imported from there, also by the servers that tests start.
sys.path[:0] = [str(REPO / "suites"), str(REPO / "packages" / "serving")]

from common.serving.process import ServerProcess  # noqa: E402

from serving_tests import formula  # noqa: E402


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """A function that starts the server of the formula with a fault, and waits until it answers."""
    started: list[ServerProcess] = []

    def start(fault: str = "", *, ready: bool = True, **options: Any) -> ServerProcess:
        server = ServerProcess(lambda port: formula.command(port, fault, **options), tmp_path / "server.log")
        started.append(server)
        if ready:
            server.wait_ready(60)
        return server

    yield start
    for server in started:
        server.stop()


def program(python: str, *words: object) -> str:
    """Return the output of ``exported.py`` with a Python that has torch."""
    argv = [python, str(Path(__file__).with_name("exported.py")), *map(str, words)]
    env = {**os.environ, "PYTHONPATH": f"{REPO / 'suites'}:{REPO}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
