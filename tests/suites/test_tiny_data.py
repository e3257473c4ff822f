"""Train the reference scale through the plugin on tiny data, and look for what is wrong with damaged data.

The first suite of each data set trains if it changed; the checks of every suite train it on its data, too. The suites
are copies whose ``_base.py`` ends with a smaller model, and whose ``suite.toml`` has the numbers of the tiny files, a
target that the first evaluation reaches, and room in ``left_out``: a training of a second waits for the start of the
workers for much of its time.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node import manifest
from pytest_flagperf.catalog import Catalog, Suite
from tests import trained
from tests.helpers.trees import set_options
from tests.suites import programs

pytestmark = pytest.mark.slow
REPO = Path(__file__).parents[2]
CATALOG = Catalog.scan([REPO])
SUITES = [suite for suite in CATALOG.trainings.values() if suite.framework == "pytorch"]
TRAINED = list({tuple(suite.scales["reference"].data): suite for suite in reversed(SUITES)}.values())
"""The first suite of each data set."""
CUT = programs.first_of_homes(SUITES)
"""The suites that a test trains on a damaged file; their readers are those of the others."""
DAMAGED = [CATALOG.suite(model, "pytorch") for model in ("bert", "glm", "resnet50")]
"""Suites with several kinds of files that may be missing."""
STEPS = 20
LEFT_OUT = """
[scales.reference.left_out]
waiting = 1
evaluation = 1000
summarizing = 1
"""


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    code: int
    out: str
    cases: list[dict[str, Any]]


@dataclass(frozen=True)
class Site:
    """A tree with the smaller suites, and a data directory that contains the data of all of them."""

    root: Path
    data: Path
    to_cut: dict[Path, str]
    """A file of the data of each suite that may train, by the suite's folder."""

    def run(self, suites: Sequence[Suite]) -> Finished:
        """Train each of the suites once."""
        reports = self.root / "reports"
        shutil.rmtree(reports, ignore_errors=True)
        argv = [
            sys.executable, "-m", "pytest", *(f"suites/{suite.model}" for suite in suites), "-p", "no:cacheprovider",
            f"--rootdir={self.root}", "--hw=CPU", f"--reports={reports}", "--vendor=cpu", "--scale=reference",
            "--nodes=1x1", f"--data-dir={self.data}", "--no-throughput-only", "-k", "converges",
        ]  # fmt: skip
        done = subprocess.run(argv, cwd=self.root, capture_output=True, text=True, timeout=600)
        files = list(reports.glob("run*/results.json"))
        cases = json.loads(files[0].read_text())["cases"] if files else []
        return Finished(done.returncode, done.stdout + done.stderr, cases)


@pytest.fixture(scope="module")
def site(
    suite_python: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Site:
    site = Site(tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("data"), {})
    ignored = shutil.ignore_patterns("__pycache__", "reference", "tests")
    for folder in ("suites", "vendors/cpu"):
        shutil.copytree(REPO / folder, site.root / folder, ignore=ignored)
    set_options(site.root, roots=["."])
    suites = [*trained.due(pytestconfig, CATALOG, {*TRAINED, *CUT}), *DAMAGED]
    tasks = {suite.path: () for suite in suites}
    written = programs.run(suite_python, tasks, "checking", "write", str(site.data))
    for suite in set(suites):
        make_smaller(site, suite, written[suite.path]["smaller"])
        site.to_cut[suite.path] = written[suite.path]["cut"]
    return site


def make_smaller(site: Site, suite: Suite, settings: dict[str, Any]) -> None:
    """Change the copy of a suite: its model, its target and the numbers of its files."""
    folder = site.root / suite.path.relative_to(REPO)
    settings = {**settings, "max_steps": STEPS, "max_epochs": None, "max_samples": None, "eval_steps": STEPS}
    lines = [f"{key} = {value!r}\n" for key, value in settings.items()]
    with (folder / "config/_base.py").open("a", encoding="utf-8") as base:
        base.writelines(["\n", *lines, 'precision = "fp32"\n', "eval_at_start = False\n"])
    toml = folder / "suite.toml"
    low, high = suite.metric.range or ()
    easiest = low if suite.metric.direction == "higher" else high
    text = re.sub(r"(?m)^target = .*", f"target = {easiest}", toml.read_text(encoding="utf-8"))
    text = re.sub(r"(?m)^also = .*\n", "", text)
    text = re.sub(r"(?m)^\[scales\.reference\.left_out\]\n(.+\n)*", "", text) + LEFT_OUT
    for item in suite.scales["reference"].data:
        if item.kind == "folder":
            files, folders = manifest.count(site.data / item.path)
            text = text.replace(f"files = {item.files}\n", f"files = {files.total()}\n", 1)
            text = text.replace(f"folders = {item.folders}\n", f"folders = {folders}\n", 1)
    toml.write_text(text, encoding="utf-8")
    config = site.root / "vendors/cpu" / suite.folder / "config/config_CPUx1x1.py"
    config.parent.mkdir(parents=True)
    config.write_text("")


@pytest.fixture
def damaged(site: Site, tmp_path: Path) -> Iterator[Site]:
    """The site with a copy of the data, which a test may change."""
    shutil.copytree(site.data, tmp_path / "data")
    yield Site(site.root, tmp_path / "data", site.to_cut)
    shutil.rmtree(tmp_path / "data")


def due(config: pytest.Config, suites: Sequence[Suite]) -> list[Suite]:
    """Return the suites that changed; skip the test if none of them did."""
    return trained.due(config, CATALOG, suites) or pytest.skip(trained.SKIPPED)


def test_suites_train_on_their_published_formats(site: Site, pytestconfig: pytest.Config) -> None:
    suites = due(pytestconfig, TRAINED)
    for folder in ("train/n01440764", "2048_shards_uncompressed"):
        (site.data / folder / ".DS_Store").write_text("hidden files are not data")
    finished = site.run(suites)
    assert finished.code == 0, finished.out
    converged = {case["case"]: case["converged"] for case in finished.cases}
    assert converged == {f"{suite.name}:CPU:1:1:1": 1 for suite in suites}


def test_a_cut_file_of_each_format_is_named_with_the_fix(damaged: Site, pytestconfig: pytest.Config) -> None:
    suites = due(pytestconfig, CUT)
    names = [damaged.to_cut[suite.path] for suite in suites]
    for name in set(names):
        (damaged.data / name).write_bytes((damaged.data / name).read_bytes()[:900])
    finished = damaged.run(suites)
    assert finished.code == 1, finished.out
    for name in names:
        sentences = [line for line in finished.out.splitlines() if line.startswith("round 1: ") and name in line]
        assert len(sentences) == names.count(name), finished.out
        assert re.search(f"Error: {damaged.data / name}: .* again", sentences[0]), sentences
    assert "Original Traceback" not in finished.out


def test_missing_and_surplus_files_are_named_before_a_rank_starts(damaged: Site) -> None:
    (damaged.data / "2048_shards_uncompressed/part_1_of_3.hdf5").unlink()
    (damaged.data / "train/n01440764/README.txt").write_text("surplus")
    shutil.rmtree(damaged.data / "val/n01443537")
    finished = damaged.run(DAMAGED)
    assert finished.code == pytest.ExitCode.USAGE_ERROR, finished.out
    assert finished.cases == []
    for words in (
        "2048_shards_uncompressed: got 2 files, expected 3",
        "train: got 25 files (24 .JPEG, 1 .txt), expected 24",
        "val: got 2 folders, expected 3",
    ):
        assert words in finished.out, finished.out
    encoded = damaged.data / "ReCoRD/glm_train_eval_hdf5_sparse/train_hdf5/train_sparse.hdf5"
    encoded.unlink()
    finished = damaged.run(DAMAGED)
    assert finished.code == pytest.ExitCode.USAGE_ERROR, finished.out
    assert f"{encoded} does not exist" in finished.out, finished.out
