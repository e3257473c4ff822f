"""Fixtures for the tests of the code that runs on hosts."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.driver.lab import Lab
from tests.helpers.sampling import Running, code_root


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as lab:
        yield lab


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """A function that starts a sampler, which ends with the test."""
    running: list[Running] = []

    def begin(env: dict[str, str] | None = None, *, with_pynvml: bool = True, **orders: Any) -> Running:
        root = tmp_path / "code"
        if not root.exists():
            code_root(tmp_path, with_pynvml=with_pynvml)
        running.append(Running(root, tmp_path / "h1_noderank0", env or {}, **orders))
        return running[-1]

    yield begin
    for sampler in running:
        if sampler.process.poll() is None:
            sampler.process.send_signal(signal.SIGCONT)
            sampler.process.kill()
        sampler.wait()
