"""Follow the guides of docs/: each command runs what those before it made, and prints what the page shows."""

import re
import shutil
from pathlib import Path

import pytest

from docsite.blocks import blocks_of_file
from tests.helpers import published
from tests.helpers.stored_runs import run_of, submission
from tests.helpers.walk import Copy, steps

RUN = "run20261121061129"


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def cases(copy: Copy) -> list[set[str]]:
    """Return the models and chips of the cases of each plan, in the order of the plans."""
    plans = [output for command, output in copy.outputs.items() if command.endswith("--plan")]
    return [set(re.findall(r"^(\w+:\w+:\w+):\d+:\d+:\d+ ", output, re.MULTILINE)) for output in plans]


@pytest.mark.integration
def test_the_guide_for_vendors_runs_the_vendor_that_it_makes(copy: Copy) -> None:
    # Runs as the steps of the guide leave them: the submission, and a small and a synthetic run before it.
    reports = copy.root / "reports"
    run_of(reports / "run20261120000000", scale="small", hardware="X9", vendor="acme")
    run_of(reports / "run20261120000001", scale="reference", synthetic=True, hardware="X9", vendor="acme")
    for number, run in enumerate(submission(reports)[:2]):
        run.rename(reports / (RUN if number else "run20261121000000"))
    shutil.rmtree(reports / "run-2x8")
    (copy.root / "data" / "glm").mkdir(parents=True)
    for command in steps("how-to-vendor.md"):
        local = command.replace("=/data/", f"={copy.root}/data/")
        copy.run(f"{local} --plan" if local.startswith("pytest") else local)
    small, *glm = cases(copy)
    assert len(small) > 10
    assert {name.rpartition(":")[2] for name in small} == {"X1"}
    assert glm == [{"glm:pytorch:X1"}] * 2
    bundled = copy.outputs["flagperf bundle reports --shapes=1x1,1x8"]
    assert bundled.count("left out: ") == 2
    assert "2 runs, complete" in bundled


@pytest.mark.slow
@pytest.mark.usefixtures("torch_python")
def test_the_guide_for_models_trains_the_model_that_it_makes(copy: Copy) -> None:
    (step,) = [command for command in steps("how-to-model.md") if "stop_at_target" in command]
    (calibrate,) = [one for one in steps("how-to-model.md") if one.startswith("python -m tools.calibrate")]
    for command in steps("how-to-model.md"):
        if command != calibrate:  # needs ten trainings of a shape; tests/commands/test_new_model.py runs it
            copy.run(f"{command} --plan" if command == step else command)
    assert cases(copy) == [{"mixer:pytorch:CPU"}]
    (run,) = copy.runs
    assert [case["case"] for case in run["cases"]] == ["mixer:pytorch:CPU:1:1:1"]
    assert run["cases"][0]["converged"] == 1
    assert "mfu" not in run["cases"][0]["metrics"]
    assert "failed" not in copy.outputs["pytest tests/suites/test_checks.py -k mixer"]


@pytest.mark.slow
@pytest.mark.usefixtures("torch_python")
def test_adding_a_measurement_takes_one_folder_and_it_measures(copy: Copy) -> None:
    copy.follow("measurements.md")
    assert copy.git("status", "--porcelain").splitlines() == ["?? suites/sorting/"]
    (run,) = copy.runs
    (case,) = run["cases"]
    (outcome,) = case["outcomes"]
    figures = {metric["name"]: metric["value"] for metric in outcome["metrics"]}
    assert figures["sort"] > 1e4
    assert 0 < figures["sort_latency"] < 1
    assert [point["name"] for point in outcome["points"]] == ["sort 10000", "sort 100000"]
    assert all(verdict["ok"] for verdicts in case["verdicts"].values() for verdict in verdicts)


DOCUMENTS = ("coming-from-flagperf.md", "coming-from-flagperf.zh.md")


@pytest.mark.slow
def test_the_page_can_be_followed(copy: Copy) -> None:
    published.checkout(copy.root / "FlagPerf")
    output = ""
    shown = 0
    for block in blocks_of_file(published.REPO, f"docs/{DOCUMENTS[0]}"):
        if block.name:
            copy.write(block.name, block.text)
        elif block.language == "sh" and block.fenced:
            output = " ".join(" ".join(map(copy.run, block.text.splitlines())).split())
        elif block.language == "text":
            patterns = {line: r"\S*".join(map(re.escape, line.split("..."))) for line in block.text.splitlines()}
            missing = [line for line, pattern in patterns.items() if not re.search(pattern, output)]
            assert missing == [], output
            shown += 1
    assert shown == 3


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_option_of_flagperfs_two_files_is_explained(document: str) -> None:
    text = (published.REPO / "docs" / document).read_text(encoding="utf-8")
    files = [given for path, given in published.files().items() if path.startswith("training/run_benchmarks")]
    options = re.findall(r"(?m)^([A-Z_]+) = ", "\n".join(files))
    assert len(options) > 5
    assert [option for option in options if f"`{option}`" not in text] == []
