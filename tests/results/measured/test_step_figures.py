"""A figure of a step is declared in one place, and then it is in the log, the outcome, the tables and the page."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import events
from flagperf_driver.logged_step import CHARTED
from pytest_flagperf.results.figures.kinds import FIGURES
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import columns
from pytest_flagperf_page import page
from tests.driver.training.test_training import CountingTrainer, Run
from tests.helpers.recording import Training, write
from tests.helpers.stored_runs import finish
from tests.replays.make import every

REPO = Path(__file__).resolve().parents[3]
NAME, PLACE = "gradient_norm", "    learning_rate: float\n"
DECLARATION = f"""\
    {NAME}: float | None = field(
        default=None,
        metadata=StepFigure("", 0, 10, "lower", "how large they are", "by the optimizer", "Norm", "norm")._asdict(),
    )
"""


def test_a_figure_is_added_by_its_declaration_and_the_trainer_that_measures_it(tmp_path: Path) -> None:
    """The declaration is made in a copy of ``flagperf_driver``, which another process imports."""
    shutil.copytree(REPO / "flagperf_driver", tmp_path / "flagperf_driver")
    file = tmp_path / "flagperf_driver/logged_step.py"
    before, place, after = file.read_text(encoding="utf-8").partition(PLACE)
    file.write_text(before + place + DECLARATION + after, encoding="utf-8")
    code = f"import sys; sys.path[:0] = {[str(tmp_path), *sys.path]}; from pathlib import Path; "
    code += f"from {__name__} import find; find(Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0, done.stderr.decode()


def find(run_dir: Path) -> None:
    """Train and measure with a trainer that returns the figure, and find it; for a process with the declaration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CountingTrainer, "step_figures", lambda _: {NAME: 2.5})
        run = Run(max_steps=10)
    assert [end[NAME] for end in (*run.of(events.STEP_END), run.finished)] == [2.5] * 4
    outcome = measured(run_dir / "case", {NAME: 2.5})
    assert {getattr(step, NAME) for step in outcome.steps} == {2.5}
    assert Outcome.from_json(outcome.to_json()) == outcome
    metric = outcome.metric(NAME)
    assert metric is not None
    assert (metric.value, metric.direction, metric.how) == (2.5, "lower", "by the optimizer")
    assert (columns.COLUMNS[-1], columns.row("run", outcome)[NAME]) == (NAME, 2.5)
    html = page.standalone(finish(run_dir), run_dir / "report.html")
    assert [text for text in ("Norm", NAME, FIGURES[NAME].meaning) if text not in html] == []
    assert {(one.event, one.name) for one in measured(run_dir.with_name("other"), {NAME: 11.0}).impossible} == {
        (events.STEP_END, NAME),
        (events.FINISHED, NAME),
    }


def measured(folder: Path, figure: dict[str, float]) -> Outcome:
    """A recorded round with the figure in each step and at the end."""

    def logged(found: list[Any]) -> list[Any]:
        return [(at, kind, {**value, **figure} if kind == events.STEP_END else value) for at, kind, value in found]

    training = Training("more", edit=every(logged), finished=lambda value: {**value, **figure})
    return measure(write(training, folder / "round1"))


@pytest.mark.parametrize("name", CHARTED)
def test_at_most_eight_files_name_a_figure(name: str) -> None:
    """Those that declare, measure and judge it, and those that set its limit."""
    folders = ("pytest_flagperf", "flagperf_driver", "suites")
    files = [path for folder in folders for path in REPO.glob(f"{folder}/**/*.py") if "tests" not in path.parts]
    naming = [path for path in files if re.search(rf"\b(max_)?{name}\b", path.read_text(encoding="utf-8"))]
    assert 0 < len(naming) <= 8, naming
