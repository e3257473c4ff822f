"""A small tree, and the output of a run in it before the first case: the header and the plans, or the problems."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_flagperf.problems import Problems
from pytest_flagperf.running.header import header
from pytest_flagperf.running.run import Run
from tests.helpers.trees import PLAIN_SUITE_TOML, PLAIN_VENDOR_TOML, write

CASE = "alpha:plain:CPU:1:1:1"
CONTAINER = '[environment]\nACME_MODE = "fast"\n[container]\noptions = ["--memory", "1g"]\n'
VENDOR_TOML = PLAIN_VENDOR_TOML.format(name="Cpu", scale="small", chip="CPU").replace("[chips", f"{CONTAINER}[chips")
FILES = {
    "suites/alpha/plain/suite.toml": PLAIN_SUITE_TOML,
    "suites/alpha/plain/config/_base.py": 'train_batch_size = 4\nlearning_rate = 0.05\nmax_steps = 30\nnote = "a"\n',
    "suites/alpha/plain/config/_small.py": "train_batch_size = 2\n",
    "suites/alpha/plain/config/mutable_params.py": 'mutable_params = ["note"]\n',
    "suites/alpha/plain/requirements.txt": "packaging\n",
    "vendors/cpu/vendor.toml": VENDOR_TOML,
    "vendors/cpu/images/plain/Dockerfile": "FROM python\n",
    "vendors/cpu/alpha-plain/config/config_CPUx1x1.py": "learning_rate = 0.1\n",
    "vendors/cpu/alpha-plain/config/requirements.txt": "packaging\n",
    "vendors/cpu/alpha-plain/config/environment_variables.sh": "export FAST=1\n",
}


def make_tree(root: Path) -> Path:
    for name, text in FILES.items():
        write(root, name, text)
    return root


def start_run(root: Path, options: Mapping[str, Any], *, begin: bool = False) -> str:
    """Return a run's output before its first case starts; with ``begin`` also create the run's directory."""
    try:
        run = Run.open(root, root, options, None)
        if run is None:
            return "no suites"
        try:
            chosen = [one for one in run.selection.cases if not one.unsupported]
            lines = header(run, run.selection.cases)
            run.check(chosen)
            lines += [run.describe(one) for one in chosen]
            if begin:
                run.directory.reserve()
                run.begin(chosen)
            return "\n".join(lines)
        finally:
            run.engine.close()
    except Problems as problems:
        return str(problems)


def files_with(folder: Path, word: str) -> list[str]:
    paths = []
    for place, _, names in os.walk(folder):
        for name in names:
            if word.encode() in (Path(place) / name).read_bytes():
                paths.append(os.path.relpath(Path(place) / name, folder))
    return sorted(paths)
