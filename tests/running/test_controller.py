"""The machine that runs pytest: its load and memory, and the directory of the run."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.store import RunInfo
from pytest_flagperf.running import controller
from pytest_flagperf.running.directory import RunDirectory
from pytest_flagperf_page import page

FIGURES = {
    "cores": 8, "load_1min": 1.5, "memory": 32 * 2**30, "memory_available": 24 * 2**30,
    "harness_cpu_s": 4.5, "harness_memory": 100 * 2**20,
}  # fmt: skip


def test_figures_agree_with_the_kernel_and_do_not_include_children() -> None:
    figures = controller.before_run()
    assert figures["cores"] == os.cpu_count()
    assert figures["memory"] == psutil.virtual_memory().total
    assert 0 < figures["memory_available"] <= figures["memory"]
    assert figures["load_1min"] >= 0
    before = controller.own_cost()["harness_cpu_s"]
    children = os.times().children_user
    subprocess.run([sys.executable, "-c", "sum(range(3 * 10**7))"], check=True)
    used = os.times().children_user - children
    assert used > 0
    assert controller.own_cost()["harness_cpu_s"] - before < used / 2


def test_figures_are_stored_and_shown(tmp_path: Path) -> None:
    store.write_run(tmp_path, RunInfo(controller=FIGURES), ())
    problems: list[str] = []
    info = store.load_info(tmp_path, problems)
    assert (info and info.controller, problems) == (FIGURES, [])
    text = page.body(tmp_path, tmp_path)
    assert "load 1.50 on 8 cores, 24 GiB of 32 GiB memory available before" in text
    assert "pytest-flagperf used 4.5 s of CPU time, 100 MiB" in text


def test_a_run_never_gets_the_directory_of_another(tmp_path: Path) -> None:
    for name in ["run", *(f"run-{number}" for number in range(2, 1000))]:
        (tmp_path / name).mkdir()
    directory = RunDirectory(tmp_path / "run")
    directory.reserve()
    assert directory.path == tmp_path / "run-1000"
    assert directory.path.is_dir()
