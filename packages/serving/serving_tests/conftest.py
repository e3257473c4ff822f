"""What the tests of serving share: the hosts' side, and a server of a model that is a formula."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.logs.points import MeasuredPoint
from pytest_flagperf.results import Outcome
from pytest_flagperf.results.logs.points import point_of
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import Target
from pytest_flagperf.stored.plan import MeasuredFigure
from pytest_flagperf_serving.suite import FIGURES

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


def outcome_of(points: Iterable[MeasuredPoint], **more: Any) -> Outcome:
    """Return the outcome of a serving case, from the points that a rank logged."""
    points = tuple(points)
    figures = tuple(
        MeasuredFigure(name, **{key: value for key, value in vars(one).items() if key not in ("original", "peak")})
        for name, one in FIGURES.items()
    )
    values = [
        MetricValue(figure.name, point.figures[figure.name], figure.unit, figure.direction, "")
        for figure in figures
        if (point := point_of(figure, points)) is not None
    ]
    settings: dict[str, Any] = {
        "case": "m:engine:CPU:1:1:1", "model": "m", "framework": "engine", "hardware": "CPU", "nnodes": 1, "nproc": 1,
        "vendor": "cpu", "round": 1, "seed": 1, "scale": "small", "synthetic": False, "throughput_only": False,
        "sample_unit": "", "state": "finished", "target": Target("output_rate", "higher", "tokens/s", None),
        "kind": "serving", "figures": figures, "metrics": tuple(values), "points": points, "hosts": ("h1",),
    }  # fmt: skip
    return Outcome(**{**settings, **more})
