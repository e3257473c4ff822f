"""A real vLLM, started by the harness: it serves what was trained, and ends with the run."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.waiting import until
from tests.test_trainings import CATALOG, Finished, command, own_leases

pytestmark = [pytest.mark.slow, pytest.mark.alone]
SUITE = CATALOG.suite("llama31_8b", "vllm")
START_S = 300
"""A server starts in half a minute on two idle cores."""


@contextmanager
def started(repo: Path, reports: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a run of vLLM with four requests at once."""
    own = [str(SUITE.path.parent), "-k", f"{SUITE.name}:CPU:1:1:1", "--set=concurrencies=[4]", "--set=rate_most_s=0.0"]
    argv, output = command(reports, *own, *arguments), subprocess.PIPE
    environment = own_leases(reports)
    with subprocess.Popen(argv, cwd=repo, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True) as run:
        yield run


def servers(reports: Path) -> list[int]:
    """Return the processes of vLLM's server that a run has, by the folder of their output."""
    logs = {str(path.resolve()) for path in reports.rglob("rank0.server.log")}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            writes = str((process / "fd" / "1").readlink()) in logs
        except OSError:
            continue
        found += [int(process.name)] if writes else []
    return sorted(found)


@pytest.fixture(scope="module", autouse=True)
def environment(suite_python: Callable[[Path], str]) -> str:
    return suite_python(SUITE.path)


def test_vllm_serves_the_model_that_was_trained(repo: Path, tmp_path: Path) -> None:
    with started(repo, tmp_path, "--set=case_settings=['max_steps=40']", "--set=point_most_s=3.0") as run:
        out, _ = run.communicate()
    finished = Finished(run.returncode, out, tmp_path)
    (case,) = finished.results["cases"]
    failed = {verdict["name"] for verdicts in case["verdicts"].values() for verdict in verdicts if not verdict["ok"]}
    assert failed <= {"client"}, out  # a busy machine delays the client
    assert case["metrics"]["right_tokens"]["median"] >= 0.99
    assert 0.99 <= case["metrics"]["perplexity_agreement"]["median"] < 1.0, "the engine's, not a copy of the trainer's"
    assert servers(tmp_path) == []


def test_an_interrupt_leaves_no_process_of_vllm(repo: Path, tmp_path: Path) -> None:
    with started(repo, tmp_path, "--synthetic") as run:
        until(lambda: len(servers(tmp_path)) > 1, "vLLM starts processes of its own", START_S)
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate()
    assert run.returncode == 2, out
    assert servers(tmp_path) == []
